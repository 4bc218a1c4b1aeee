"""The app beside the stream server: its page, and the method by which the page mints grants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = """<!doctype html><meta charset="utf-8"><title>app</title>
<script type="module">
import { open } from "%s";
globalThis.seen = []; globalThis.resets = []; globalThis.states = [];
globalThis.start = (more) => {
  globalThis.stream = open({
    url: "%s",
    mint: async () => (await fetch("/mint", { method: "POST" })).text(),
    onMessage: (message) => seen.push(message.data),
    onReset: (channels) => resets.push(channels),
    onState: (state, reason) => states.push(reason ? state + ": " + reason : state),
    retryMs: 50, retryMsMax: 300, ...more,
  });
};
globalThis.ready = true;
</script>"""


class App:
    """Serves the page, and a token for every POST; ``mint`` may return an empty text.

    Args:
        client: address of the browser client.
        stream: address of the stream, as the page is to use it.
        mint: the app's own method.
    """

    def __init__(self, client: str, stream: str, mint: Callable[[], str]) -> None:
        self.minted = 0
        page = (PAGE % (client, stream)).encode()
        app = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(page, "text/html")

            def do_POST(self) -> None:
                app.minted += 1
                self._answer(mint().encode(), "text/plain")

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its own name
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
