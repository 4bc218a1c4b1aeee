"""A running stream server, a conforming SSE client, and executions that publish and grant."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.routing import BaseRoute
from websockets import Subprotocol
from websockets.sync.client import ClientConnection, connect

from cape_stream.adapters.simulated.channels import (
    MemoryChannelFeed,
    MemoryChannelStore,
    MemoryChannelWriter,
)
from cape_stream.coordination.memory_tokens import MemoryHookTokens
from cape_stream.ports.channels import ChannelFeed, ChannelWriter
from cape_stream.realtime.admission import GRANT_PROTOCOL, SUBPROTOCOL
from cape_stream.realtime.client_publish import REQUEST_BYTES_MAX
from cape_stream.realtime.context import RealtimeContext
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.server import StreamServer
from cape_stream.realtime.serving import DrainingServer, listening_socket, uvicorn_server
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.realtime.valkey_feed import ValkeyChannelFeed
from cape_stream.realtime.valkey_writer import ValkeyChannelWriter

WAIT_S = 20
_LINE_END = re.compile(rb"\r\n|\n|\r")


def wait_until(condition: Callable[[], object], wait_s: float = WAIT_S) -> None:
    """Look until it is true; AssertionError if it never is."""
    give_up_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < give_up_s, "it never came true"
        time.sleep(0.01)


def settings(**changes: Any) -> RealtimeSettings:
    """Settings for tests: short times, a port of the system's choice."""
    short: dict[str, Any] = {
        "port": 0,
        "heartbeat_interval_ms": 400,
        "drain_ms": 200,
        "store_timeout_ms": 2_000,
    }
    return RealtimeSettings(**(short | changes))


class MemoryStage:
    """Everything in memory."""

    def __init__(self, kept: RealtimeSettings) -> None:
        self.store = MemoryChannelStore(lambda: time.time_ns() // 1_000, kept.retention)
        self.writer: ChannelWriter = MemoryChannelWriter(self.store)

    def feed(self) -> ChannelFeed:
        return MemoryChannelFeed(self.store)

    def cut(self) -> None:
        for feed in self.store.feeds:
            feed.cut()

    def heal(self) -> None:
        for feed in self.store.feeds:
            feed.heal()


class ValkeyStage:
    """On a server; servers may be given another address than writers."""

    def __init__(self, url: str, kept: RealtimeSettings, feed_url: str = "") -> None:
        self._url = feed_url or url
        self._kept = kept
        self.writer: ChannelWriter = ValkeyChannelWriter(url, kept.retention, 5_000)

    def feed(self) -> ChannelFeed:
        return ValkeyChannelFeed(self._url, self._kept.retention, self._kept.store_timeout_ms)


Stage = MemoryStage | ValkeyStage


class RunningServer:
    """A stream server in a thread of its own."""

    def __init__(
        self,
        stage: Stage,
        keys: GrantKeys,
        kept: RealtimeSettings,
        more_routes: Sequence[BaseRoute] = (),
        message_bytes_max: int = REQUEST_BYTES_MAX,
    ) -> None:
        self.server = StreamServer(stage.feed, keys, kept, self._now_ms, more_routes)
        self.ahead_ms = 0
        self._socket = listening_socket("127.0.0.1", kept.port)
        self.port: int = self._socket.getsockname()[1]
        self._running: DrainingServer = uvicorn_server(self.server, kept, message_bytes_max)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._running.started or not self._thread.is_alive())
        wait_until(lambda: self.server.hub.is_ready)

    def _run(self) -> None:
        self._running.run(sockets=[self._socket])

    def _now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    @property
    def counters(self) -> Any:
        return self.server.hub.counters

    def has_fanned_out(self, messages: int) -> None:
        """Wait until so many messages have been handed to whoever is there."""
        wait_until(lambda: self.counters.messages >= messages)

    def stop(self) -> None:
        self._running.should_exit = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the server does not stop"
        assert self._running.failure is None


class Installation:
    """Keys, hook tokens, a store and servers."""

    def __init__(self, stage: Stage, kept: RealtimeSettings) -> None:
        self.stage = stage
        self.settings = kept
        self.keys = GrantKeys.ephemeral()
        self.tokens = MemoryHookTokens()
        self._servers: list[RunningServer] = []

    def start(self, **changes: Any) -> RunningServer:
        kept = settings(**changes) if changes else self.settings
        server = RunningServer(self.stage, self.keys, kept)
        self._servers.append(server)
        return server

    def context(self, environment: str = "live", app: str = "app") -> RealtimeContext:
        """An execution's context."""
        token = self.tokens.mint(environment, app, "execution-1", "", 600_000)
        return RealtimeContext(token, self.tokens, self.stage.writer, self.keys, self.settings)

    def close(self) -> None:
        for server in self._servers:
            if server._thread.is_alive():
                server.stop()
        self.stage.writer.close()


