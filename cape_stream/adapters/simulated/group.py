"""A consumer group as its coordinator sees it: members, ownership, committed offsets.

Modelled on KIP-848 with the server-side ``range`` assignor: a partition number belongs to the same
member for every topic with as many partitions, a partition is given to its next owner only
after the last one has let go of it, and members that did not speak for a session are put out.
"""

from collections.abc import Callable, Sequence

from cape_stream.adapters.simulated.partition import Transaction
from cape_stream.ports.log import TopicPartition


class Seat:
    """One membership, from joining to leaving or being put out; never used again after that."""

    def __init__(self, number: int, topics: Sequence[str], now_ms: int) -> None:
        self.number = number
        """Growing; the order of members for the assignor."""
        self.topics = tuple(topics)
        self.seen_ms = now_ms
        """When it spoke last."""
        self.owned: set[TopicPartition] = set()
        """What it holds; nobody else gets one of these before it lets go."""
        self.valid = True
        """False once it left or was put out: whatever it sends is refused."""


class Group:
    """One group.

    Args:
        partition_count: partitions of a topic, 0 while it does not exist.
        session_timeout_ms: how long a silent member keeps its seat.
    """

    def __init__(self, partition_count: Callable[[str], int], session_timeout_ms: int) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        """Committed next offsets."""
        self._partition_count = partition_count
        self._session_timeout_ms = session_timeout_ms
        self._seats: list[Seat] = []
        self._undecided: dict[Transaction, None] = {}
        self._number = 0

    def join(self, topics: Sequence[str], now_ms: int) -> Seat:
        """Take a new seat, with nothing owned yet."""
        self._number += 1
        seat = Seat(self._number, topics, now_ms)
        self._seats.append(seat)
        return seat

    def leave(self, seat: Seat) -> None:
        """Give up the seat and all it owns."""
        if seat.valid:
            seat.valid = False
            seat.owned.clear()
            self._seats.remove(seat)

    def put_out_silent(self, now_ms: int) -> list[Seat]:
        """Remove every member that did not speak for a session; returns them."""
        silent = [s for s in self._seats if now_ms - s.seen_ms >= self._session_timeout_ms]
        for seat in silent:
            self.leave(seat)
        return silent

    def excuse_all(self, until_ms: int) -> None:
        """Every session begins anew then, as after a failover of the coordinator."""
        for seat in self._seats:
            seat.seen_ms = until_ms

    def target(self, seat: Seat) -> set[TopicPartition]:
        """What the seat shall own: for each of its topics one contiguous range of numbers."""
        shares: set[TopicPartition] = set()
        for topic in seat.topics:
            sharers = [s for s in self._seats if topic in s.topics]
            count = self._partition_count(topic)
            share, rest = divmod(count, len(sharers))
            place = sharers.index(seat)
            first = place * share + min(place, rest)
            last = first + share + (1 if place < rest else 0)
            shares.update(TopicPartition(topic, number) for number in range(first, last))
        return shares

    def free(self, partitions: set[TopicPartition]) -> list[TopicPartition]:
        """Those of ``partitions`` that no member holds, in order."""
        held = set[TopicPartition]().union(*(seat.owned for seat in self._seats))
        return sorted(partitions - held)

    def begin(self, transaction: Transaction) -> None:
        """The transaction's offsets are undecided until `end`."""
        self._undecided[transaction] = None

    def end(self, transaction: Transaction, *, committed: bool) -> None:
        """The transaction's offsets are stored, or forgotten."""
        if transaction in self._undecided:
            del self._undecided[transaction]
            if committed:
                self.offsets.update(transaction.offsets)

    def undecided(self, partition: TopicPartition) -> bool:
        """True while an open transaction may still move the offset of ``partition``.

        A new owner has to wait for that (KIP-447), else it starts from an offset that moves
        behind its back.
        """
        return any(partition in transaction.offsets for transaction in self._undecided)
