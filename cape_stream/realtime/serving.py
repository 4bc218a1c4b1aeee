"""Runs a stream server on uvicorn: a shared port, and a stop that spreads reconnects."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn

from cape_stream.errors import Fatal
from cape_stream.realtime.client_publish import REQUEST_BYTES_MAX
from cape_stream.realtime.links import SEND_BUFFER_BYTES, StreamHttp, StreamWebSocket
from cape_stream.realtime.server import StreamServer
from cape_stream.realtime.settings import RealtimeSettings

BACKLOG = 4_096
HEADER_BYTES_MAX = 16_384
SIGNAL_LOOK_S = 0.1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAST_WORDS_S = 3
"""How long connections that were asked to end may take, before they are dropped."""


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that several processes may listen on; whoever stops leaves the port to the others.

    Raises:
        Fatal: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(AttributeError, OSError):  # not on every system
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise Fatal(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another by realtime.host"
            " and realtime.port"
        ) from error
    return sock


class DrainingServer(uvicorn.Server):
    """A uvicorn server that lets streams go one by one before it stops."""

    def __init__(self, config: uvicorn.Config, server: StreamServer, drain_ms: int) -> None:
        super().__init__(config)
        self._stream_server = server
        self._drain_ms = drain_ms
        self.failure: BaseException | None = None

    async def on_tick(self, counter: int) -> bool:
        """Stop when a task of the hub has died: half a server is worse than none."""
        self.failure = self._stream_server.hub.failure
        return await super().on_tick(counter) or self.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """First nobody new, then everybody out over the drain time, then the rest."""
        for listener in self.servers:
            listener.close()
        draining = asyncio.create_task(self._stream_server.hub.drain(self._drain_ms))
        while not draining.done() and not self.force_exit:
            await asyncio.wait({draining}, timeout=SIGNAL_LOOK_S)
        draining.cancel()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal; unlike uvicorn's own, do not die of it when everything has stopped."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in STOP_SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second one stops at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


def uvicorn_server(
    server: StreamServer, settings: RealtimeSettings, message_bytes_max: int = REQUEST_BYTES_MAX
) -> DrainingServer:
    """A server that runs until a signal, or until `should_exit` is set.

    Args:
        server: what it serves.
        settings: its limits.
        message_bytes_max: of one WebSocket message of a client.
    """
    http = type("Http", (StreamHttp,), {"deadline_ms": settings.send_deadline_ms})
    config = uvicorn.Config(
        server.app,
        http=http,
        ws=StreamWebSocket,
        ws_per_message_deflate=False,  # compressing beside secrets leaks them, and costs memory
        ws_max_size=message_bytes_max,
        ws_ping_interval=settings.heartbeat_interval_ms / 1_000,
        ws_ping_timeout=settings.send_deadline_ms / 1_000,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        interface="asgi3",
        lifespan="on",
        access_log=False,  # addresses hold grants
        server_header=False,
        proxy_headers=False,
        log_config=None,
        backlog=BACKLOG,
        timeout_graceful_shutdown=LAST_WORDS_S,
    )
    return DrainingServer(config, server, settings.drain_ms)


def serve(
    server: StreamServer,
    settings: RealtimeSettings,
    port: int,
    on_listening: Callable[[str, int], None],
    message_bytes_max: int = REQUEST_BYTES_MAX,
) -> None:
    """Run until SIGTERM or SIGINT; a second one stops at once.

    Raises:
        Fatal: the port cannot be had, or a part of the server died.
    """
    sock = listening_socket(settings.host, port)
    running = uvicorn_server(server, settings, message_bytes_max)
    on_listening(*sock.getsockname()[:2])
    running.run(sockets=[sock])
    if running.failure is not None:
        raise Fatal(f"the stream server failed: {running.failure!r}") from running.failure
