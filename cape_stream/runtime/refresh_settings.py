"""Bounds and periods of the sweep over the event sources."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class RefreshSettings:
    """One field, one reason.

    Raises:
        ValueError: a value is out of its range; the message names it.
    """

    interval_ms: int = 2_000
    """Pause between two looks at a source that had nothing more to tell: how late the news of a
    source that never pings may be."""
    limit: int = 1_000
    """Most subjects one call to a source may return, >= 1."""
    full_interval_ms: int = 3_600_000
    """Pause between two sweeps from the very beginning, the net under everything a source or a log
    may have lost; 0 switches them off."""
    full_pause_ms: int = 100
    """Pause between two calls of such a sweep, so that it never crowds out the news."""
    store_interval_ms: int = 1_000
    """Watermarks are stored this often; a new leader repeats what came after the last one."""
    backoff_first_ms: int = 1_000
    """Pause after a source failed once; doubles with every further failure."""
    backoff_max_ms: int = 60_000
    """Longest pause after a failure."""
    call_timeout_ms: int = 30_000
    """A call that takes longer counts as failed, and the source is asked again."""
    calls_hanging_max: int = 3
    """Calls of one sweep that may hang at a time, >= 1; above it the source is not asked again
    before one of them returns, for each of them holds a thread."""

    def __post_init__(self) -> None:
        for name in ("interval_ms", "limit", "backoff_first_ms", "calls_hanging_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, not {getattr(self, name)}")
