"""Connections for calls: the client's own, without what it does around each command.

The client looks, before each command, whether the server has closed the connection meanwhile; that
is one more system call, and half of the processor time of a command goes into such care. A call
may be repeated, so here a dead connection is found out by using it: then all idle ones are let go,
and the repetition opens a new one.
"""

import os
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import ResponseError

from cape_stream.coordination.scripts import Argument

Words = tuple[Argument, ...]
"""One command."""


class Links(Protocol):
    """Sends commands, and knows how to begin anew."""

    def execute(self, *commands: Words) -> list[Any]:
        """The replies to commands, which all go over one connection."""
        ...

    def renew(self) -> None:
        """Let go of connections that may be dead, or lead to the wrong server."""
        ...

    def close(self) -> None:
        """Close what is idle."""
        ...


class DirectLinks:
    """To one server.

    Args:
        client: the client whose kind of connection is used.
        links_max: open at once; further callers wait for one.
        wait_ms: so long.
    """

    def __init__(self, client: Any, links_max: int, wait_ms: int) -> None:
        self._pool = client.connection_pool
        self._wait_s = wait_ms / 1_000
        self._links_max = links_max
        self._begin()

    def execute(self, *commands: Words) -> list[Any]:
        """See `Links.execute`."""
        if self._pid != os.getpid():
            self._begin()  # forked: the connections, and who waits for one, belong to our parent
        free = self._free
        try:
            free.get(timeout=self._wait_s)
        except Empty:
            text = "no connection became free in time (valkey.connections_max)"
            raise LinkError(text) from None
        try:
            return self._executed(commands)
        finally:
            free.put(None)

    def renew(self) -> None:
        """See `Links.renew`."""
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return
            with suppress(Exception):
                link.disconnect()

    def close(self) -> None:
        """See `Links.close`."""
        self.renew()

    def _executed(self, commands: tuple[Words, ...]) -> list[Any]:
        replies = []
        try:
            link = self._idle.pop()
        except IndexError:
            link = self._pool.connection_class(**self._pool.connection_kwargs)
            link.connect()
        try:
            for words in commands:
                link.send_packed_command((packed(words),), check_health=False)
                replies.append(link.read_response())
        except ResponseError:
            self._idle.append(link)  # the server said no; the connection is fine
            raise
        except BaseException:
            link.disconnect()  # a late reply must not be taken for that of another command
            raise
        self._idle.append(link)
        return replies

    def _begin(self) -> None:
        """With no connection open, and the right to open all."""
        self._idle: deque[Any] = deque()
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._links_max):
            self._free.put(None)
        self._pid = os.getpid()


class ClientLinks:
    """To whatever the client leads to: a cluster, or the primary of the moment."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def execute(self, *commands: Words) -> list[Any]:
        """See `Links.execute`."""
        if len(commands) == 1:
            return [self._client.execute_command(*commands[0])]
        pipeline = self._client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        return list(pipeline.execute())

    def renew(self) -> None:
        """See `Links.renew`; a cluster's client asks for the nodes anew by itself."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None:
            pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """See `Links.close`; the client closes them."""


def packed(words: Words) -> bytes:
    """A command as it is sent: the client's own way, in half its time."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


def open_links(client: Any, *, is_plain: bool, links_max: int, wait_ms: int) -> Links:
    """The links of a client."""
    return DirectLinks(client, links_max, wait_ms) if is_plain else ClientLinks(client)
