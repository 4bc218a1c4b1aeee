from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest

from cape_stream.adapters.simulated import MemoryTable, SimClock, SimLog
from cape_stream.errors import Corrupt
from cape_stream.ports.log import Record, TopicPartition, TopicSpec
from cape_stream.runtime import recovery
from cape_stream.runtime.counting import CountingProcessor
from cape_stream.runtime.processor import RowReader, TaskGroup, TaskId
from cape_stream.runtime.recovery import (
    DAY_MS,
    LOCAL_AGE_MAX_MS,
    META_KEY,
    Recovery,
    RestoreCancelledError,
    Restored,
    TaskMeta,
)

TASK = TaskId("words", 0)
LOG = TopicPartition("log", 0)


class Witness(CountingProcessor):
    """Remembers what it was restored from."""

    def __init__(self, task: TaskId, epoch: int) -> None:
        super().__init__(task, "out")
        self.epoch = epoch
        self.rows: dict[bytes, bytes] = {}
        self.adopted: list[bytes | None] = []

    def restore(self, rows: Iterator[tuple[bytes, bytes]], now_ms: int) -> None:
        """See `Processor.restore`."""
        self.rows = dict(rows)

    def adopt(self, outputs: Sequence[Record], read_rows: RowReader, now_ms: int) -> int:
        """See `Processor.adopt`; an output that is a number tells its epoch."""
        values = [record.value or b"" for record in outputs]
        self.adopted += values
        return max((int(value) for value in values if value.isdigit()), default=0)


class Desk:
    """A changelog, an output topic, a table, and the recovery over them."""

    def __init__(self) -> None:
        self.log = SimLog()
        self.broker = self.log.broker
        topics = [TopicSpec(name=name, partitions=1, config={}) for name in ("in", "log", "out")]
        self.broker.create_topics(topics)
        self.table = MemoryTable()
        self.group = TaskGroup(
            name="words",
            inputs=("in",),
            changelog="log",
            make_processor=Witness,
            replayed_first=("in",),
            outputs=("out",),
        )

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        for key, value in rows.items():
            self.broker.append(LOG, key, value)

    def produce(self, *values: bytes) -> None:
        for value in values:
            self.broker.append(TopicPartition("out", 0), b"k", value)

    def restore(self) -> tuple[Restored, Witness]:
        clock = SimClock(self.broker.timeline)
        restored = Recovery(self.log, self.table, clock).restore(self.group, TASK, lambda: True)
        assert isinstance(restored.processor, Witness)
        return restored, restored.processor

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.table.scan("words-0", b""))


def test_meta_goes_through_its_row() -> None:
    meta = TaskMeta(7, {"out": 2**40})

    assert TaskMeta.decode(meta.encode()) == meta
    assert TaskMeta.decode(None) == TaskMeta(0, {})


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"epoch": "x", "bounds": {}}', b"\xff"])
def test_meta_that_is_none_is_corrupt(value: bytes) -> None:
    with pytest.raises(Corrupt, match="engine's own row"):
        TaskMeta.decode(value)


def test_restore_rebuilds_a_table_that_is_older_than_the_tombstones_are_kept() -> None:
    desk = Desk()
    desk.write({b"a1": b"x", META_KEY: TaskMeta(4, {}, 1).encode()})
    desk.restore()
    desk.broker.timeline.run_until(LOCAL_AGE_MAX_MS + DAY_MS)
    desk.table.write("words-0", {b"a9": b"its tombstone was compacted away"}, 2)
    restored, witness = desk.restore()

    assert restored.repaired is not None
    assert "days old" in restored.repaired
    assert witness.rows == {b"a1": b"x"}


def test_restore_of_a_task_nobody_owned_is_empty_and_of_epoch_one() -> None:
    restored, witness = Desk().restore()

    assert (witness.epoch, restored.epoch, restored.rows_replayed) == (1, 1, 0)
    assert (witness.rows, witness.adopted) == ({}, [])
    assert restored.repaired is None


def test_restore_replays_the_changelog_into_the_table() -> None:
    desk = Desk()
    desk.write({b"a1": b"x", b"a2": b"y", b"c1": b"z"})
    desk.write({b"a1": None, b"a2": b"newer", META_KEY: TaskMeta(4).encode()})
    restored, witness = desk.restore()

    assert witness.rows == {b"a2": b"newer"}
    assert desk.rows()[b"c1"] == b"z"
    assert (witness.epoch, restored.rows_replayed) == (5, 6)
    assert desk.table.position("words-0") == 6


def test_restore_replays_only_the_tail_when_the_table_is_there() -> None:
    desk = Desk()
    desk.write({b"a1": b"x", b"a2": b"y"})
    desk.restore()
    desk.write({b"a2": b"newer"})
    restored, witness = desk.restore()

    assert restored.rows_replayed == 1
    assert witness.rows == {b"a1": b"x", b"a2": b"newer"}


def test_restore_of_an_emptied_changelog_ends_at_once() -> None:
    """B03: low = high = 100, nothing local."""
    desk = Desk()
    desk.write({b"a%d" % number: b"x" for number in range(100)})
    desk.broker.delete_records("log", 0, 100)
    restored, witness = desk.restore()

    assert (restored.rows_replayed, witness.rows, restored.repaired) == (0, {}, None)
    assert desk.table.position("words-0") == 100


