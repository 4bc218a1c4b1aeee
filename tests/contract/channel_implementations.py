"""Every implementation of `cape_stream.ports.channels`, as the contract suite sees it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from cape_stream.adapters.simulated.channels import (
    MemoryChannelFeed,
    MemoryChannelStore,
    MemoryChannelWriter,
)
from cape_stream.ports.channels import ChannelFeed, ChannelWriter, Retention
from cape_stream.realtime.valkey_feed import ValkeyChannelFeed
from cape_stream.realtime.valkey_writer import ValkeyChannelWriter
from tests.fault_proxy import FaultProxy
from tests.valkey import LocalValkey

TIMEOUT_MS = 3_000


class ChannelsUnderTest(Protocol):
    """A store of channels, and what a test does to it."""

    def writer(self, retention: Retention) -> ChannelWriter:
        """A writer; the test closes it."""
        ...

    def feed(self, retention: Retention) -> ChannelFeed:
        """A feed, made inside the running loop; the test closes it."""
        ...

    def cut(self) -> None:
        """Break every link to the store and let none be made."""
        ...

    def heal(self) -> None:
        """The opposite."""
        ...

    def lose_data(self) -> None:
        """Forget everything."""
        ...

    def spoil(self, channel: str, payload: bytes) -> None:
        """Put a foreign message where those of a channel of app `app` in `live` go."""
        ...

    def pass_time(self, duration_ms: int) -> None:
        """Let time pass for the store."""
        ...


@dataclass(frozen=True, kw_only=True)
class ChannelImplementation:
    """One implementation and what it declares."""

    open: Callable[[pytest.FixtureRequest], AbstractContextManager[ChannelsUnderTest]]
    cannot: Mapping[str, str] = field(default_factory=dict)


class ValkeyUnderTest:
    """A fresh server behind a proxy; writers go to it directly, feeds through the proxy."""

    def __init__(self, server: LocalValkey, proxy: FaultProxy) -> None:
        self._server = server
        self._proxy = proxy

    def writer(self, retention: Retention) -> ChannelWriter:
        return ValkeyChannelWriter(self._server.url, retention, TIMEOUT_MS)

    def feed(self, retention: Retention) -> ChannelFeed:
        return ValkeyChannelFeed(self._proxy.url, retention, TIMEOUT_MS)

    def cut(self) -> None:
        self._proxy.refuse()

    def heal(self) -> None:
        self._proxy.heal()

    def lose_data(self) -> None:
        self._server.ask("FLUSHALL")

    def spoil(self, channel: str, payload: bytes) -> None:
        with self._server.client() as client:
            client.publish(f"cape:rt:{{app/live}}:c:{channel}", payload)

    def pass_time(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1_000)


@contextmanager
def _valkey(request: pytest.FixtureRequest) -> Iterator[ChannelsUnderTest]:
    server = request.getfixturevalue("valkey_server")
    yield ValkeyUnderTest(server, request.getfixturevalue("fault_proxy"))


class MemoryUnderTest:
    """The twin, with a clock that a test moves."""

    def __init__(self) -> None:
        self._ahead_us = 0
        self._store = MemoryChannelStore(lambda: time.time_ns() // 1_000 + self._ahead_us)

    def writer(self, retention: Retention) -> ChannelWriter:
        self._store.retention = retention
        return MemoryChannelWriter(self._store)

    def feed(self, retention: Retention) -> ChannelFeed:
        self._store.retention = retention
        return MemoryChannelFeed(self._store)

    def cut(self) -> None:
        for feed in self._store.feeds:
            feed.cut()

    def heal(self) -> None:
        for feed in self._store.feeds:
            feed.heal()

    def lose_data(self) -> None:
        self._store.flush()

    def spoil(self, channel: str, payload: bytes) -> None:
        raise NotImplementedError

    def pass_time(self, duration_ms: int) -> None:
        self._ahead_us += duration_ms * 1_000


@contextmanager
def _memory(request: pytest.FixtureRequest) -> Iterator[ChannelsUnderTest]:
    yield MemoryUnderTest()


CHANNELS = [
    pytest.param(ChannelImplementation(open=_valkey), id="valkey"),
    pytest.param(
        ChannelImplementation(open=_memory, cannot={"strangers": "nobody else can write to it"}),
        id="memory",
    ),
]
