"""A keyed counter: the smallest `Processor` with state, to keep the engine honest.

Counts records per key and appends each new count to an output topic, exactly once: the output goes
out with the commit that stores the count. It is also what the keyed-update benchmark runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cape_stream.model.request import EventPage, QueryFault
from cape_stream.ports.log import FailedSend, Record, Write
from cape_stream.runtime.processor import Effects, RowReader, TaskId

COUNT_PREFIX = b"n"


class CountingProcessor:
    """Implements `cape_stream.runtime.processor.Processor`."""

    def __init__(self, task: TaskId, output: str) -> None:
        self._partition = task.partition
        self._output = output
        self._dirty: dict[bytes, int] = {}
        """Counts that changed since `changes` was last called."""
        self._records = 0

    def restore(self, rows: Iterator[tuple[bytes, bytes]], now_ms: int) -> None:
        """Counts are read from the table when they are needed."""

    def adopt(self, outputs: Sequence[Record], read_rows: RowReader, now_ms: int) -> int:
        """Outputs are exactly once; there is nothing to adopt."""
        return 0

    def catch_up(self, records: Sequence[Record], read_rows: RowReader, now_ms: int) -> Effects:
        """No input comes before another."""
        return self.step(records, read_rows, now_ms)

    def resume(self, now_ms: int) -> Effects:
        """Nothing was waiting."""
        return Effects()

    def step(self, records: Sequence[Record], read_rows: RowReader, now_ms: int) -> Effects:
        """Count; a record without a key counts for the empty key."""
        dirty = self._dirty
        keys = [record[4] or b"" for record in records]
        cold = list(dict.fromkeys(key for key in keys if key not in dirty))
        for key, value in zip(cold, read_rows([COUNT_PREFIX + k for k in cold]), strict=True):
            dirty[key] = int(value) if value is not None else 0
        effects = Effects()
        committed = effects.committed
        for key in keys:
            count = dirty[key] = dirty[key] + 1
            committed.append(Write(self._output, self._partition, key, b"%d" % count))
        self._records += len(records)
        return effects

    def answer(self, answers: Sequence[EventPage | QueryFault], now_ms: int) -> Effects:
        """It asks nothing."""
        return Effects()

    def undelivered(self, failed: Sequence[FailedSend], now_ms: int) -> Effects:
        """It sends nothing outside a commit."""
        return Effects()

    def tick(self, now_ms: int) -> Effects:
        """It waits for nothing."""
        return Effects()

    def next_ms(self) -> int | None:
        """Never."""
        return None

    def sweep(
        self, rows: Iterable[tuple[bytes, bytes]], read_rows: RowReader, now_ms: int
    ) -> Effects:
        """It forgets nothing."""
        return Effects()

    def wake(self, keys: Sequence[bytes], read_rows: RowReader, now_ms: int) -> Effects:
        """Nothing of it sleeps."""
        return Effects()

    def changes(self, now_ms: int) -> dict[bytes, bytes | None]:
        """Counts that changed."""
        dirty, self._dirty = self._dirty, {}
        return {COUNT_PREFIX + key: b"%d" % count for key, count in dirty.items()}

    def load(self) -> int:
        """Counts in memory."""
        return len(self._dirty)

    def counters(self) -> Mapping[str, int]:
        """Records counted."""
        return {"records": self._records}