def test_restore_wipes_a_table_that_the_changelog_no_longer_reaches() -> None:
    """B05: rows that exist only in the old copy must not live on."""
    desk = Desk()
    desk.write({b"a%d" % number: b"old" for number in range(5)})
    desk.restore()
    desk.write({b"a%d" % number: b"new" for number in range(100, 120)})
    desk.broker.delete_records("log", 0, 20)
    restored, witness = desk.restore()

    assert sorted(witness.rows) == [b"a%d" % number for number in range(115, 120)]
    assert restored.repaired == (
        "words-0: local table stands at offset 5 of log[0], which keeps 20 to 25: rebuilding it"
    )
    assert desk.table.position("words-0") == 25
    assert desk.restore()[0].repaired is None


def test_restore_wipes_a_table_that_is_ahead_of_a_recreated_changelog() -> None:
    desk = Desk()
    desk.write({b"a%d" % number: b"old" for number in range(9)})
    desk.restore()
    desk.broker.recreate("log")
    desk.write({b"b": b"new"})
    restored, witness = desk.restore()

    assert witness.rows == {}
    assert desk.rows() == {b"b": b"new"}
    assert "stands at offset 9" in str(restored.repaired)


def test_restore_leaves_the_rows_of_other_tasks_alone() -> None:
    desk = Desk()
    desk.table.write("words-1", {b"a": b"1"}, 999)
    desk.table.write("words-0", {b"a": b"0"}, 999)
    desk.restore()

    assert dict(desk.table.scan("words-1", b"")) == {b"a": b"1"}
    assert desk.rows() == {}


def test_restore_skips_records_without_a_key() -> None:
    desk = Desk()
    desk.broker.append(LOG, None, b"junk")
    desk.write({b"a": b"1"})

    assert desk.restore()[1].rows == {b"a": b"1"}


def test_restore_shows_the_outputs_from_the_stored_bound_on() -> None:
    desk = Desk()
    desk.produce(b"0", b"1", b"2", b"3")
    desk.write({META_KEY: TaskMeta(1, {"out": 2}).encode()})
    restored, witness = desk.restore()

    assert witness.adopted == [b"2", b"3"]
    assert (restored.bounds, restored.adopted_from) == ({"out": 4}, 2)


@pytest.mark.parametrize(("bound", "shown"), [(1, [b"2", b"3"]), (99, [])])
def test_restore_takes_a_bound_outside_of_what_is_kept(bound: int, shown: list[bytes]) -> None:
    desk = Desk()
    desk.produce(b"0", b"1", b"2", b"3")
    desk.broker.delete_records("out", 0, 2)
    desk.write({META_KEY: TaskMeta(1, {"out": bound}).encode()})

    assert desk.restore()[1].adopted == shown


def test_restore_shows_all_outputs_of_a_topic_without_a_bound() -> None:
    desk = Desk()
    desk.produce(b"0", b"1")

    assert desk.restore()[1].adopted == [b"0", b"1"]


def test_restore_tells_where_the_inputs_to_replay_end() -> None:
    desk = Desk()
    desk.broker.append(TopicPartition("in", 0), b"k", b"v")

    assert desk.restore()[0].replay_ends == {TopicPartition("in", 0): 1}


def test_restore_in_bulk_gives_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: dict[bytes, bytes | None] = {b"a%d" % number: b"x" for number in range(1_200)}
    loaded: list[int] = []
    plain, bulk = Desk(), Desk()

    def load(task: str, batches: Iterable[Mapping[bytes, bytes | None]]) -> None:
        for batch in batches:
            loaded.append(len(batch))
            bulk.table.write(task, batch, 0)

    for desk in (plain, bulk):
        desk.write(rows)
        desk.write({b"a1": None, b"a2": b"newer"})
    plain.restore()
    monkeypatch.setattr(recovery, "BULK_RECORDS", 100)
    monkeypatch.setattr(bulk.table, "load", load)
    bulk.restore()

    assert sum(loaded) == 1_202
    assert bulk.rows() == plain.rows()
    assert bulk.table.position("words-0") == plain.table.position("words-0") == 1_202


def test_restore_stops_when_nobody_wants_it_any_more() -> None:
    desk = Desk()
    desk.write({b"a": b"1"})
    recovering = Recovery(desk.log, desk.table, SimClock(desk.broker.timeline))

    with pytest.raises(RestoreCancelledError):
        recovering.restore(desk.group, TASK, lambda: False)
    assert desk.table.position("words-0") is None


def test_epochs_go_on_from_the_outputs_when_the_changelog_has_lost_them() -> None:
    """Jobs are named by the epoch; a name that comes again would stand for two jobs."""
    desk = Desk()
    desk.write({META_KEY: TaskMeta(epoch=2).encode(), b"a": b"row"})
    desk.produce(b"1", b"7", b"5")
    restored, witness = desk.restore()

    assert (restored.epoch, witness.epoch) == (8, 8)
    assert witness.adopted == [b"1", b"7", b"5"]
    assert witness.rows == {b"a": b"row"}
    assert restored.repaired is not None
    assert "epoch 7" in restored.repaired


def test_epochs_go_on_from_the_changelog_when_it_has_lost_nothing() -> None:
    desk = Desk()
    desk.write({META_KEY: TaskMeta(epoch=2).encode()})
    desk.produce(b"1", b"2")
    restored, witness = desk.restore()

    assert (restored.epoch, witness.epoch, restored.repaired) == (3, 3, None)
