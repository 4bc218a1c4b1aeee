"""A producer: buffers, and writes what it has whenever it is polled, full, or left alone."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cape_stream.adapters.embedded.state import Append, State
from cape_stream.errors import Fatal, Reject
from cape_stream.ports.log import FailedSend, TopicPartition

BUFFER_RECORDS_MAX = 1_000
BUFFER_BYTES_MAX = 4 << 20
"""At either bound `EmbeddedProducer.send` writes the buffer itself, so it is never full."""


class _Answer(NamedTuple):
    """Records of one partition that are settled, in order."""

    name: TopicPartition
    records: int
    last_offset: int


class EmbeddedProducer:
    """`cape_stream.ports.log.Producer`. Records are durable before they count as settled.

    A record whose topic or partition does not exist comes back from `take_failed`.

    Args:
        state: the log.
        nudge: called when records begin to wait, so that the log's own thread writes them soon
            if nobody polls.
    """

    def __init__(self, state: State, nudge: Callable[["EmbeddedProducer"], None]) -> None:
        self._sent: dict[TopicPartition, int] = {}
        self._settled: dict[TopicPartition, int] = {}
        self._acked_offset: dict[TopicPartition, int] = {}
        self.sent: Mapping[TopicPartition, int] = self._sent
        self.settled: Mapping[TopicPartition, int] = self._settled
        self.acked_offset: Mapping[TopicPartition, int] = self._acked_offset
        self._state = state
        self._partitions = state.partitions
        self._nudge = nudge
        self._nudged = False
        self._buffer: deque[Append] = deque()
        self._buffer_bytes = 0
        self._answers: deque[_Answer] = deque()
        self._failed: list[FailedSend] = []
        self._closed = False

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> bool:
        """Take one record; always True."""
        if self._closed:
            raise Fatal("producer was closed")
        target = self._partitions.get((topic, partition))
        if target is None:
            self._refuse(TopicPartition(topic, partition), key, value)
            return True
        size = (len(key) if key else 0) + (len(value) if value else 0)
        if size > target.record_bytes_max:
            raise Reject(
                f"record of {size} bytes for topic {topic} is over {target.record_bytes_max}"
            )
        name = target.name
        self._sent[name] = self._sent.get(name, 0) + 1
        self._buffer.append((target, key, value))
        self._buffer_bytes += size
        if len(self._buffer) >= BUFFER_RECORDS_MAX or self._buffer_bytes >= BUFFER_BYTES_MAX:
            self.write_buffered()
        elif not self._nudged:
            self._nudged = True
            self._nudge(self)
        return True

    def poll(self, timeout_ms: int) -> None:
        """Write what is buffered and count what is settled; never waits for anything else."""
        if self._buffer:
            self.write_buffered()
        answers = self._answers
        while answers:
            name, records, last_offset = answers.popleft()
            self._settled[name] = self._settled.get(name, 0) + records
            self._acked_offset[name] = last_offset

    def take_failed(self) -> list[FailedSend]:
        """Records given up since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def flush(self, timeout_ms: int) -> bool:
        """Settle everything; True, or Fatal when the log cannot be written."""
        self.write_buffered()  # even if the buffer is empty: the log's thread may be writing it
        self.poll(timeout_ms)
        return self._settled == self._sent

    def close(self) -> None:
        """Flush; may be called twice."""
        if not self._closed:
            self.flush(0)
            self._closed = True

    def write_buffered(self) -> None:
        """Append the buffer in one atomic step. Called from the log's thread too."""
        with self._state.lock:
            self._nudged = False
            buffer = self._buffer
            appends = [buffer.popleft() for _ in range(len(buffer))]
            self._buffer_bytes = 0
            self._state.store.check()
            for target, records in self._state.append(appends).items():
                self._answers.append(_Answer(target.name, len(records), records[-1].offset))

    def _refuse(self, name: TopicPartition, key: bytes | None, value: bytes | None) -> None:
        reason = f"partition {name.partition} of topic {name.topic} does not exist"
        self._sent[name] = self._sent.get(name, 0) + 1
        self._failed.append(FailedSend(name.topic, name.partition, key, value, reason))
        self._settled[name] = self._settled.get(name, 0) + 1
