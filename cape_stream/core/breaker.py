"""Tells an outage from poison: when most subjects fail on a lambda, it is the lambda.

   CLOSED → most first attempts fail, of many subjects → OPEN → cool-down over → HALF_OPEN
   HALF_OPEN → a probe succeeds → CLOSED, or fails → OPEN, twice as long for a first attempt

Only first attempts are evidence. A subject that fails for ever comes back again and again and says
nothing new; a lambda that is down fails everybody's first attempt. So the probe is a subject that
has not failed, if one waits. While it is not closed, failures cost no attempts: they are the
lambda's, not the events'.

Source: "Release It!", Nygard, 2nd ed., chapter 5 (circuit breaker); KIP-1316 names the gap between
an outage and a poison record.
"""

from dataclasses import dataclass
from enum import StrEnum

MEMORY = 16
"""Outcomes the share of failures looks back on; one more weighs 1/16."""
FORGOTTEN = 0.01
"""A share so small is none."""
PROBES_MAX = 1
"""Jobs that are out at a time while it is half open."""


class BreakerState(StrEnum):
    """Where it stands."""

    CLOSED = "closed"
    """Jobs go out."""
    OPEN = "open"
    """None goes out before the cool-down is over."""
    HALF_OPEN = "half open"
    """One goes out and tells."""


@dataclass(slots=True, frozen=True, kw_only=True)
class BreakerSettings:
    """When a lambda counts as down; the same for all lambdas of a dispatcher."""

    breaker_share: float = 0.8
    """Share of failing first attempts from which on it opens; above 1 it never does."""
    breaker_subjects: int = 10
    """So many different subjects must have failed in a row of bad news."""
    breaker_cooldown_ms: int = 1_000
    """First pause; each probe that fails in its first attempt doubles it."""
    breaker_cooldown_max_ms: int = 30_000
    """Longest such pause: a lambda that is back is noticed within it."""


class Breaker:
    """One lambda's, in one task."""

    __slots__ = (
        "_cooldown_ms",
        "_failing",
        "_probes",
        "_settings",
        "_share",
        "is_worried",
        "opened_ms",
        "opens",
        "reopens_ms",
        "state",
    )

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self.state = BreakerState.CLOSED
        self._share = 0.0
        self.is_worried = False
        """True if a success would be news; most of the time it is not."""
        self._failing: set[str] = set()
        """Subjects whose first attempts have failed while failures were the rule."""
        self._cooldown_ms = settings.breaker_cooldown_ms
        self._probes = 0
        self.opened_ms = 0
        """When it opened first; 0 while it is closed."""
        self.reopens_ms = 0
        """When the next probe may go out; only while it is open."""
        self.opens = 0
        """How often it opened; grows only."""

    @property
    def is_closed(self) -> bool:
        """True while jobs go out as ever."""
        return self.state is BreakerState.CLOSED

    def lets_through(self, now_ms: int) -> bool:
        """True if a job may go out now."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and now_ms >= self.reopens_ms:
            self.state = BreakerState.HALF_OPEN
            self._probes = 0
        return self.state is BreakerState.HALF_OPEN and self._probes < PROBES_MAX

    def on_issue(self) -> None:
        """A job went out."""
        self._probes += 1

    def on_success(self, issued_ms: int) -> None:
        """Some event of a job that was issued then is done."""
        if self.state is BreakerState.CLOSED:
            self._share -= self._share / MEMORY
            if self._share < 0.5:
                self._failing.clear()
            if self._share < FORGOTTEN:
                self._share = 0.0
                self.is_worried = False
        elif issued_ms >= self.reopens_ms:
            self._close()

    def on_failure(self, subject: str, attempt: int, issued_ms: int, now_ms: int) -> None:
        """A job failed or timed out as a whole."""
        if self.state is BreakerState.CLOSED:
            if attempt == 1 and subject not in self._failing:
                self._share += (1 - self._share) / MEMORY
                self.is_worried = True
                self._failing.add(subject)
                if len(self._failing) > 4 * self._settings.breaker_subjects:
                    self._failing.pop()
                self._open_if_down(now_ms)
        elif self.state is BreakerState.HALF_OPEN and issued_ms >= self.reopens_ms:
            if attempt == 1:
                most_ms = self._settings.breaker_cooldown_max_ms
                self._cooldown_ms = min(2 * self._cooldown_ms, most_ms)
            self._open(now_ms)

    def on_no_news(self, issued_ms: int) -> None:
        """A job came back that says nothing about the lambda, such as one handed back."""
        if self.state is BreakerState.HALF_OPEN and issued_ms >= self.reopens_ms:
            self._probes = max(0, self._probes - 1)

    def _open_if_down(self, now_ms: int) -> None:
        settings = self._settings
        many = len(self._failing) >= settings.breaker_subjects
        if many and self._share >= settings.breaker_share:
            self.opened_ms = now_ms
            self.opens += 1
            self._cooldown_ms = settings.breaker_cooldown_ms
            self._open(now_ms)

    def _open(self, now_ms: int) -> None:
        self.state = BreakerState.OPEN
        self.reopens_ms = now_ms + self._cooldown_ms

    def _close(self) -> None:
        self.state = BreakerState.CLOSED
        self._share = 0.0
        self.is_worried = False
        self._failing.clear()
        self.opened_ms = 0
