from collections import Counter

import pytest

from cape_stream.adapters.simulated import Faults
from cape_stream.ports.log import TopicPartition, TopicSpec
from cape_stream.runtime.counting import CountingProcessor
from cape_stream.runtime.loop import Engine
from cape_stream.runtime.processor import TaskGroup, TaskId
from tests.desk import topology
from tests.unit.runtime.engine_worlds import EngineWorld

WORDS = [b"to", b"be", b"or", b"not", b"to", b"be"]


class CountingWorld(EngineWorld):
    """The engine with the other processor: it counts records by key."""

    def __init__(self) -> None:
        super().__init__(topology("T1"))
        topics = [TopicSpec(name=name, partitions=1, config={}) for name in ("in", "out", "log")]
        self.broker.create_topics(topics)

    def group(self) -> TaskGroup:
        """See `EngineWorld.group`."""
        return TaskGroup(
            name="words",
            inputs=("in",),
            changelog="log",
            make_processor=lambda task, epoch: CountingProcessor(task, "out"),
        )

    def feed(self, *keys: bytes) -> None:
        for key in keys:
            self.broker.append(TopicPartition("in", 0), key, b"")

    def counted(self) -> list[tuple[bytes | None, int]]:
        return [(record.key, int(record.value or b"")) for record in self.records("out")]

    def rows(self) -> dict[bytes | None, int]:
        rows = {record.key: record.value for record in self.records("log")}
        return {
            (key or b"")[1:]: int(value)
            for key, value in rows.items()
            if value and (key or b"").startswith(b"n")
        }


def exactly_once(*keys: bytes) -> list[tuple[bytes | None, int]]:
    counts: Counter[bytes] = Counter()
    result: list[tuple[bytes | None, int]] = []
    for key in keys:
        counts[key] += 1
        result.append((key, counts[key]))
    return result


def test_counter_counts_each_record_once() -> None:
    world = CountingWorld()
    engine = world.running()
    world.feed(*WORDS)
    world.turn(engine)

    assert world.counted() == exactly_once(*WORDS)
    assert world.rows() == Counter(WORDS)


def test_counter_counts_once_through_aborted_commits() -> None:
    world = CountingWorld()
    engine = world.running()
    for word in WORDS:
        world.faults = Faults(commit_abort=1.0)
        world.feed(word)
        world.turn(engine, 8)
        world.faults = Faults()
        world.turn(engine, 8)

    assert world.counted() == exactly_once(*WORDS)
    assert world.rows() == Counter(WORDS)


def test_counter_shows_nothing_of_a_commit_that_did_not_land() -> None:
    world = CountingWorld()
    engine = world.running()
    world.faults = Faults(commit_abort=1.0)
    world.feed(*WORDS)
    world.turn(engine)

    assert world.counted() == []
    assert world.rows() == {}


@pytest.mark.parametrize("faults", [Faults(commit_abort=1.0), Faults(commit_retry=1.0), Faults()])
def test_counter_counts_once_over_a_crash_and_a_restart(faults: Faults) -> None:
    world = CountingWorld()
    engine = world.running()
    world.feed(*WORDS[:3])
    world.turn(engine)
    world.faults = faults
    world.feed(*WORDS[3:])
    world.turn(engine)
    world.kill()
    world.faults = Faults()
    engine = world.running()
    world.turn(engine)

    assert world.counted() == exactly_once(*WORDS)


def test_counter_goes_on_from_the_changelog_when_the_table_is_lost() -> None:
    world = CountingWorld()
    engine = world.running()
    world.feed(*WORDS)
    world.turn(engine)
    world.kill()
    world.disk.lose()
    engine = world.running()
    world.feed(b"to")
    world.turn(engine)

    assert world.counted()[-1] == (b"to", 3)
    assert isinstance(engine, Engine)


def test_counter_reads_what_is_on_its_way_before_what_is_stored() -> None:
    world = CountingWorld()
    engine = world.running()
    world.commits.holds = True
    for _ in range(3):
        world.feed(b"to")
        world.turn(engine, 8)
    world.commits.release()
    world.commits.holds = False
    world.turn(engine)

    assert world.counted() == exactly_once(b"to", b"to", b"to")


def test_counter_counts_records_without_a_key_under_the_empty_key() -> None:
    processor = CountingProcessor(TaskId("words", 0), "out")
    world = CountingWorld()
    world.broker.append(TopicPartition("in", 0), None, b"")
    effects = processor.step(world.records("in"), lambda keys: [None] * len(keys), 0)

    assert [(write.key, write.value) for write in effects.committed] == [(b"", b"1")]
    assert processor.changes(0) == {b"n": b"1"}
    assert processor.changes(0) == {}


def test_counter_has_nothing_to_adopt_to_ask_or_to_wait_for() -> None:
    processor = CountingProcessor(TaskId("words", 0), "out")
    nothing = processor.resume(0)
    processor.restore(iter(()), 0)
    processor.adopt([], lambda keys: [], 0)

    assert processor.answer([], 0) == processor.undelivered([], 0) == processor.tick(0) == nothing
    assert processor.sweep([], lambda keys: [], 0) == nothing
    assert processor.next_ms() is None
    assert (processor.load(), processor.counters()) == (0, {"records": 0})
