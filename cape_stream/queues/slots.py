"""Who runs next: slots per queue and in all, fair between queues, group by group on FIFO queues."""

from collections import deque
from collections.abc import Sequence

from cape_stream.ports.queue import BATCH_MAX
from cape_stream.queues.held import Held


class LaneBook:
    """Slots of one queue."""

    def __init__(self, name: str, *, concurrency: int, prefetch: int, is_fifo: bool) -> None:
        """An empty book.

        Args:
            name: of the queue.
            concurrency: slots.
            prefetch: messages that may wait beyond those that run.
            is_fifo: keep the order within a message group.
        """
        self.name = name
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.capacity = concurrency + prefetch
        self.waiting: deque[Held] = deque()
        self.running: set[Held] = set()
        self.asked = 0
        """Messages that receives under way may bring."""
        self._is_fifo = is_fifo
        self._busy: dict[str | None, Held] = {}
        """Group → the message of it that runs or is being settled."""

    @property
    def room(self) -> int:
        """How many more messages may be asked for."""
        return self.capacity - len(self.waiting) - len(self.running) - self.asked

    def reserve(self) -> int:
        """How many messages to ask for now, 0 to 10. Give them back by `arrived`.

        Asks for a full batch, or for all that may wait where that is less; for less than that only
        when a slot has nothing to do.
        """
        room = self.room
        if room <= 0:
            return 0
        idle = self.concurrency - len(self.running) - len(self.waiting) - self.asked
        if idle <= 0 and room < min(BATCH_MAX, self.prefetch):
            return 0
        wanted = min(room, BATCH_MAX)
        self.asked += wanted
        return wanted

    def arrived(self, asked: int, messages: Sequence[Held]) -> None:
        """A receive that had reserved ``asked`` has returned."""
        self.asked -= asked
        self.waiting.extend(messages)

    def next(self) -> Held | None:
        """The next message that may run, which runs from now on; None if there is none."""
        if len(self.running) >= self.concurrency:
            return None
        for index, held in enumerate(self.waiting):
            if self._is_fifo and held.message.group in self._busy:
                continue
            del self.waiting[index]
            self.running.add(held)
            if self._is_fifo:
                self._busy[held.message.group] = held
            return held
        return None

    def ended(self, held: Held) -> None:
        """Its handler has ended: the slot is free. Repeats do nothing."""
        self.running.discard(held)

    def settled(self, held: Held) -> None:
        """The queue knows how it ended: the next one of its group may run. Repeats do nothing."""
        if self._busy.get(held.message.group) is held:
            del self._busy[held.message.group]

    def drop(self, held: Held) -> bool:
        """Take a message out that waits; False if it does not."""
        if held not in self.waiting:
            return False
        self.waiting.remove(held)
        return True

    def take_followers(self, held: Held) -> list[Held]:
        """Take out what waits behind ``held`` in its group; nothing on a standard queue."""
        if not self._is_fifo:
            return []
        group = held.message.group
        followers = [each for each in self.waiting if each.message.group == group]
        self.waiting = deque(each for each in self.waiting if each.message.group != group)
        return followers

    def take_waiting(self) -> list[Held]:
        """Take out everything that waits."""
        taken = list(self.waiting)
        self.waiting.clear()
        return taken


class Slots:
    """All queues of a process. A free slot goes to the queues in turn, so none starves another."""

    def __init__(self, books: Sequence[LaneBook], concurrency: int) -> None:
        self.books = {book.name: book for book in books}
        self._concurrency = concurrency
        self._turn = deque(books)

    @property
    def running(self) -> int:
        """Jobs that run, over all queues."""
        return sum(len(book.running) for book in self._turn)

    def next(self) -> Held | None:
        """The next message that may run; None if there is none or no slot is free."""
        if self.running >= self._concurrency:
            return None
        for _ in range(len(self._turn)):
            book = self._turn[0]
            self._turn.rotate(-1)
            held = book.next()
            if held is not None:
                return held
        return None
