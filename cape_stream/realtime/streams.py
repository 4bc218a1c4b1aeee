"""One client's stream: what it may hear, how far it is, and what waits for it."""

import asyncio
import time
from collections.abc import Sequence
from enum import Enum

from cape_stream.realtime.framing import (
    Control,
    sse_chunk,
    sse_control,
    sse_heartbeat,
    sse_message,
    sse_retry,
    ws_control,
    ws_heartbeat,
    ws_message,
)
from cape_stream.realtime.grants import Grant
from cape_stream.realtime.links import Link


class Wire(Enum):
    """How a client is spoken to."""

    SSE = 0
    WEBSOCKET = 1

    def message(self, cursor: str, body: bytes) -> bytes:
        """A message, ready to be written."""
        if self is Wire.SSE:
            return sse_chunk(sse_message(cursor, body))
        return ws_message(cursor, body)

    def control(self, event: Control, cursor: str, fields: dict[str, object]) -> bytes:
        """One of our own events, ready to be written."""
        if self is Wire.SSE:
            return sse_chunk(sse_control(event, cursor, fields))
        return ws_control(event, cursor, fields)

    def heartbeat(self, cursor: str) -> bytes:
        """A sign of life, ready to be written."""
        return sse_chunk(sse_heartbeat(cursor)) if self is Wire.SSE else ws_heartbeat(cursor)

    def retry(self, retry_ms: int) -> bytes:
        """How long to wait before a reconnect; a WebSocket client reads it in `ready`."""
        return sse_chunk(sse_retry(retry_ms)) if self is Wire.SSE else b""


WIRES = tuple(Wire)
"""By number: looking a wire up by its member costs more than writing to a client."""


class Frames:
    """One message as bytes, made at most once a wire, shared by everybody who hears it."""

    __slots__ = ("_body", "_cursor", "_made", "sequence")

    def __init__(self, sequence: int, cursor: str, body: bytes) -> None:
        self.sequence = sequence
        self._cursor = cursor
        self._body = body
        self._made: list[bytes | None] = [None, None]

    def on(self, at: int) -> bytes:
        """The bytes for the wire of that number."""
        made = self._made[at]
        if made is None:
            made = self._made[at] = WIRES[at].message(self._cursor, self._body)
        return made


class Ending(Enum):
    """Why a stream ended."""

    LOST = "lost"
    """The client went away."""
    EXPIRED = Control.EXPIRED.value
    REVOKED = Control.REVOKED.value
    RECONNECT = Control.RECONNECT.value
    SLOW = "slow"
    """Too much waited for it; nothing could be said any more."""
    STUCK = "stuck"
    """It took nothing for too long."""


class Stream:
    """Made when a grant was accepted; written to by the hub only."""

    __slots__ = (
        *("at", "channels", "early", "early_bytes", "ended", "ending", "grant", "is_begun"),
        *("life_ms", "link", "slot", "start", "stuck_since_s", "taken", "timer", "wire"),
    )

    def __init__(self, link: Link, wire: Wire, grant: Grant, life_ms: int) -> None:
        """A stream that says nothing yet.

        Args:
            link: the client's connection.
            wire: how it is spoken to.
            grant: what it may hear.
            life_ms: what is left of the grant, > 0.
        """
        self.link = link
        self.wire = wire
        self.at: int = wire.value
        self.grant = grant
        self.life_ms = life_ms
        self.is_begun = False
        """True once its response has begun, so that something can be said to it."""
        self.channels: Sequence[str] = grant.channels
        self.start = 0
        """Everything up to this sequence was sent, or was before its time."""
        self.early: list[Frames] | None = []
        """What arrives before it is known where the stream begins; None once it is."""
        self.early_bytes = 0
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.ending: Ending | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.slot = 0
        self.taken = 0
        self.stuck_since_s = 0.0
        link.call_when_lost(self._lost)

    def _lost(self) -> None:
        self.finish(Ending.LOST)

    def finish(self, ending: Ending) -> None:
        """Note why it ended; the first reason stays."""
        if self.ending is None:
            self.ending = ending
        self.link.flush()
        if not self.ended.done():
            self.ended.set_result(self.ending)

    def write(self, data: bytes) -> int:
        """Hand bytes to the connection; how many wait there now."""
        return self.link.write(data)

    def is_stuck(self, now_s: float, deadline_s: float) -> bool:
        """True if something waits and nothing has moved for longer than the deadline."""
        taken = self.link.taken
        if taken > self.taken:
            self.taken = taken
            self.stuck_since_s = now_s
        return now_s - self.stuck_since_s > deadline_s

    def begin_watch(self) -> None:
        """Something waits for the first time: the deadline starts."""
        self.taken = self.link.taken
        self.stuck_since_s = time.monotonic()
