"""Connections as the stream server sees them: bytes that wait, loss, and an end without mercy.

uvicorn hands an application `send`, which neither tells how much waits for a client nor lets it be
cut off: closing waits for a reader who does not read. So its protocols are taught to show the
transport. A publish is then written to each client as it is, without a task or a copy a client.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

LINK = "cape.link"
"""Where an application finds its `Link` in the scope."""
REQUEST_DEADLINE_S = 10.0
"""A connection that has sent no whole request by then is cut off."""
SEND_BUFFER_BYTES = 131_072
"""What the system may buffer for a client beside us; its own choice goes to megabytes."""
PART_BYTES = 16_384
"""What is handed to a transport at a time once its client reads again."""


class Link:
    """One client's connection.

    A transport copies what it cannot send. What waits here instead is shared by everybody it waits
    for, so a crowd that stops reading costs references, and not a copy each.
    """

    __slots__ = ("_on_lost", "_waiting", "_waiting_bytes", "_written", "is_lost", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.is_lost = False
        self._on_lost: Callable[[], None] | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._written = 0

    def write(self, data: bytes) -> int:
        """Send, or keep until what was written before is sent; how many bytes wait now."""
        transport = self.transport
        if transport.is_closing():
            return 0
        self._written += len(data)
        if not self._waiting and not transport.get_write_buffer_size():
            transport.write(data)
            return transport.get_write_buffer_size()
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        return self.waiting

    def resume(self) -> None:
        """The transport has sent everything: give it more, a part at a time."""
        while self._waiting and not self.transport.get_write_buffer_size():
            part, size = 0, 0
            while part < len(self._waiting) and size < PART_BYTES:
                size += len(self._waiting[part])
                part += 1
            data = b"".join(self._waiting[:part])
            del self._waiting[:part]
            self._waiting_bytes -= size
            self.transport.write(data)

    def flush(self) -> None:
        """Hand everything to the transport, whose own last words come behind it."""
        waiting = self._waiting
        self._drop()
        if waiting and not self.transport.is_closing():
            self.transport.write(b"".join(waiting))

    def call_when_lost(self, callback: Callable[[], None]) -> None:
        """Call once when the connection is gone; at once if it is."""
        if self.is_lost:
            callback()
        self._on_lost = callback

    def lose(self) -> None:
        """The connection is gone."""
        self.is_lost = True
        self._drop()
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback()

    @property
    def waiting(self) -> int:
        """Bytes the system has not taken yet."""
        return self.transport.get_write_buffer_size() + self._waiting_bytes

    @property
    def taken(self) -> int:
        """Bytes the system has taken; what grows is progress."""
        return self._written - self.waiting

    def abort(self) -> None:
        """End it now; what waits is dropped."""
        self._drop()
        self.transport.abort()

    def _drop(self) -> None:
        self._waiting, self._waiting_bytes = [], 0


def show_link(app: Any, link: Link) -> Any:
    """The same application, with the link in the scope of its requests."""

    async def linked(scope: Any, receive: Any, send: Any) -> Any:
        scope[LINK] = link
        return await app(scope, receive, send)

    return linked


def prepare(transport: asyncio.Transport, deadline_ms: int) -> None:
    """Have the system give up on a peer that acknowledges nothing for so long, and have the
    protocol told whenever the transport has sent everything."""
    transport.set_write_buffer_limits(high=0)
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, deadline_ms)


class StreamHttp(H11Protocol):
    """HTTP, with the transport in sight."""

    deadline_ms = 10_000
    """Set by the server before the first connection."""
    link: Link

    def connection_made(  # type: ignore[override]  # uvicorn narrows it likewise
        self, transport: asyncio.Transport
    ) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        prepare(transport, self.deadline_ms)
        self.link = Link(transport)
        self.app = show_link(self.app, self.link)
        self._impatience = self.loop.call_later(REQUEST_DEADLINE_S, self._end_idle)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        self.link.resume()

    def _end_idle(self) -> None:
        if getattr(self, "scope", None) is None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._impatience.cancel()
        super().connection_lost(exc)
        self.link.lose()


class StreamWebSocket(WebSocketsSansIOProtocol):
    """WebSocket, with the transport in sight."""

    link: Link

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        self.link.resume()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.link = Link(self.transport)
        self.app = show_link(self.app, self.link)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        self.link.lose()
