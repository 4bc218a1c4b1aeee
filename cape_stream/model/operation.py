"""What operators order, and what became of it."""

from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """What is to be done. The first three are about a topology, the others about one subject."""

    PAUSE = "pause"
    """Issue no new jobs of the topology."""
    DRAIN = "drain"
    """The same, by somebody who waits until none is out."""
    RESUME = "resume"
    REWIND = "rewind"
    """Put the cursor back: what follows it is delivered again."""
    SET = "set"
    """Put the cursor there, whether that is forward or back."""
    SKIP = "skip"
    """Take one event as done."""
    RELEASE = "release"
    """One event that is put aside is due now."""
    RETRY = "retry"
    """The same for all events of the subject that are put aside."""
    BACKFILL = "backfill"
    """Deliver everything from a sequence id on once more."""


TOPOLOGY_VERBS = frozenset({Verb.PAUSE, Verb.DRAIN, Verb.RESUME})
"""One record to every partition, without a subject."""
REASONED_VERBS = frozenset({Verb.REWIND, Verb.SET, Verb.SKIP, Verb.BACKFILL})
"""What changes which events are delivered has to say why."""
NUMBERED_VERBS = frozenset({Verb.REWIND, Verb.SET, Verb.SKIP, Verb.RELEASE, Verb.BACKFILL})
"""They name a sequence id."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Operation:
    """One order."""

    operation_id: str
    """Unique; the audit entry carries it, so whoever ordered finds the answer."""
    verb: Verb
    domain: str
    topology: str
    who: str
    """Who ordered it."""
    why: str = ""
    """The reason, for whoever reads the audit later."""
    subject: str | None = None
    """None for a verb about the whole topology."""
    sequence: int | None = None
    """The new cursor (`NO_CURSOR` for before the first event), the event, or the first event of a
    backfill."""
    issued_ms: int = 0
    """When it was ordered, Unix milliseconds by the clock of whoever did."""


class Outcome(StrEnum):
    """What became of an order."""

    APPLIED = "applied"
    NOTHING = "nothing"
    """Everything was that way already."""
    REFUSED = "refused"
    """It cannot be done; the detail says why."""


@dataclass(slots=True, frozen=True)
class AuditEntry:
    """Who did what, when, why, and what came of it: one record of the audit topic."""

    operation: Operation
    partition: int
    """The task that decided it."""
    outcome: Outcome
    detail: str
    """In words, with the numbers before and after."""
    decided_ms: int
    """When, Unix milliseconds by the dispatcher's steady clock."""
