"""Runs an ASGI application on uvicorn in a thread of its own."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from cape_stream.errors import Fatal

STOP_S = 5.0


class _QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the process it is a guest in."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


class HttpServer:
    """Listens from the moment it is made; `stop` frees the port.

    Args:
        app: what answers.
        host: address to listen on.
        port: 0 takes a free one.
        section: of the settings that say where, for the message if it cannot be had.

    Raises:
        Fatal: the address cannot be had.
    """

    def __init__(self, app: Any, host: str, port: int, section: str = "admin") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise Fatal(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another by"
                f" {section}.host and {section}.port"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
        self._server = _QuietServer(config)
        self._thread = threading.Thread(target=self._run, name=f"cape-{section}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Stop listening, and wait for it."""
        self._server.should_exit = True
        self._thread.join(STOP_S)
        self._socket.close()
