"""Connections for calls: the client's own, without what it does around each command.

The client looks, before each command, whether the server has closed the connection meanwhile; that
is one more system call, and half of the processor time of a command goes into such care. A call
may be repeated, so here a dead connection is found out by using it: then all idle ones are let go,
and the repetition opens a new one.
"""

import os
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import ResponseError

from cape_stream.coordination.scripts import Argument


class Links(Protocol):
    """Sends commands, and knows how to begin anew."""

    def execute(self, words: tuple[Argument, ...]) -> Any:
        """The reply to one command."""
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
        self._free = threading.BoundedSemaphore(links_max)
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    def execute(self, words: tuple[Argument, ...]) -> Any:
        """See `Links.execute`."""
        if self._pid != os.getpid():
            self._forked()
        if not self._free.acquire(timeout=self._wait_s):
            raise LinkError("no connection became free in time (valkey.connections_max)")
        try:
            return self._executed(words)
        finally:
            self._free.release()

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

    def _executed(self, words: tuple[Argument, ...]) -> Any:
        try:
            link = self._idle.pop()
        except IndexError:
            link = self._pool.connection_class(**self._pool.connection_kwargs)
            link.connect()
        try:
            link.send_command(*words, check_health=False)
            reply = link.read_response()
        except ResponseError:
            self._idle.append(link)  # the server said no; the connection is fine
            raise
        except BaseException:
            link.disconnect()  # a late reply must not be taken for that of another command
            raise
        self._idle.append(link)
        return reply

    def _forked(self) -> None:
        """The connections belong to our parent: leave them to it."""
        self._idle = deque()
        self._pid = os.getpid()


class ClientLinks:
    """To whatever the client leads to: a cluster, or the primary of the moment."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def execute(self, words: tuple[Argument, ...]) -> Any:
        """See `Links.execute`."""
        return self._client.execute_command(*words)

    def renew(self) -> None:
        """See `Links.renew`; a cluster's client asks for the nodes anew by itself."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None:
            pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """See `Links.close`; the client closes them."""


def open_links(client: Any, *, is_plain: bool, links_max: int, wait_ms: int) -> Links:
    """The links of a client."""
    return DirectLinks(client, links_max, wait_ms) if is_plain else ClientLinks(client)
