"""Commits of a simulated process: real transactions that can be caught half-way."""

from collections.abc import Mapping, Sequence

from cape_stream.adapters.simulated.broker import Broker
from cape_stream.adapters.simulated.faults import Span
from cape_stream.adapters.simulated.group import Seat
from cape_stream.adapters.simulated.member import SimMember, SimOwnership
from cape_stream.adapters.simulated.partition import Transaction, TransactionState
from cape_stream.adapters.simulated.process import SimProcess
from cape_stream.errors import Fenced, Retry
from cape_stream.ports.log import Ownership, TopicPartition, Write


class SimCommitter:
    """Implements `Committer`.

    A commit writes its records, then has the member's epoch checked, then ends: the order our
    Kafka adapter keeps. A process that dies or is stopped after the check leaves the transaction
    open; readers and the next owner of its partitions wait until it ends or times out.

    Args:
        broker: the log.
        process: whose committer it is.
        name: for traces.
    """

    def __init__(self, broker: Broker, process: SimProcess, name: str) -> None:
        self._broker = broker
        self._process = process
        self._name = name

    def commit(
        self,
        writes: Sequence[Write],
        offsets: Mapping[TopicPartition, int],
        ownership: Ownership,
    ) -> Mapping[TopicPartition, int]:
        """See `Committer.commit`; in a fiber it takes its time."""
        assert isinstance(ownership, SimOwnership), "a simulated commit needs a simulated member"
        member, seat = ownership.member, ownership.seat
        broker = self._broker
        faults = broker.dice.faults
        self._process.touch()
        broker.check_up()
        if broker.dice.happens(faults.commit_retry):
            raise Retry("the simulated coordinator is loading")
        transaction = Transaction()
        timeout = broker.timeout(transaction, member.group)
        try:
            last = self._write(writes, transaction)
            self._pass(faults.commit_write_ms)
            self._check_open(transaction)
            self._check_owner(offsets, member, seat)
            transaction.offsets = dict(offsets)
            member.group.begin(transaction)
            self._pass(faults.commit_end_ms)
            self._check_open(transaction)
            broker.check_up()
            if broker.dice.happens(faults.commit_abort):
                raise Retry("the simulated transaction was aborted")
        except (Retry, Fenced):
            timeout.cancel()
            broker.end(transaction, member.group, TransactionState.ABORTED)
            raise
        timeout.cancel()
        broker.end(transaction, member.group, TransactionState.COMMITTED)
        broker.timeline.note(self._process.name, "committed", f"{len(writes)} rows")
        self._pass(faults.commit_answer_ms)
        return last

    def close(self) -> None:
        """Nothing to free: what is open belongs to a commit that has not returned."""

    def _write(
        self, writes: Sequence[Write], transaction: Transaction
    ) -> dict[TopicPartition, int]:
        broker = self._broker
        last: dict[TopicPartition, int] = {}
        with broker.lock:
            for topic, number, key, value in writes:
                to = TopicPartition(topic, number)
                now_ms = broker.timeline.now_ms
                last[to] = broker.partition(to).append(to, key, value, now_ms, transaction)
        return last

    def _check_owner(
        self, offsets: Mapping[TopicPartition, int], member: SimMember, seat: Seat
    ) -> None:
        with self._broker.lock:
            member.group.put_out_silent(self._broker.timeline.now_ms)
            if not seat.valid:
                raise Fenced(f"{self._name}: the group has put this member out")
            foreign = [partition for partition in offsets if not member.owns(partition)]
        if foreign:
            raise Fenced(f"{self._name}: {foreign[0].topic}/{foreign[0].partition} is not ours")

    @staticmethod
    def _check_open(transaction: Transaction) -> None:
        if transaction.state is not TransactionState.OPEN:
            raise Retry("the simulated transaction timed out")

    def _pass(self, span: Span) -> None:
        """Let time pass; the process may die or be stopped meanwhile."""
        self._broker.timeline.sleep(self._broker.dice.draw_ms(span))
        self._process.touch()
