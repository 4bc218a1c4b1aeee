"""What the engine runs: a `Processor` decides for one task, without I/O."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.log import FailedSend, Record, Write
from cape_stream.ports.source import EventSource

RowReader = Callable[[Sequence[bytes]], Sequence[bytes | None]]
"""Stored values of some row keys, in their order; what is not stored is None."""


class TaskId(NamedTuple):
    """Names a task: one partition of one group of topics (for the dispatcher: of one domain)."""

    group: str
    partition: int

    def __str__(self) -> str:
        return f"{self.group}-{self.partition}"


@dataclass(slots=True)
class Effects:
    """What a step asks for, in the order in which it is carried out."""

    outputs: list[Write] = field(default_factory=list)
    """First: leave at once. A commit that holds the state which made them waits until the log
    has them; what the client gives up comes back through `Processor.undelivered`."""
    committed: list[Write] = field(default_factory=list)
    """With the next commit, atomically with the state: dead letters, exactly-once outputs."""
    sweep: bool = False
    """Then: look through the stored rows soon, as if a sweep were due."""
    queries: list[EventQuery] = field(default_factory=list)
    """Then: ask the source. Each answer comes back through `Processor.answer`."""


class Processor(Protocol):
    """Decides for one task. Row keys must not begin with a zero byte; the engine's own rows do.

    Calls come in this order: `restore`, `adopt` (both may be empty), `catch_up` any number of
    times, `resume` once, then the rest in any order. `changes` may come between any two.
    """

    def restore(self, rows: Iterator[tuple[bytes, bytes]], now_ms: int) -> None:
        """The stored rows under `TaskGroup.restored_prefix`."""
        ...

    def adopt(self, outputs: Sequence[Record], read_rows: RowReader, now_ms: int) -> int:
        """Outputs that are in the log but may not be accounted for in the rows.

        Returns:
            The newest epoch that made one of them; 0 if none tells. It is ours or a later one only
            when the changelog was lost: then the task begins again with an epoch that is newer
            still, for outputs may be named by it.
        """
        ...

    def catch_up(self, records: Sequence[Record], read_rows: RowReader, now_ms: int) -> Effects:
        """Records of `TaskGroup.replayed_first`, read before anything may be issued."""
        ...

    def resume(self, now_ms: int) -> Effects:
        """Everything that was there at the start is read: go on."""
        ...

    def step(self, records: Sequence[Record], read_rows: RowReader, now_ms: int) -> Effects:
        """New records, in offset order per topic."""
        ...

    def answer(self, answers: Sequence[EventPage | QueryFault], now_ms: int) -> Effects:
        """Answers of the source."""
        ...

    def undelivered(self, failed: Sequence[FailedSend], now_ms: int) -> Effects:
        """Outputs the client gave up; the log may have one all the same."""
        ...

    def tick(self, now_ms: int) -> Effects:
        """Time has passed, at least to what `next_ms` said."""
        ...

    def next_ms(self) -> int | None:
        """When `tick` has something to do; None: not before another input."""
        ...

    def sweep(
        self, rows: Iterable[tuple[bytes, bytes]], read_rows: RowReader, now_ms: int
    ) -> Effects:
        """Some stored rows under `TaskGroup.swept_prefix`, for work that was forgotten.

        They may be older than what ``read_rows`` tells: a long scan shows the rows of its begin,
        and a commit may be on its way.
        """
        ...

    def wake(self, keys: Sequence[bytes], read_rows: RowReader, now_ms: int) -> Effects:
        """Names whose time has come in the index under `TaskGroup.due_prefix`. They may be older
        than what ``read_rows`` tells, and may come twice."""
        ...

    def changes(self, now_ms: int) -> dict[bytes, bytes | None]:
        """Rows that changed since the last call, newest value only; None deletes."""
        ...

    def load(self) -> int:
        """How much is in memory, in units of `EngineSettings.load_max`."""
        ...

    def counters(self) -> Mapping[str, int]:
        """What has happened so far, for metrics."""
        ...


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskGroup:
    """A set of co-partitioned topics and the processor that runs on each partition of them."""

    name: str
    inputs: tuple[str, ...]
    """Topics read; partition p of all of them belongs to task p."""
    changelog: str
    """Topic of the state rows, same partition count, compacted."""
    make_processor: Callable[[TaskId, int], Processor]
    """(task, epoch) → a processor; the epoch grows with every owner of the task."""
    replayed_first: tuple[str, ...] = ()
    """Inputs read to their end before the others are touched."""
    always_open: tuple[str, ...] = ()
    """Inputs read even while too much is in memory: few records, and perhaps the remedy."""
    outputs: tuple[str, ...] = ()
    """Topics whose partition p only task p writes: their tail tells what was issued."""
    restored_prefix: bytes = b"a"
    swept_prefix: bytes = b"c"
    due_prefix: bytes = b"d"
    """Of the rows that say when something is due, see `cape_stream.runtime.due_index`."""
    source: EventSource | None = None
    """Answers the queries of this group."""
