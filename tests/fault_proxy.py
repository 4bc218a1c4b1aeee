"""A TCP proxy on 127.0.0.1 that misbehaves on demand: cuts, delays, freezes, reorders, forgets.

Bytes of one connection never overtake each other, as in TCP; *reordering* is between connections:
hold back what the server says to those that match, and let the others pass.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 65_536
TICK_S = 0.02


class _Link:
    """One connection through the proxy: two sockets, two threads."""

    def __init__(self, proxy: FaultProxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy = proxy
        self._near, self._far = near, far
        self.said = b""
        """The first bytes the client said, to tell links apart."""
        self.is_closed = False
        self._threads = [
            threading.Thread(target=self._to_server, daemon=True),
            threading.Thread(target=self._to_client, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self.is_closed = True
        for each in (self._near, self._far):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        self.close()
        for thread in self._threads:
            thread.join(10)
        self._near.close()
        self._far.close()

    def _to_server(self) -> None:
        with suppress(OSError):
            while data := self._near.recv(CHUNK_BYTES):
                if len(self.said) < CHUNK_BYTES:
                    self.said += data
                self._proxy.pace(self)
                self._far.sendall(data)
        self.close()

    def _to_client(self) -> None:
        with suppress(OSError):
            while data := self._far.recv(CHUNK_BYTES):
                self._proxy.pace(self)
                while not self.is_closed and self._proxy.holds(self):
                    self._proxy.held_back += 1
                    time.sleep(TICK_S)
                if self._proxy.takes_reply(data):
                    break
                self._near.sendall(data)
        self.close()


class FaultProxy:
    """Stands before a server on ``port``; give clients `url` or `self.port`.

    Args:
        port: of the server, on 127.0.0.1.
        tls: ends TLS here, where the server itself speaks none.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._server_port = port
        self._tls = tls
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._refuses = False
        self._frozen: bytes | None = None
        self._held: bytes | None = None
        self._delay_s = 0.0
        self._replies_to_lose = 0
        self.held_back = 0
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TICK_S * 5)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self.heal()
        self._thread.join(10)
        self._listener.close()
        for link in self._links:
            link.join()

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}/0"

    def cut(self, *, saying: bytes = b"") -> int:
        """Close the links whose client said that; new ones may come. Returns how many."""
        found = [link for link in self._open() if saying in link.said]
        for link in found:
            link.close()
        return len(found)

    def refuse(self) -> None:
        """Close all links and take no new ones, as if the server were gone."""
        self._refuses = True
        self.cut()

    def freeze(self, *, saying: bytes = b"") -> None:
        """Pass nothing on, but keep the links open: the half-open connection."""
        self._frozen = saying

    def hold_replies(self, *, saying: bytes = b"") -> None:
        """Hold back what the server says to those links, while others overtake them."""
        self._held = saying

    def is_holding(self) -> bool:
        """Tell whether something is being held back, or was since the start."""
        return self.held_back > 0

    def delay(self, delay_ms: int) -> None:
        """Let everything pass, this much later each way."""
        self._delay_s = delay_ms / 1_000

    def lose_replies(self, count: int) -> None:
        """Carry out the next ``count`` requests, but cut their links before the reply."""
        self._replies_to_lose = count

    def heal(self) -> None:
        """Misbehave no more; what was held is passed on."""
        self._refuses, self._frozen, self._held = False, None, None
        self._delay_s, self._replies_to_lose = 0.0, 0

    def move(self, port: int) -> None:
        """Lead new links to another server, as a name that is moved after a failover."""
        self._server_port = port
        self.cut()

    def pace(self, link: _Link) -> None:
        """Wait as long as this link is to be slow."""
        if self._delay_s:
            time.sleep(self._delay_s)
        while not link.is_closed and self._frozen is not None and self._frozen in link.said:
            time.sleep(TICK_S)

    def holds(self, link: _Link) -> bool:
        held = self._held
        return held is not None and held in link.said

    def takes_reply(self, reply: bytes) -> bool:
        # A script that the server did not know was not carried out.
        if reply.startswith(b"-NOSCRIPT"):
            return False
        with self._lock:
            if self._replies_to_lose == 0:
                return False
            self._replies_to_lose -= 1
            return True

    def _open(self) -> list[_Link]:
        with self._lock:
            return [link for link in self._links if not link.is_closed]

    def _serve(self) -> None:
        while not self._is_closed:
            with suppress(TimeoutError, OSError):
                near, _ = self._listener.accept()
                self._accept(near)

    def _accept(self, near: socket.socket) -> None:
        near.settimeout(None)
        if self._refuses:
            near.close()
            return
        try:
            if self._tls is not None:
                near.settimeout(5)
                near = self._tls.wrap_socket(near, server_side=True)
                near.settimeout(None)
            far = socket.create_connection(("127.0.0.1", self._server_port), 5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            self._links.append(_Link(self, near, far))
