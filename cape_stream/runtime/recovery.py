"""Bringing a task's state back: the table from the changelog, the issued outputs from their topics.

Runs in the background and touches nothing but the table, which only this task's rows are
written in, and its own reader. Steps:

1. the table is brought from its own position to the end of the changelog; if it cannot be trusted
   (the changelog no longer reaches back to it, or ends before it) it is wiped and rebuilt
2. the engine's own row tells the last epoch and, per output topic, from where on outputs may be
   unaccounted for
3. a processor of the next epoch gets the active rows and those outputs
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cape_stream.errors import Corrupt
from cape_stream.ports.clock import Clock
from cape_stream.ports.log import Log, Reader, Record, TopicPartition, Watermarks
from cape_stream.ports.table import Table
from cape_stream.runtime.processor import Processor, TaskGroup, TaskId

META_KEY = b"\x00meta"
"""The engine's own row of a task; processors' row keys do not begin with a zero byte."""
BULK_RECORDS = 50_000
"""From this many changelog offsets on the table is loaded in bulk."""
DAY_MS = 86_400_000
LOCAL_AGE_MAX_MS = 3 * DAY_MS
"""A local table that nobody has written for longer is rebuilt: compaction drops tombstones after
seven days (`topics/changelog.toml`), and with them the news of rows that ended."""


class RestoreCancelledError(Exception):
    """The partition left us while it was being restored."""


@dataclass(slots=True)
class TaskMeta:
    """What the engine itself remembers of a task."""

    epoch: int = 0
    """Epoch of the last owner that committed."""
    bounds: dict[str, int] = field(default_factory=dict)
    """Output topic → offset from which on outputs may be unaccounted for in the rows."""
    written_ms: int = field(default=0, compare=False)
    """When this was taken, Unix milliseconds; 0 in rows of releases that did not say."""

    def encode(self) -> bytes:
        """As a row value."""
        fields = {"epoch": self.epoch, "bounds": self.bounds, "written_ms": self.written_ms}
        return json.dumps(fields).encode()

    @staticmethod
    def decode(value: bytes | None) -> "TaskMeta":
        """From a row value; an absent one is a task nobody ever owned. Raises Corrupt."""
        if value is None:
            return TaskMeta()
        try:
            fields = json.loads(value)
            bounds = {str(topic): int(offset) for topic, offset in fields["bounds"].items()}
            return TaskMeta(int(fields["epoch"]), bounds, int(fields.get("written_ms", 0)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Corrupt(f"the engine's own row does not decode: {error!r}") from error


@dataclass(slots=True)
class Restored:
    """A task that is ready to claim its partition."""

    processor: Processor
    epoch: int
    bounds: dict[str, int]
    replay_ends: dict[TopicPartition, int]
    rows_replayed: int
    adopted_from: int
    """Output records looked at."""
    repaired: str | None
    """What was wrong with the local table, if it had to be rebuilt; one line for people."""
    written_ms: int
    """When the state was stored, by the clock of the process that did; 0 if nobody ever did."""


class Recovery:
    """Restores tasks; safe to run for several at a time."""

    def __init__(self, log: Log, table: Table, clock: Clock) -> None:
        self._log = log
        self._table = table
        self._clock = clock

    def restore(self, group: TaskGroup, task: TaskId, wanted: Callable[[], bool]) -> Restored:
        """Run all steps for one task.

        Args:
            wanted: asked now and then; once it says False the work stops.

        Raises:
            RestoreCancelledError: ``wanted`` said False.
            Retry: the log is away; start again later.
        """
        reader = self._log.reader()
        try:
            replayed, repaired = self._replay(reader, group, task, wanted)
            meta = TaskMeta.decode(self._table.get_many(str(task), [META_KEY])[0])
            ends = {
                TopicPartition(topic, task.partition): reader.watermarks(
                    TopicPartition(topic, task.partition)
                ).high
                for topic in group.replayed_first
            }
            epoch = meta.epoch + 1
            processor, bounds, adopted, newest = self._revive(reader, group, task, meta, epoch)
            if newest >= epoch:
                repaired = (
                    f"{task}: there are outputs of epoch {newest}, its changelog knows of epoch"
                    f" {meta.epoch} only and must have lost records: going on from what is left"
                )
                epoch = newest + 1
                processor, bounds, adopted, _ = self._revive(reader, group, task, meta, epoch)
            return Restored(
                processor, epoch, bounds, ends, replayed, adopted, repaired, meta.written_ms
            )
        finally:
            reader.close()

    def _revive(
        self, reader: Reader, group: TaskGroup, task: TaskId, meta: TaskMeta, epoch: int
    ) -> tuple[Processor, dict[str, int], int, int]:
        """A processor with all state there is; bounds, outputs looked at, their newest epoch."""
        processor = group.make_processor(task, epoch)
        now_ms = self._clock.now_ms()
        processor.restore(self._table.scan(str(task), group.restored_prefix), now_ms)
        return processor, *self._adopt(reader, group, task, meta, processor)

    def _replay(
        self, reader: Reader, group: TaskGroup, task: TaskId, wanted: Callable[[], bool]
    ) -> tuple[int, str | None]:
        """Bring the table to the end of the changelog; how many records, and what was repaired."""
        name = str(task)
        changelog = TopicPartition(group.changelog, task.partition)
        kept = reader.watermarks(changelog)
        start = self._table.position(name)
        repaired = None if start is None else self._fault(name, start, changelog, kept)
        if repaired is not None:
            start = None
        if start is None:
            self._table.clear(name)
            start = kept.low
        count = 0

        def batches() -> Iterator[dict[bytes, bytes | None]]:
            nonlocal count
            for records in reader.read(changelog, start, kept.high):
                if not wanted():
                    raise RestoreCancelledError(name)
                count += len(records)
                yield {record.key: record.value for record in records if record.key is not None}

        if kept.high - start > BULK_RECORDS:
            self._table.load(name, batches())
        else:
            for rows in batches():
                self._table.write(name, rows, start)
        self._table.write(name, {}, kept.high)
        return count, repaired

    def _fault(
        self, name: str, start: int, changelog: TopicPartition, kept: Watermarks
    ) -> str | None:
        """Why the local table cannot be brought up to date, or None."""
        where = f"offset {start} of {changelog.topic}[{changelog.partition}]"
        if not kept.low <= start <= kept.high:
            return (
                f"{name}: local table stands at {where}, which keeps {kept.low} to {kept.high}:"
                " rebuilding it"
            )
        meta = TaskMeta.decode(self._table.get_many(name, [META_KEY])[0])
        age_ms = self._clock.now_ms() - meta.written_ms
        if meta.written_ms and age_ms > LOCAL_AGE_MAX_MS:
            return f"{name}: local table at {where} is {age_ms // DAY_MS} days old: rebuilding it"
        return None

    def _adopt(
        self,
        reader: Reader,
        group: TaskGroup,
        task: TaskId,
        meta: TaskMeta,
        processor: Processor,
    ) -> tuple[dict[str, int], int, int]:
        """Show the processor what was issued and may not be accounted for; the new bounds, how
        much that was, and the newest epoch in it."""
        bounds: dict[str, int] = {}
        looked_at = newest = 0
        name = str(task)

        def read_rows(keys: Sequence[bytes]) -> list[bytes | None]:
            return self._table.get_many(name, keys)

        for topic in group.outputs:
            partition = TopicPartition(topic, task.partition)
            kept = reader.watermarks(partition)
            start = min(max(meta.bounds.get(topic, kept.low), kept.low), kept.high)
            records: list[Record] = []
            for batch in reader.read(partition, start, kept.high):
                records.extend(batch)
            newest = max(newest, processor.adopt(records, read_rows, self._clock.now_ms()))
            looked_at += len(records)
            bounds[topic] = kept.high
        return bounds, looked_at, newest
