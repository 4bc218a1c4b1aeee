"""The books of one strict queue: what is visible, who holds what, and what the rules say of it.

Time is an argument. The rules are those of the SQS developer guide; where it leaves a choice, the
stricter one is taken: a stale receipt is refused, never ignored and never obeyed.
"""

from collections import deque
from dataclasses import dataclass, field

from cape_stream.ports.queue import (
    VISIBILITY_S_MAX,
    EntryFailure,
    FailureKind,
    OutgoingMessage,
    QueueDepth,
    QueueMessage,
)

DEDUPLICATION_MS = 300_000
STALE = EntryFailure(FailureKind.STALE, "ReceiptHandleIsInvalid: the receipt is not the newest")
NOT_IN_FLIGHT = EntryFailure(FailureKind.STALE, "MessageNotInflight: its visibility has ended")
OVER_12_HOURS = EntryFailure(
    FailureKind.REFUSED, "InvalidParameterValue: total visibility is beyond 12 hours"
)


@dataclass(slots=True)
class Shelved:
    """One message of a queue."""

    message_id: str
    outgoing: OutgoingMessage
    sent_ms: int
    visible_ms: int
    """Nobody gets it before."""
    receive_count: int = 0
    receipt: str | None = None
    """The newest."""
    received_ms: int = 0


@dataclass(slots=True)
class Shelf:
    """Messages of one queue. ``dead_letters`` takes those received ``receives_max`` times."""

    is_fifo: bool = False
    receives_max: int | None = None
    dead_letters: "Shelf | None" = None
    messages: dict[str, Shelved] = field(default_factory=dict)
    """By message id, in the order of sending."""
    receives: deque[tuple[int, str, str]] = field(default_factory=deque)
    """(time, message id, receipt) of every receive, for tests."""
    deleted: list[str] = field(default_factory=list)
    """Ids in the order of deletion, for tests."""
    _seen: dict[str, int] = field(default_factory=dict)
    """Deduplication id → when it is forgotten. It outlives the message."""
    _receipts: dict[str, str] = field(default_factory=dict)

    def put(self, message_id: str, outgoing: OutgoingMessage, now_ms: int) -> None:
        """Take a message in, unless it is a repeat on a FIFO queue."""
        if self.is_fifo:
            key = outgoing.deduplication_id or outgoing.body
            if self._seen.get(key, 0) > now_ms:
                return
            self._seen[key] = now_ms + DEDUPLICATION_MS
        visible_ms = now_ms + outgoing.delay_s * 1_000
        self.messages[message_id] = Shelved(message_id, outgoing, now_ms, visible_ms)

    def take(self, count: int, visibility_s: int, now_ms: int) -> list[QueueMessage]:
        """Hand out up to ``count`` messages."""
        taken: list[QueueMessage] = []
        busy = self._busy_groups(now_ms)
        for each in list(self.messages.values()):
            if len(taken) == count:
                break
            group = each.outgoing.group
            if each.visible_ms > now_ms or (self.is_fifo and group in busy):
                if self.is_fifo:
                    busy.add(group)  # what comes later in the group must wait for this one
                continue
            if self._is_worn_out(each):
                self._bury(each, now_ms)
                continue
            taken.append(self._lease(each, visibility_s, now_ms))
        return taken

    def delete(self, receipt: str, now_ms: int) -> EntryFailure | None:
        """Remove the message whose newest receipt this is."""
        message_id = self._receipts.get(receipt)
        if message_id is None:
            return EntryFailure(FailureKind.REFUSED, "ReceiptHandleIsInvalid: not a receipt")
        found = self.messages.get(message_id)
        if found is None:
            return None  # deleted before: says yes again
        if found.receipt != receipt or (self.is_fifo and found.visible_ms <= now_ms):
            return STALE
        del self.messages[message_id]
        self.deleted.append(message_id)
        return None

    def extend(self, receipt: str, seconds: int, now_ms: int) -> EntryFailure | None:
        """Let the lease end in so many seconds."""
        found = self.messages.get(self._receipts.get(receipt, ""))
        if found is None or found.receipt != receipt:
            return STALE
        if found.visible_ms <= now_ms:
            return NOT_IN_FLIGHT
        if now_ms + seconds * 1_000 > found.received_ms + VISIBILITY_S_MAX * 1_000:
            return OVER_12_HOURS
        found.visible_ms = now_ms + seconds * 1_000
        return None

    def depth(self, now_ms: int) -> QueueDepth:
        """What lies here."""
        waiting = [each for each in self.messages.values() if each.visible_ms > now_ms]
        delayed = sum(each.receipt is None for each in waiting)
        return QueueDepth(
            visible=len(self.messages) - len(waiting),
            in_flight=len(waiting) - delayed,
            delayed=delayed,
        )

    def next_visible_ms(self, now_ms: int) -> int | None:
        """When the next message shows up that is not visible now."""
        times = (each.visible_ms for each in self.messages.values() if each.visible_ms > now_ms)
        return min(times, default=None)

    def _busy_groups(self, now_ms: int) -> set[str | None]:
        if not self.is_fifo:
            return set()
        return {
            each.outgoing.group
            for each in self.messages.values()
            if each.receipt is not None and each.visible_ms > now_ms
        }

    def _is_worn_out(self, each: Shelved) -> bool:
        return (
            self.dead_letters is not None
            and self.receives_max is not None
            and each.receive_count >= self.receives_max
        )

    def _bury(self, each: Shelved, now_ms: int) -> None:
        assert self.dead_letters is not None, "asked by _is_worn_out"
        del self.messages[each.message_id]
        self.dead_letters.messages[each.message_id] = Shelved(
            each.message_id, each.outgoing, each.sent_ms, now_ms, each.receive_count
        )

    def _lease(self, each: Shelved, visibility_s: int, now_ms: int) -> QueueMessage:
        each.receive_count += 1
        each.received_ms = now_ms
        each.visible_ms = now_ms + visibility_s * 1_000
        each.receipt = f"{each.message_id}#{each.receive_count}"
        self._receipts[each.receipt] = each.message_id
        self.receives.append((now_ms, each.message_id, each.receipt))
        return QueueMessage(
            message_id=each.message_id,
            receipt=each.receipt,
            body=each.outgoing.body,
            attributes=each.outgoing.attributes,
            receive_count=each.receive_count,
            sent_ms=each.sent_ms,
            group=each.outgoing.group,
        )
