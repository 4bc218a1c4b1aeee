"""A thousand clients that stop reading, and the memory of the process that serves them."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from cape_stream.cli import main
from cape_stream.ports.channels import Realm, Retention
from cape_stream.realtime.framing import message_body
from cape_stream.realtime.grants import new_grant, sign
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.valkey_writer import ValkeyChannelWriter
from cape_stream.roles.realtime import allow_connections
from tests.integration.realtime.kit import (
    SseClient,
    closing_clients,
    hear,
    of_type,
    wait_until,
    websocket,
)
from tests.integration.realtime.processes import Role, figures_of
from tests.integration.realtime.test_slow_readers import stopped_reader
from tests.valkey import LocalValkey

STOPPED = 1_000
READING = 3
MESSAGES = 1_200
TOGETHER = 50
"""Messages after which those who read are waited for, so that none of them is slow."""
REALM = Realm("live", "app")
BOUND_BYTES = 64 << 20
"""A copy of what waits for each would be twice as much and more."""


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    path = str(tmp_path / "keys")
    assert main(["realtime", "rotate-keys", "--keys-file", path]) == 0
    return path


@pytest.fixture
def role(valkey_server: LocalValkey, keys_file: str) -> Iterator[Role]:
    found = Role("realtime", "--keys-file", keys_file, url=valkey_server.url)
    with closing_clients():
        yield found
    found.end()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_memory_stays_bounded_and_who_reads_hears_everything(
    valkey_server: LocalValkey, keys_file: str, role: Role
) -> None:
    allow_connections(2 * STOPPED)
    now_ms = time.time_ns() // 1_000_000
    minted = new_grant(REALM, ["room"], now_ms=now_ms, life_ms=3_600_000)
    token = sign(minted, GrantKeys.from_file(keys_file))
    process = psutil.Process(role.pid)
    listeners = Listeners(role.port, token)
    with ExitStack() as stack:
        for number in range(STOPPED):
            sock = stopped_reader(role.port, token, as_websocket=bool(number % 2))
            stack.enter_context(closing(sock))
        writer = ValkeyChannelWriter(valkey_server.url, Retention(), 5_000)
        stack.enter_context(closing(writer))
        before_bytes = worst_bytes = process.memory_info().rss

        for number in range(MESSAGES):
            body = message_body("room", "message", f"{number:06}{'x' * 1_000}", 4_096)
            writer.publish(REALM, "room", body)
            if number % TOGETHER == TOGETHER - 1:
                listeners.hear(TOGETHER)
                worst_bytes = max(worst_bytes, process.memory_info().rss)

        assert worst_bytes - before_bytes < BOUND_BYTES
        wait_until(lambda: figures_of(role.port)["streams"] == 2 * READING, 60)
        figures = figures_of(role.port)
        assert figures.get("ended slow", 0) + figures.get("ended stuck", 0) == STOPPED
        told = [f"{number:06}" for number in range(MESSAGES)]
        assert listeners.heard == [told] * 2 * READING


class Listeners:
    """Some who read, half of them over WebSocket."""

    def __init__(self, port: int, token: str) -> None:
        self._readers = [SseClient(port, token) for _ in range(READING)]
        self._sockets = [websocket(port, token) for _ in range(READING)]
        self._told: list[list[str]] = [[] for _ in self._sockets]
        self._due = 0
        for reader in self._readers:
            reader.until_event("ready")
        for each in self._sockets:
            hear(each, of_type("ready"))

    def hear(self, more: int) -> None:
        self._due += more
        for reader in self._readers:
            reader.until_messages(self._due)
        for told, each in zip(self._told, self._sockets, strict=True):
            told += [hear(each, of_type("message"))["data"][:6] for _ in range(more)]

    @property
    def heard(self) -> list[list[str]]:
        """The numbers that each of them has heard."""
        return [[each["data"][:6] for each in one.messages] for one in self._readers] + self._told
