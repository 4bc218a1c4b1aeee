"""One connection to Valkey that carries all subscriptions of a process.

The client library's own pub/sub object reconnects by itself and says nothing, which loses messages
without anybody knowing. Here a connection lives once: when it breaks, whoever reads it is told.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection

from cape_stream.errors import Retry
from cape_stream.realtime.valkey_writer import store_errors

TOPICS_A_COMMAND = 500


class Subscriptions:
    """Topics that are wanted, on a connection that may come and go."""

    def __init__(self, timeout_s: float) -> None:
        """Without a connection at first.

        Args:
            timeout_s: how long a subscription may take.
        """
        self._timeout_s = timeout_s
        self._wanted: set[str] = set()
        self._confirmed: set[str] = set()
        self._asked: dict[str, int] = {}
        """Topic → subscribe commands that the server has not answered; a topic is confirmed by
        the answer to the last one, for an unsubscribe may stand between two."""
        self._changed = asyncio.Condition()
        self.connection: AbstractConnection | None = None

    async def add(self, topics: Sequence[str]) -> None:
        """Subscribe, and wait until the server said so.

        Raises:
            Retry: there is no link, or it does not answer.
        """
        if self.connection is not None and self._confirmed.issuperset(topics):
            return
        added = [topic for topic in topics if topic not in self._wanted]
        self._wanted.update(added)
        wanted = set(topics)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send("SUBSCRIBE", added)
                async with self._changed:
                    await self._changed.wait_for(lambda: self._are_there(wanted))
        except TimeoutError as error:
            raise Retry("the channel store does not confirm a subscription") from error

    def _are_there(self, topics: set[str]) -> bool:
        if self.connection is None:
            raise Retry("the link to the channel store is down")
        return topics <= self._confirmed

    async def remove(self, topics: Sequence[str]) -> None:
        """Unsubscribe; a link that is down has nothing to unsubscribe from."""
        gone = [topic for topic in topics if topic in self._wanted]
        self._wanted.difference_update(gone)
        self._confirmed.difference_update(gone)
        with contextlib.suppress(Retry):
            await self._send("UNSUBSCRIBE", gone)

    async def attach(self, connection: AbstractConnection) -> None:
        """Go on with a fresh connection: subscribe everything that is wanted."""
        self._asked.clear()
        self._confirmed.clear()
        self.connection = connection
        await self._send("SUBSCRIBE", sorted(self._wanted))

    async def detach(self) -> None:
        """The connection broke; who waits is told."""
        connection, self.connection = self.connection, None
        self._confirmed.clear()
        if connection is not None:
            with contextlib.suppress(Exception):  # it is broken already
                await connection.disconnect(nowait=True)
        async with self._changed:
            self._changed.notify_all()

    async def ping(self) -> None:
        """Ask for a sign of life; the answer is read like everything else."""
        if self.connection is not None:
            with store_errors("ping"):
                await self.connection.send_command("PING", check_health=False)

    async def read(self) -> tuple[str, bytes]:
        """Wait for the next message: its topic and payload; the topic is empty for other news."""
        assert self.connection is not None, "attach first"
        response: Any = await self.connection.read_response(timeout=self._timeout_s)
        if response is None:  # how the client says that it timed out
            raise TimeoutError(f"nothing was heard for {self._timeout_s} s")
        kind = response[0] if isinstance(response, list) else b""
        if kind == b"message":
            return response[1].decode(), response[2]
        if kind == b"subscribe":
            await self._confirm(response[1].decode())
        return "", b""

    async def _confirm(self, topic: str) -> None:
        self._asked[topic] = self._asked.get(topic, 1) - 1
        if self._asked[topic] <= 0:
            del self._asked[topic]
            if topic in self._wanted:
                self._confirmed.add(topic)
                async with self._changed:
                    self._changed.notify_all()

    async def _send(self, command: str, topics: Sequence[str]) -> None:
        if not topics:
            return
        connection = self.connection
        if connection is None:
            raise Retry("the link to the channel store is down")
        if command == "SUBSCRIBE":
            for topic in topics:
                self._asked[topic] = self._asked.get(topic, 0) + 1
        with store_errors(command.lower()):
            for start in range(0, len(topics), TOPICS_A_COMMAND):
                await connection.send_command(
                    command, *topics[start : start + TOPICS_A_COMMAND], check_health=False
                )
