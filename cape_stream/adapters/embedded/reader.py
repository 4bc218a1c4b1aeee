"""A reader: partitions from offset to offset, outside any group."""

from collections.abc import Iterator

from cape_stream.adapters.embedded.partition import Partition
from cape_stream.adapters.embedded.state import State
from cape_stream.errors import Corrupt, Fatal
from cape_stream.ports.log import Record, TopicPartition, Watermarks

BATCH_ROWS = 2_000


class EmbeddedReader:
    """`cape_stream.ports.log.Reader`. Holds nothing open between two batches."""

    def __init__(self, state: State) -> None:
        self._state = state

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        """The kept range now; Fatal when there is no such partition."""
        found = self._partition(partition)
        with self._state.lock:
            return Watermarks(found.low, found.high)

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        """See `Reader.committed`."""
        with self._state.lock:
            found = self._state.groups.get(group)
            return None if found is None else found.committed.get(partition)

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterator[list[Record]]:
        """Records in [start, end) as far as they exist; Corrupt when retention was faster."""
        found = self._partition(partition)
        with self._state.lock:
            end = min(end, found.high)
        while start < end or start < found.low:
            batch = self._state.read(found, start, end, BATCH_ROWS)
            if batch is None:
                raise Corrupt(
                    f"{partition.topic}[{partition.partition}] keeps nothing below {found.low},"
                    f" asked for {start}"
                )
            records, start = batch
            if records:
                yield records

    def close(self) -> None:
        """Nothing is open."""

    def _partition(self, name: TopicPartition) -> Partition:
        found = self._state.partitions.get(name)
        if found is None:
            raise Fatal(f"partition {name.partition} of topic {name.topic} does not exist")
        return found