@contextmanager
def installation(url: str = "", feed_url: str = "", **changes: Any) -> Iterator[Installation]:
    """Without a URL everything is in memory."""
    kept = settings(**changes)
    stage: Stage = ValkeyStage(url, kept, feed_url) if url else MemoryStage(kept)
    found = Installation(stage, kept)
    with closing(found), closing_clients():
        yield found


@contextmanager
def closing_clients() -> Iterator[None]:
    """Close what clients the block has opened."""
    try:
        yield
    finally:
        while OPEN:
            OPEN.pop().close()


OPEN: list[Closable] = []
"""Clients that are closed with their installation."""


class Closable(Protocol):
    """A client of either sort."""

    def close(self) -> None:
        """Leave; harmless when it has left."""
        ...


@dataclass
class Event:
    """One event as a browser dispatches it."""

    name: str
    data: str
    id: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class SseClient:
    """Reads a stream as the specification of server-sent events says."""

    port: int
    token: str
    cursor: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    in_address: bool = False

    def __post_init__(self) -> None:
        OPEN.append(self)
        self.events: list[Event] = []
        self.messages: list[Any] = []
        self.comments = 0
        self.retry_ms = 0
        self.last_id = self.cursor
        self.is_over = False
        self._left = b""
        self._name, self._data, self._id = "", list[str](), self.cursor
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        headers = dict(self.headers)
        address = "/v1/stream"
        if self.in_address:
            address += f"?grant={self.token}"
        else:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.cursor:
            headers["Last-Event-ID"] = self.cursor
        self._connection.request("GET", address, headers=headers)
        self.socket: socket.socket = self._connection.sock
        self.response = self._connection.getresponse()
        self.status = self.response.status

    @property
    def error(self) -> str:
        found: str = json.loads(self.response.read())["error"]
        return found

    def until(self, condition: Callable[[], object]) -> SseClient:
        """Read until it is true or the stream is over."""
        give_up_s = time.monotonic() + WAIT_S
        while not condition() and not self.is_over:
            assert time.monotonic() < give_up_s, f"never heard; {self.events[-3:]}"
            self._read()
        return self

    def until_event(self, name: str) -> Event:
        self.until(lambda: any(each.name == name for each in self.events))
        found = [each for each in self.events if each.name == name]
        assert found, f"the stream ended without {name}: {self.names}"
        return found[0]

    def until_comments(self, more: int) -> SseClient:
        before = self.comments
        return self.until(lambda: self.comments >= before + more)

    def until_messages(self, count: int) -> list[Any]:
        self.until(lambda: len(self.messages) >= count)
        return self.messages

    def until_over(self) -> SseClient:
        return self.until(lambda: self.is_over)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.events]

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def _read(self) -> None:
        try:
            found = self.response.read1(65_536)
        except TimeoutError:
            return
        except (http.client.IncompleteRead, ConnectionError):
            found = b""
        if not found:
            self.is_over = True
        self._left += found
        while True:
            match = _LINE_END.search(self._left)
            # A CR at the end may be half of a line end.
            if match is None or (match.end() == len(self._left) and match.group() == b"\r"):
                return
            line, self._left = self._left[: match.start()], self._left[match.end() :]
            self._take(line.decode())

    def _take(self, line: str) -> None:
        if not line:
            self._dispatch()
        elif line.startswith(":"):
            self.comments += 1
        else:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._name = value
            elif name == "data":
                self._data.append(value)
            elif name == "id" and "\0" not in value:
                self._id = value
            elif name == "retry" and value.isdigit():
                self.retry_ms = int(value)

    def _dispatch(self) -> None:
        self.last_id = self._id
        if self._data:
            event = Event(self._name or "message", "\n".join(self._data), self._id)
            self.events.append(event)
            if event.name == "message":
                self.messages.append(event.json)
        self._name, self._data = "", []


def websocket(port: int, token: str, cursor: str = "", **options: Any) -> ClientConnection:
    """A WebSocket as our browser client opens it."""
    query = f"?last_event_id={cursor}" if cursor else ""
    opening = connect(
        f"ws://127.0.0.1:{port}/v1/stream{query}",
        subprotocols=[Subprotocol(SUBPROTOCOL), Subprotocol(f"{GRANT_PROTOCOL}{token}")],
        compression=None,
        proxy=None,
        **options,
    )
    left = ExitStack()
    found: ClientConnection = left.enter_context(opening)
    OPEN.append(left)
    return found


def hear(socket: ClientConnection, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The next message of a WebSocket that is wanted."""
    while True:
        found: dict[str, Any] = json.loads(socket.recv(timeout=WAIT_S))
        if wanted(found):
            return found


def of_type(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda found: found["type"] == name
