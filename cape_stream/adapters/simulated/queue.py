"""A strict SQS in the memory of one event loop, with faults that a test orders.

It lives in whatever time the loop has; on a `VirtualLoop` a day takes milliseconds. A receive goes
on at the server after its client has gone, and may hand a message to nobody, as SQS does.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cape_stream.adapters.simulated.queue_shelf import Shelf
from cape_stream.errors import CapeError, Fatal, Reject
from cape_stream.ports.queue import (
    BATCH_MAX,
    DELAY_S_MAX,
    MESSAGE_BYTES_MAX,
    VISIBILITY_S_MAX,
    WAIT_S_MAX,
    EntryFailure,
    FailureKind,
    OutgoingMessage,
    QueueDepth,
    QueueMessage,
    QueueTraits,
)

ACCOUNT = "111122223333"

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_IDENTIFIER = re.compile("[!-~]{1,128}")
"""Of message groups and deduplication ids."""


@dataclass(slots=True)
class QueueFaults:
    """What shall go wrong; a test sets it, every call looks."""

    errors: dict[str, list[CapeError]] = field(default_factory=dict)
    """Call, such as ``receive`` → errors to raise, one a call, until none is left."""
    entries: dict[str, list[EntryFailure]] = field(default_factory=dict)
    """Call → answers for its next entries."""
    latency_s: dict[str, float] = field(default_factory=dict)
    """Call → how long its answer takes; the deed is done half way."""


class SimulatedQueue:
    """One queue. Implements `Queue`."""

    def __init__(self, traits: QueueTraits, shelf: Shelf, now_ms: Callable[[], int]) -> None:
        self.traits = traits
        self.shelf = shelf
        self.faults = QueueFaults()
        self.calls: Counter[str] = Counter()
        self._now_ms = now_ms
        self._sent = 0
        self._news = asyncio.Event()
        self._polls: set[asyncio.Task[list[QueueMessage]]] = set()

    async def receive(self, count: int, wait_s: int, visibility_s: int) -> list[QueueMessage]:
        """See `Queue.receive`."""
        if not 1 <= count <= BATCH_MAX or not 0 <= wait_s <= WAIT_S_MAX:
            raise Fatal(f"receive of {count} with a wait of {wait_s} s is out of range")
        if not 0 <= visibility_s <= VISIBILITY_S_MAX:
            raise Fatal(f"visibility of {visibility_s} s is out of range")
        await self._begin("receive")
        # The server's part goes on even if the client stops waiting for it.
        poll = asyncio.ensure_future(self._poll(count, wait_s, visibility_s))
        self._polls.add(poll)
        poll.add_done_callback(self._polls.discard)
        found = await asyncio.shield(poll)
        await self._end("receive")
        return found

    async def delete(self, receipts: Sequence[str]) -> list[EntryFailure | None]:
        """See `Queue.delete`."""
        await self._begin("delete")
        now_ms = self._now_ms()
        answers = [
            self._ordered("delete") or self.shelf.delete(receipt, now_ms) for receipt in receipts
        ]
        await self._end("delete")
        self._news.set()
        return answers

    async def change_visibility(
        self, changes: Sequence[tuple[str, int]]
    ) -> list[EntryFailure | None]:
        """See `Queue.change_visibility`."""
        await self._begin("change_visibility")
        now_ms = self._now_ms()
        answers = [
            self._ordered("change_visibility") or self.shelf.extend(receipt, seconds, now_ms)
            for receipt, seconds in changes
        ]
        await self._end("change_visibility")
        self._news.set()
        return answers

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[EntryFailure | None]:
        """See `Queue.send`."""
        await self._begin("send")
        if sum(_size(each) for each in messages) > self.traits.bytes_max:
            answers: list[EntryFailure | None] = [
                EntryFailure(FailureKind.REFUSED, "BatchRequestTooLong") for _ in messages
            ]
        else:
            answers = [self._ordered("send") or self._put(each) for each in messages]
        await self._end("send")
        self._news.set()
        return answers

    async def depth(self) -> QueueDepth:
        """See `Queue.depth`."""
        await self._begin("depth")
        return self.shelf.depth(self._now_ms())

    async def purge(self) -> None:
        """See `Queue.purge`."""
        await self._begin("purge")
        self.shelf.messages.clear()

    def receive_at_once(self, count: int, visibility_s: int) -> list[QueueMessage]:
        """Receive as another process would, without waiting."""
        return self.shelf.take(count, visibility_s, self._now_ms())

    async def _poll(self, count: int, wait_s: int, visibility_s: int) -> list[QueueMessage]:
        end_ms = self._now_ms() + wait_s * 1_000
        while True:
            now_ms = self._now_ms()
            found = self.shelf.take(count, visibility_s, now_ms)
            if found or now_ms >= end_ms:
                return found
            self._news.clear()
            next_ms = min(end_ms, self.shelf.next_visible_ms(now_ms) or end_ms)
            try:
                await asyncio.wait_for(self._news.wait(), (next_ms - now_ms) / 1_000)
            except TimeoutError:
                continue

    def _put(self, message: OutgoingMessage) -> EntryFailure | None:
        texts = (message.body, *message.attributes.values())
        if not message.body or any(_FORBIDDEN.search(text) for text in texts):
            return EntryFailure(FailureKind.REFUSED, "InvalidMessageContents")
        names = (message.group, message.deduplication_id if self.traits.is_fifo else None)
        if not all(name is None or _IDENTIFIER.fullmatch(name) for name in names):
            return EntryFailure(FailureKind.REFUSED, "InvalidParameterValue: not an id")
        if self.traits.is_fifo and message.group is None:
            return EntryFailure(FailureKind.REFUSED, "MissingParameter: MessageGroupId")
        if not 0 <= message.delay_s <= DELAY_S_MAX:
            return EntryFailure(FailureKind.REFUSED, "InvalidParameterValue: DelaySeconds")
        self._sent += 1
        self.shelf.put(f"{self.traits.name}-{self._sent}", message, self._now_ms())
        return None

    def _ordered(self, call: str) -> EntryFailure | None:
        waiting = self.faults.entries.get(call)
        return waiting.pop(0) if waiting else None

    async def _begin(self, call: str) -> None:
        self.calls[call] += 1
        errors = self.faults.errors.get(call)
        if errors:
            raise errors.pop(0)
        await asyncio.sleep(self.faults.latency_s.get(call, 0.0) / 2)

    async def _end(self, call: str) -> None:
        await asyncio.sleep(self.faults.latency_s.get(call, 0.0) / 2)


class SimulatedQueues:
    """A server of such queues. Implements `QueueServer`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.queues: dict[str, SimulatedQueue] = {}

    def create(
        self,
        name: str,
        *,
        visibility_s: int = 30,
        bytes_max: int = MESSAGE_BYTES_MAX,
        dead_letter_queue: str | None = None,
        receives_max: int | None = None,
    ) -> SimulatedQueue:
        """Make a queue; FIFO if its name ends so; its dead-letter queue must exist already."""
        traits = QueueTraits(
            name=name,
            place=f"memory:{ACCOUNT}/{name}",
            visibility_s=visibility_s,
            bytes_max=bytes_max,
            is_fifo=name.endswith(".fifo"),
            dead_letter_queue=dead_letter_queue,
            receives_max=receives_max,
        )
        letters = self.queues[dead_letter_queue].shelf if dead_letter_queue else None
        shelf = Shelf(traits.is_fifo, receives_max, letters)
        self.queues[name] = SimulatedQueue(traits, shelf, self._now_ms)
        return self.queues[name]

    async def open(self, name: str) -> SimulatedQueue:
        """See `QueueServer.open`."""
        if name not in self.queues:
            raise Fatal(f"account {ACCOUNT} has no queue {name!r}: create it first")
        return self.queues[name]

    async def names(self, prefix: str) -> list[str]:
        """See `QueueServer.names`."""
        return sorted(name for name in self.queues if name.startswith(prefix))

    async def redrive(self, dead_letter_queue: str) -> str:
        """See `QueueServer.redrive`; done at once."""
        letters = await self.open(dead_letter_queue)
        sources = [
            each
            for each in self.queues.values()
            if each.traits.dead_letter_queue == dead_letter_queue
        ]
        if len(sources) != 1:
            raise Reject(f"{dead_letter_queue} is the dead-letter queue of {len(sources)} queues")
        for message in letters.shelf.messages.values():
            message.receive_count = 0
            sources[0].shelf.messages[message.message_id] = message
        letters.shelf.messages.clear()
        return f"redrive-{dead_letter_queue}"

    async def close(self) -> None:
        """See `QueueServer.close`."""


def _size(message: OutgoingMessage) -> int:
    extra = sum(len(f"{name}String{value}".encode()) for name, value in message.attributes.items())
    return len(message.body.encode()) + extra
