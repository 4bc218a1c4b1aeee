"""What the tests of the simulated log share: a listener that writes down, and a small world."""

from collections.abc import Sequence

from cape_stream.adapters.simulated import (
    CALM,
    Broker,
    BrokerSettings,
    Dice,
    Faults,
    SimLog,
    SimProcess,
    Timeline,
)
from cape_stream.ports.log import TopicPartition, TopicSpec, Watermarks

SETTINGS = BrokerSettings(
    session_timeout_ms=600, message_timeout_ms=250, transaction_timeout_ms=1_000
)


class Notebook:
    """A listener that remembers what it was told."""

    def __init__(self) -> None:
        self.owned: set[TopicPartition] = set()
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.repositions: list[tuple[TopicPartition, int, Watermarks]] = []

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("assigned", list(partitions)))
        self.owned |= set(partitions)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("revoked", list(partitions)))
        self.owned -= set(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("lost", list(partitions)))
        self.owned -= set(partitions)

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        self.repositions.append((partition, committed, kept))


class SmallWorld:
    """A timeline, a broker with topics ``pings``, ``statuses`` and ``changelog``."""

    def __init__(self, partitions: int = 4, faults: Faults = CALM, seed: int = 1) -> None:
        self.timeline = Timeline(start_ms=10_000)
        self.dice = Dice(seed, faults)
        self.broker = Broker(self.timeline, self.dice, SETTINGS)
        self.broker.create_topics(
            [
                TopicSpec(name=name, partitions=partitions, config={})
                for name in ("pings", "statuses", "changelog")
            ]
        )

    def process(self, name: str) -> tuple[SimProcess, SimLog]:
        process = SimProcess(self.timeline, name)
        return process, SimLog(self.broker, process)

    def run(self, duration_ms: int) -> None:
        self.timeline.run_until(self.timeline.now_ms + duration_ms)
