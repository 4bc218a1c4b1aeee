"""What the platform does around the app: executions with hook tokens, a stream server, a page."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Thread

from cape_stream.adapters.simulated.channels import (
    MemoryChannelFeed,
    MemoryChannelStore,
    MemoryChannelWriter,
)
from cape_stream.coordination.memory_tokens import MemoryHookTokens
from cape_stream.demos.chat import app
from cape_stream.realtime.context import RealtimeContext
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.server import StreamServer
from cape_stream.realtime.serving import listening_socket, uvicorn_server
from cape_stream.realtime.settings import RealtimeSettings

EXECUTION_LIFE_MS = 60_000
REQUEST_BYTES_MAX = 65_536
Method = Callable[[RealtimeContext, dict[str, str]], str]


class Platform:
    """Runs methods of the app, each as an execution of its own."""

    def __init__(self) -> None:
        self.settings = RealtimeSettings(drain_ms=0)
        self.keys = GrantKeys.ephemeral()
        self.store = MemoryChannelStore(lambda: time.time_ns() // 1_000, self.settings.retention)
        self._tokens = MemoryHookTokens()
        self._writer = MemoryChannelWriter(self.store)
        self._executions = 0

    def execute(self, method: Method, words: dict[str, str]) -> str:
        """Mint a hook token, run the method under it, and end both."""
        self._executions += 1
        execution = f"execution-{self._executions}"
        token = self._tokens.mint("live", "chat", execution, "", EXECUTION_LIFE_MS)
        context = RealtimeContext(token, self._tokens, self._writer, self.keys, self.settings)
        try:
            return method(context, words)
        finally:
            context.close()
            self._tokens.end_execution("live", "chat", execution)


def _say(context: RealtimeContext, words: dict[str, str]) -> str:
    app.say(context, words["user"], words["text"])
    return "said"


METHODS: dict[str, Method] = {
    "/join": lambda context, words: app.join(context, words["user"]),
    "/say": _say,
}


@contextmanager
def opened(port: int = 0) -> Iterator[tuple[str, str]]:
    """Everything runs while the block does; addresses of the page and of the stream."""
    platform = Platform()
    sock = listening_socket("127.0.0.1", 0)
    server = StreamServer(
        lambda: MemoryChannelFeed(platform.store), platform.keys, platform.settings
    )
    running = uvicorn_server(server, platform.settings)
    stream = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
    pages = ThreadingHTTPServer(("127.0.0.1", port), _handler(platform, stream))
    pages.daemon_threads = True
    threads = [
        Thread(target=running.run, args=([sock],), daemon=True),
        Thread(target=pages.serve_forever, args=(0.1,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{pages.server_port}/", f"{stream}/stream"
    finally:
        pages.shutdown()
        pages.server_close()
        running.should_exit = True
        for thread in threads:
            thread.join()


def _handler(platform: Platform, stream: str) -> type[BaseHTTPRequestHandler]:
    page = files("cape_stream.demos.chat").joinpath("page.html").read_text(encoding="utf-8")
    shown = page.replace("STREAM", stream).encode()

    class Handler(BaseHTTPRequestHandler):
        """One request of a page."""

        def do_GET(self) -> None:
            """The page."""
            self._answer(200, shown, "text/html; charset=utf-8")

        def do_POST(self) -> None:
            """A method of the app."""
            method = METHODS.get(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            if method is None or size > REQUEST_BYTES_MAX:
                self._answer(404, b"no such method", "text/plain")
                return
            try:
                words = json.loads(self.rfile.read(size))
                found = platform.execute(method, words)
            except (ValueError, KeyError, TypeError) as error:
                self._answer(400, f"not understood: {error!r}".encode(), "text/plain")
                return
            self._answer(200, found.encode(), "text/plain")

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its own name
            """Say nothing."""

    return Handler
