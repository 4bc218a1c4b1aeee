"""Lets Prometheus and KEDA read figures over HTTP, from a thread of its own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cape_stream.errors import Fatal
from cape_stream.queues.settings import ProcessorSettings

PATH = "/metrics"


@contextmanager
def serve_gauges(settings: ProcessorSettings, text: Callable[[], str]) -> Iterator[None]:
    """Serve ``text`` at `PATH` while the context is open; nothing if no port is set.

    Args:
        settings: host and port.
        text: called in the server's thread.

    Raises:
        Fatal: the port cannot be opened.
    """
    if not settings.metrics_port:
        yield
        return

    class Answer(BaseHTTPRequestHandler):
        """One request."""

        def do_GET(self) -> None:
            """Answer with the figures."""
            if self.path != PATH:
                self.send_error(404)
                return
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: a scrape is no news."""

    place = (settings.metrics_host, settings.metrics_port)
    try:
        server = ThreadingHTTPServer(place, Answer)
    except OSError as error:
        raise Fatal(
            f"processor.metrics_port: {place[0]}:{place[1]} cannot be opened: {error.strerror}"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="cape-gauges", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
