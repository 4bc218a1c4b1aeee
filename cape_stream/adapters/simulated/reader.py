"""Reads of a simulated process outside any group."""

from collections.abc import Iterator

from cape_stream.adapters.simulated.broker import Broker
from cape_stream.adapters.simulated.process import SimProcess
from cape_stream.errors import Corrupt, Retry
from cape_stream.ports.log import Record, TopicPartition, Watermarks

BATCH_RECORDS = 500


class SimReader:
    """Implements `Reader`.

    Args:
        broker: the log.
        process: whose reader it is.
    """

    def __init__(self, broker: Broker, process: SimProcess) -> None:
        self._broker = broker
        self._process = process

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        """See `Reader.watermarks`; the end counts records that are still undecided."""
        self._touch()
        stored = self._broker.partition(partition)
        return Watermarks(stored.low, stored.high)

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        """See `Reader.committed`."""
        self._touch()
        return self._broker.committed(group).get(partition)

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterator[list[Record]]:
        """See `Reader.read`; waits, in a fiber, until open transactions below ``end`` are over."""
        broker = self._broker
        position = start
        while True:
            broker.timeline.sleep(broker.dice.draw_ms(broker.dice.faults.read_ms))
            self._touch()
            stored = broker.partition(partition)
            if position < stored.low:
                kept = f"{partition.topic}/{partition.partition} is kept from {stored.low}"
                raise Corrupt(f"offset {position} is gone: {kept}")
            stop = min(end, stored.high)
            with broker.lock:
                records, position = stored.read(position, stop, BATCH_RECORDS)
            if records:
                yield records
            elif position >= stop:
                return
            else:
                self._wait_for_transaction()

    def close(self) -> None:
        """Nothing to free."""

    def _touch(self) -> None:
        self._process.touch()
        self._broker.check_up()
        if self._broker.dice.happens(self._broker.dice.faults.read_retry):
            raise Retry("the simulated log does not answer this read")

    def _wait_for_transaction(self) -> None:
        if self._broker.timeline.current is None:
            raise Retry("a transaction below the end is still open")
        self._broker.changed.wait(self._broker.settings.transaction_timeout_ms)
