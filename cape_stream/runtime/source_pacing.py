"""How fast one source is asked: how many calls at a time, and when not at all.

Nothing here asks, waits or reads a clock; `cape_stream.runtime.questions` does.
"""

from enum import StrEnum

from cape_stream.core.retry import backoff_ms
from cape_stream.model.topology import RetrySpec
from cape_stream.runtime.settings import EngineSettings


class SourceState(StrEnum):
    """What a source is taken for, as metrics and explain show it."""

    CLOSED = "closed"
    """It answers; queries go out as fast as the limit lets them."""
    OPEN = "open"
    """It is down: queries wait, none is asked before a time that is known."""
    HALF_OPEN = "half_open"
    """One call is out to see whether it is back."""
    HANGING = "hanging"
    """As many calls as there may be have been given up and have not returned: nothing can be
    asked before one does."""


class ConcurrencyLimit:
    """Calls a source may get at a time, between 1 and a maximum, by what it makes of them.

    Additive increase, multiplicative decrease: a sign of trouble halves the limit, at most once per
    window and only if the call began after the last cut, for calls that were out together tell of
    one trouble; a success adds one divided by the limit, which is about one for each round of
    calls, if the limit was reached meanwhile. Source: Chiu and Jain, "Analysis of the Increase and
    Decrease Algorithms for Congestion Avoidance", 1989.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._most = settings.source_calls_max
        self._window_ms = settings.source_window_ms
        self._limit = float(self._most)
        self._cut_ms: int | None = None
        self.cuts = 0
        """How often it was halved."""

    @property
    def calls(self) -> int:
        """Calls that may be out now, from 1 to ``source_calls_max``."""
        return int(self._limit)

    def grow(self) -> None:
        """A call that met the limit came back in good time."""
        self._limit = min(self._limit + 1 / self._limit, float(self._most))

    def cut(self, started_ms: int, now_ms: int) -> None:
        """A call that began at ``started_ms`` was slow, or failed."""
        cut_ms = self._cut_ms
        if cut_ms is not None and (started_ms < cut_ms or now_ms - cut_ms < self._window_ms):
            return
        self._cut_ms = now_ms
        self._limit = max(1.0, self._limit / 2)
        self.cuts += 1

    def restart(self) -> None:
        """One call at a time: a source that comes back is not met by all that waited."""
        self._limit = 1.0


class SourceBreaker:
    """Tells a source that is down from subjects that cannot be read.

    Closed, it counts different subjects whose own calls failed, with no call that was answered in
    between. A single subject, however often it fails, is one; so are all that fail together with
    others that are answered. `source_failing_subjects` of them mean that it is the source: then the
    breaker opens for a time that doubles with every probe that fails. Fewer subjects need no
    breaker, for each has a backoff of its own.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._subjects_max = settings.source_failing_subjects
        self._backoff = RetrySpec(
            first_ms=settings.source_backoff_ms,
            max_ms=max(settings.source_backoff_ms, settings.source_backoff_max_ms),
            floor_ms=settings.source_backoff_ms // 2,
        )
        self._failing: set[str] = set()
        self._tries = 0
        """Probes that failed, and one for the opening."""
        self.state = SourceState.CLOSED
        self.opens_until_ms: int | None = None
        """When the next probe may leave, Unix milliseconds; None unless open."""
        self.openings = 0
        """How often it went from closed to open."""

    def answered(self) -> None:
        """A call came back with answers, whatever they say: the source is there."""
        self._failing.clear()
        self._tries = 0
        self.state = SourceState.CLOSED
        self.opens_until_ms = None

    def failed(self, subject: str, now_ms: int) -> bool:
        """A call for this subject alone has failed; True if that opens the breaker."""
        if self.state is not SourceState.CLOSED:
            return False
        self._failing.add(subject)
        if len(self._failing) < self._subjects_max:
            return False
        self.openings += 1
        self._open(now_ms)
        return True

    def may_probe(self, now_ms: int) -> bool:
        """True if it is open and has been for long enough."""
        return self.opens_until_ms is not None and now_ms >= self.opens_until_ms

    def probe(self) -> None:
        """One call leaves."""
        self.state = SourceState.HALF_OPEN
        self.opens_until_ms = None

    def probe_failed(self, now_ms: int) -> None:
        """That call has failed. It no longer matters if another one was answered meanwhile."""
        if self.state is SourceState.HALF_OPEN:
            self._open(now_ms)

    def probe_withdrawn(self, now_ms: int) -> None:
        """That call never reached the source: another one may leave at once."""
        if self.state is SourceState.HALF_OPEN:
            self.state = SourceState.OPEN
            self.opens_until_ms = now_ms

    def _open(self, now_ms: int) -> None:
        """The time it opens at is the salt, so members that see one outage spread."""
        self.state = SourceState.OPEN
        self._tries += 1
        self.opens_until_ms = now_ms + backoff_ms(self._backoff, self._tries, str(now_ms))
