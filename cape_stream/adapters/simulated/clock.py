"""The clock of a simulated process."""

from cape_stream.adapters.simulated.timeline import Timeline


class SimClock:
    """A `Clock` on virtual time.

    Args:
        timeline: whose time it shows.
        skew_ms: how wrong the machine's wall clock was when the process began; a steady clock
            keeps that error for the life of the process, as ours does.
    """

    def __init__(self, timeline: Timeline, skew_ms: int = 0) -> None:
        self._timeline = timeline
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        """Virtual Unix milliseconds as this process believes them."""
        return self._timeline.now_ms + self._skew_ms

    def sleep_ms(self, duration_ms: int) -> None:
        """Let virtual time pass: in a fiber by stopping it, elsewhere by running the events."""
        if self._timeline.current is not None:
            self._timeline.sleep(duration_ms)
        else:
            self._timeline.run_until(self._timeline.now_ms + duration_ms)
