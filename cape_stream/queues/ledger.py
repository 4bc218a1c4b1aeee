"""Accounts for every receipt: what was received ends in exactly one fate, or the drain says so."""

import json
from collections import Counter
from dataclasses import dataclass, field

from cape_stream.queues.held import Fate, Held

TYPES_MAX = 200
"""Types counted by name: strangers write these names, and each is a series of a metric."""
NAMES_MAX = 20
"""Message ids a report names of those that do not add up."""


@dataclass(slots=True, frozen=True, kw_only=True)
class DrainReport:
    """What became of everything that was received."""

    received: int
    fates: dict[str, int]
    """Fate → how many receives ended so."""
    open: tuple[str, ...] = ()
    """Ids of messages whose fate nobody knows; the first ones."""
    open_count: int = 0
    polls_abandoned: int = 0
    """Receives that had not returned at the end; they may have taken messages."""
    hung: int = 0
    """Handlers that had not ended though they were told to; their messages were handed back."""
    duration_ms: int = 0
    """From the signal to this report."""

    @property
    def adds_up(self) -> bool:
        """True if every receipt is accounted for, none stays hidden for nothing, and nothing that
        is done comes again."""
        return (
            self.open_count == 0
            and self.polls_abandoned == 0
            and not self.fates.get(Fate.STRANDED)
            and not self.fates.get(Fate.UNDELETED)
            and self.received == sum(self.fates.values())
        )

    def as_json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "received": self.received,
                **{str(fate): self.fates.get(fate, 0) for fate in Fate},
                "open": self.open_count,
                "open_ids": list(self.open),
                "polls_abandoned": self.polls_abandoned,
                "hung": self.hung,
                "duration_ms": self.duration_ms,
                "adds_up": self.adds_up,
            }
        )


@dataclass(slots=True)
class Ledger:
    """Books of one process. Memory is bound by what is held, not by what was."""

    received: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    open: set[Held] = field(default_factory=set)
    by_type: Counter[str] = field(default_factory=Counter)
    """Type → messages nobody here could handle."""
    done_by_lane: Counter[str] = field(default_factory=Counter)

    def count_stranger(self, lane: str, label: str) -> None:
        """A message nobody here could handle; types beyond a bound are counted together."""
        name = f"{lane}/{label}"
        if name not in self.by_type and len(self.by_type) >= TYPES_MAX:
            name = f"{lane}/other"
        self.by_type[name] += 1

    def take(self, held: Held) -> None:
        """A message has arrived."""
        self.received += 1
        self.open.add(held)

    def close(self, held: Held, fate: Fate) -> bool:
        """It has ended; False if it had ended before, which changes nothing."""
        if held not in self.open:
            return False
        self.open.discard(held)
        self.fates[fate] += 1
        if fate is Fate.DONE:
            self.done_by_lane[held.lane] += 1
        return True

    def report(self, *, polls_abandoned: int, hung: int, duration_ms: int) -> DrainReport:
        """The books as they stand."""
        ids = sorted(held.message.message_id for held in self.open)
        return DrainReport(
            received=self.received,
            fates=dict(self.fates),
            open=tuple(ids[:NAMES_MAX]),
            open_count=len(ids),
            polls_abandoned=polls_abandoned,
            hung=hung,
            duration_ms=duration_ms,
        )
