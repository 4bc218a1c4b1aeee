"""Pages of an app, as the hub sees them: connections that keep what is written, and readers."""

import asyncio
import json
import re
from contextlib import suppress
from typing import Any

from cape_stream.errors import Retry
from cape_stream.ports.channels import Realm
from cape_stream.realtime.grants import Grant
from cape_stream.realtime.hub import Hub
from cape_stream.realtime.links import Link
from cape_stream.realtime.streams import Stream, Wire

REALM = Realm("live", "app")
_EVENT = re.compile(rb"(?:event: (\w+)\n)?(?:id: ([\w-]+)\n)?data: (.*)\n\n|id: ([\w-]+)\n\n")


class Wires(asyncio.Transport):
    """A connection that takes everything at once and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_over = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_over

    def abort(self) -> None:
        self.is_over = True


class Client:
    """One page: its channels, its cursor, and what it has seen of each channel."""

    def __init__(self, number: int, channels: list[str]) -> None:
        self.channels = channels
        self.cursor = ""
        self.heard: list[tuple[str, Any]] = []
        """(event, data) in the order of arrival, over all its connections."""
        grant_id = f"g-{number}"
        self.grant = Grant(grant_id, REALM, tuple(channels), "", "", 0, 10**15, None)
        self.stream: Stream | None = None
        self.wires = Wires()
        self._read = 0

    async def connect(self, hub: Hub) -> None:
        self.wires, self._read = Wires(), 0
        link = Link(self.wires)
        stream = Stream(link, Wire.SSE, self.grant, 10**9)
        with suppress(Retry):
            opening = await hub.join(stream, self.cursor)
            await hub.begin(stream, opening, is_resumed=bool(self.cursor))
            self.stream = stream

    def leave(self, hub: Hub) -> None:
        if self.stream is not None:
            self.read()
            self.wires.is_over = True
            hub.leave(self.stream)
            self.stream = None

    def read(self) -> None:
        """Take in what has arrived, as a browser does."""
        raw = self.wires.written[self._read :]
        self._read = len(self.wires.written)
        for name, cursor, data, beat in _EVENT.findall(raw):
            self.cursor = (cursor or beat).decode() or self.cursor
            if data:
                self.heard.append((name.decode() or "message", json.loads(data)))
