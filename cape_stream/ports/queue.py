"""A work queue whose messages are leased, not taken: SQS, or a twin of it.

A received message is invisible to others until its visibility ends; whoever holds its newest
receipt may delete it, extend it, or give it back by a visibility of 0. Everything is asynchronous,
for a receive waits up to 20 s at the server. Implementations pass `tests/contract/test_queue.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

BATCH_MAX = 10
"""Entries of one call. Source: the SQS quota page."""
WAIT_S_MAX = 20
"""Longest wait of one receive. Source: the same."""
VISIBILITY_S_MAX = 43_200
"""A message can be held 12 hours from its receive, extensions included. Source: the same."""
DELAY_S_MAX = 900
MESSAGE_BYTES_MAX = 1_048_576
"""The largest limit a queue can have, body and attributes together. Source: the same."""

NO_ATTRIBUTES: Mapping[str, str] = {}


@dataclass(slots=True, frozen=True)
class QueueMessage:
    """One receive of one message. Never changed."""

    message_id: str
    """The same for every receive of it, in its dead-letter queue too."""
    receipt: str
    """Of this receive; a later receive makes it stale."""
    body: str
    attributes: Mapping[str, str] = field(default_factory=lambda: NO_ATTRIBUTES)
    """Those with a text value."""
    receive_count: int = 1
    """How often it was received, this time included; the server's count is approximate."""
    sent_ms: int = 0
    """When it was sent, Unix milliseconds by the server."""
    group: str | None = None
    """Message group: order within it on a FIFO queue, fairness between them on a standard one."""


@dataclass(slots=True, frozen=True)
class OutgoingMessage:
    """One message to be sent."""

    body: str
    attributes: Mapping[str, str] = field(default_factory=lambda: NO_ATTRIBUTES)
    group: str | None = None
    """Needed on a FIFO queue; on a standard one it names the tenant, for fairness."""
    deduplication_id: str | None = None
    """FIFO only: a second message with it within five minutes is dropped."""
    delay_s: int = 0
    """Not received before so many seconds, 0 to 900; standard queues only."""


class FailureKind(StrEnum):
    """Why one entry of a batch was not done, by what the caller does about it."""

    STALE = "stale"
    """The receipt is no longer the message's newest, or its lease has ended: forget it."""
    TRANSIENT = "transient"
    """Try this entry again."""
    REFUSED = "refused"
    """This entry can never be done, such as a body with characters that are not allowed."""


class EntryFailure(NamedTuple):
    """Why one entry of a batch was not done."""

    kind: FailureKind
    reason: str


@dataclass(slots=True, frozen=True, kw_only=True)
class QueueTraits:
    """What a queue is set to."""

    name: str
    place: str
    """For messages: its address, which names the account."""
    visibility_s: int
    """Of a receive that does not say."""
    bytes_max: int = MESSAGE_BYTES_MAX
    """Most bytes of one message and of one batch, body and attributes together."""
    is_fifo: bool = False
    dead_letter_queue: str | None = None
    """Name of where messages go that were received too often; None: nowhere."""
    receives_max: int | None = None
    """After so many receives a message goes there."""


@dataclass(slots=True, frozen=True, kw_only=True)
class QueueDepth:
    """How much lies in a queue, approximately."""

    visible: int
    in_flight: int
    delayed: int


class Queue(Protocol):
    """One queue. Methods may run at once in one event loop.

    Every method raises Retry when the server is away, throttles or does not know our credentials
    (the reason says which), and Fatal when the queue is gone.
    """

    @property
    def traits(self) -> QueueTraits:
        """What it was set to when it was opened."""
        ...

    async def receive(self, count: int, wait_s: int, visibility_s: int) -> list[QueueMessage]:
        """Up to ``count`` (1 to 10) messages, waiting for the first at most ``wait_s``.

        Cancelling this does not cancel the receive at the server: a message may still be handed
        to nobody and stay invisible. Let it return.
        """
        ...

    async def delete(self, receipts: Sequence[str]) -> list[EntryFailure | None]:
        """Delete up to 10 messages; one answer an entry, None where it was done."""
        ...

    async def change_visibility(
        self, changes: Sequence[tuple[str, int]]
    ) -> list[EntryFailure | None]:
        """Let up to 10 leases end in so many seconds from now: (receipt, seconds)."""
        ...

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[EntryFailure | None]:
        """Send up to 10 messages, together within `QueueTraits.bytes_max`."""
        ...

    async def depth(self) -> QueueDepth:
        """How much lies in it now."""
        ...

    async def purge(self) -> None:
        """Delete everything in it."""
        ...


class QueueServer(Protocol):
    """Opens queues by name."""

    async def open(self, name: str) -> Queue:
        """The queue of that name.

        Raises:
            Fatal: there is none; the message names queue, account and place.
            Retry: the server is away, or does not know our credentials.
        """
        ...

    async def names(self, prefix: str) -> list[str]:
        """Names of all queues that begin with ``prefix``, sorted."""
        ...

    async def redrive(self, dead_letter_queue: str) -> str:
        """Ask the server to move everything back to where it came from; an id of that task.

        Raises:
            Reject: it is the dead-letter queue of nobody, or the server cannot do that.
        """
        ...

    async def close(self) -> None:
        """Free all; calls under way are let end first."""
        ...
