"""Every implementation of `cape_stream.ports.log.Log`, as the contract suite sees it.

To add one: write a class with the methods of `LogUnderTest`, and append a `LogImplementation` to
`LOGS` with a context manager that yields it (``marks=pytest.mark.kafka`` for a real broker; the
context manager gets the pytest request, for ``request.getfixturevalue("kafka_bootstrap")``). Topics
and groups have names of their own in every test, so all tests may share one cluster.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Protocol

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from cape_stream.adapters.embedded import EmbeddedLog, EmbeddedSettings
from cape_stream.adapters.kafka import GroupProtocol, KafkaLog, KafkaSettings
from cape_stream.adapters.simulated import Broker, SimLog
from cape_stream.ports.log import Log, Producer, TopicPartition


class LogUnderTest(Protocol):
    """A log, and what a test does to it behind the back of those who use it."""

    @property
    def log(self) -> Log:
        """The log as it is open now."""
        ...

    def reopen(self) -> None:
        """Close `log` and put another on the same data in its place."""
        ...

    def truncate(self, partition: TopicPartition, low: int) -> None:
        """Have retention delete what is below ``low``; returns when the low watermark shows it."""
        ...

    def pass_session_timeout(self, meanwhile: Callable[[], None]) -> None:
        """Let so much time pass that the group puts out every member that was not polled.

        ``meanwhile`` polls the members that shall stay; it is called again and again. Needs
        "silence".
        """
        ...

    def stalled_producer(self) -> Producer:
        """A producer that gets no answer for now and whose queue holds at most 1,000 records.

        Needs "full queue".
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LogImplementation:
    """One implementation and what it declares."""

    open: Callable[[pytest.FixtureRequest, Path], AbstractContextManager[LogUnderTest]]
    cannot: Mapping[str, str] = field(default_factory=dict)


class EmbeddedUnderTest:
    """An embedded log whose clock the test moves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now_ms = 1_700_000_000_000
        self.log: EmbeddedLog = self._opened()

    def _opened(self) -> EmbeddedLog:
        return EmbeddedLog(self._path, EmbeddedSettings(), now_ms=lambda: self._now_ms)

    def reopen(self) -> None:
        self.log.close()
        self.log = self._opened()

    def truncate(self, partition: TopicPartition, low: int) -> None:
        self.log.delete_records(partition, low)

    def pass_session_timeout(self, meanwhile: Callable[[], None]) -> None:
        self._now_ms += self.log.session_timeout_ms + 1
        meanwhile()
        self.log.housekeep()

    def stalled_producer(self) -> Producer:
        raise NotImplementedError


@contextmanager
def _embedded(request: pytest.FixtureRequest, path: Path) -> Iterator[LogUnderTest]:
    under_test = EmbeddedUnderTest(path / "log")
    yield under_test
    under_test.log.close()


class KafkaUnderTest:
    """A Kafka log on the broker that all tests share."""

    def __init__(self, bootstrap: str, protocol: GroupProtocol) -> None:
        self._settings = KafkaSettings(
            bootstrap_servers=bootstrap, group_protocol=protocol, max_poll_interval_ms=6_000
        )
        self._admin = AdminClient(self._settings.connection())
        self.log: KafkaLog = KafkaLog(self._settings)

    def reopen(self) -> None:
        self.log.close()
        self.log = KafkaLog(self._settings)

    def truncate(self, partition: TopicPartition, low: int) -> None:
        for deleted in self._admin.delete_records([KafkaPartition(*partition, low)]).values():
            deleted.result()

    def pass_session_timeout(self, meanwhile: Callable[[], None]) -> None:
        # The client sends heartbeats by itself until the time between polls is over.
        until_s = monotonic() + self._settings.max_poll_interval_ms / 1_000 + 1
        while monotonic() < until_s:
            meanwhile()

    def stalled_producer(self) -> Producer:
        nobody = KafkaSettings(bootstrap_servers="127.0.0.1:1", queue_records_max=1_000)
        return KafkaLog(nobody).producer()


def _kafka(
    protocol: GroupProtocol,
) -> Callable[[pytest.FixtureRequest, Path], AbstractContextManager[LogUnderTest]]:
    @contextmanager
    def opened(request: pytest.FixtureRequest, path: Path) -> Iterator[LogUnderTest]:
        under_test = KafkaUnderTest(request.getfixturevalue("kafka_bootstrap"), protocol)
        yield under_test
        under_test.log.close()

    return opened


class SimulatedUnderTest:
    """The twin in memory, on a timeline that only the test moves."""

    def __init__(self) -> None:
        self._broker = Broker()
        self.log: SimLog = SimLog(self._broker)

    def reopen(self) -> None:
        self.log.close()
        self.log = SimLog(self._broker)

    def truncate(self, partition: TopicPartition, low: int) -> None:
        self._broker.delete_records(*partition, low)

    def pass_session_timeout(self, meanwhile: Callable[[], None]) -> None:
        timeline = self._broker.timeline
        timeline.run_until(timeline.now_ms + self.log.session_timeout_ms + 1)
        meanwhile()

    def stalled_producer(self) -> Producer:
        raise NotImplementedError


@contextmanager
def _simulated(request: pytest.FixtureRequest, path: Path) -> Iterator[LogUnderTest]:
    yield SimulatedUnderTest()


LOGS = [
    pytest.param(
        LogImplementation(
            open=_embedded,
            cannot={"full queue": "send writes a full buffer itself, so it is never refused"},
        ),
        id="embedded",
    ),
    pytest.param(
        LogImplementation(
            open=_simulated,
            cannot={
                "full queue": "a plain twin answers at once; worlds draw full queues",
                "waiting poll": "outside a fiber of a world nothing waits",
                "proof of one claim": "a seat is not renewed by a partition that comes back",
            },
        ),
        id="simulated",
    ),
    pytest.param(LogImplementation(open=_kafka("consumer")), id="kafka", marks=pytest.mark.kafka),
    pytest.param(
        LogImplementation(
            open=_kafka("classic"),
            cannot={"incremental moves": "its only co-partitioning assignor, range, is eager"},
        ),
        id="kafka-classic",
        marks=pytest.mark.kafka,
    ),
]
