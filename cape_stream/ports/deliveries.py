"""What became of the mails that were sent, and what the provider says of the account."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True, kw_only=True)
class DeliveryEvent:
    """One thing that happened to one mail for one recipient."""

    message_id: str
    """The provider's id of the mail."""
    kind: str
    """``bounce``, ``complaint``, ``delivery``, ``delivery_delay``, ``send`` and so on."""
    recipient: str
    """In lower case, for addresses are compared so."""
    at_ms: int
    """When it happened, Unix milliseconds."""
    feedback_id: str | None = None
    """The provider's id of the report, where it has one."""
    occurrence: int = 0
    """Tells apart what may happen to one mail again and again, such as opening it; else 0. There
    is one event of each message id, kind, recipient and occurrence, and one of each feedback id
    and recipient."""
    detail: str = ""
    """Such as the bounce type; may be empty."""
    is_certain: bool = True
    """False where the provider names everybody who may be meant, as in a complaint."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ReputationSignal:
    """One state of one account-level alarm."""

    account: str
    alarm: str
    metric: str
    state: str
    """``ALARM``, ``OK`` or ``INSUFFICIENT_DATA``."""
    threshold: float | None
    at_ms: int
    """When the state changed, Unix milliseconds."""
    reason: str = ""


class DeliveryStore(Protocol):
    """Keeps them, for all processes of a fleet; a repeat changes nothing, whoever brings it.

    Every method raises Retry when the store is away.
    """

    async def record(self, events: Sequence[DeliveryEvent]) -> int:
        """Store what is new, in one step; how many were."""
        ...

    async def record_signal(self, signal: ReputationSignal) -> bool:
        """Store it; False if this state of this moment is known."""
        ...

    async def newest_signals(self, account: str | None = None) -> list[ReputationSignal]:
        """The newest signal of each alarm of the account; None: of every account."""
        ...

    async def history(self, message_id: str) -> list[DeliveryEvent]:
        """What is known of one mail, by time; empty if nothing is."""
        ...
