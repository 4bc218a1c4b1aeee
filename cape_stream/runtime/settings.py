"""Bounds and periods of the engine."""

from dataclasses import dataclass, fields

ZERO_IS_FINE = frozenset(
    ("commit_interval_ms", "idle_poll_ms", "busy_poll_ms", "sweep_interval_ms")
)
"""As often as can be, or not at all; everything else that is 0 would mean that nothing is done."""


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineSettings:
    """One field, one reason. The defaults are what the benchmarks run with.

    Raises:
        ValueError: a value is out of its range; the message names it.
    """

    commit_interval_ms: int = 100
    """How often state goes out. Longer costs less and replays more after a crash."""
    poll_records_max: int = 500
    """Most records taken in one turn; bounds how long a turn may take."""
    idle_poll_ms: int = 20
    """Longest wait for records when nothing else is due."""
    busy_poll_ms: int = 1
    """Longest wait for records while answers of sources or commits are expected."""
    load_max: int = 50_000
    """Jobs out plus subjects in memory, over all tasks, above which no pings are taken."""
    restores_max: int = 2
    """Tasks restored at a time; the others go on working or wait."""
    close_timeout_ms: int = 10_000
    """How long a graceful stop may wait for the log."""
    sweep_interval_ms: int = 60_000
    """Pause between two sweeps over a task's own table; 0 switches them off."""
    sweep_rows: int = 500
    """Rows per turn that a sweep looks at."""
    due_scan_interval_ms: int = 100
    """How often the table is looked through for subjects whose wake-up time has come. Rarely means
    that many wake in the same turn, and everybody else waits for them."""
    wakes_max: int = 50
    """Most subjects woken in one turn, for the same reason."""
    source_calls_max: int = 8
    """Calls to one source at a time, those included that hang: a source of which all calls hang
    is not asked before one returns, and takes no thread from the others. It gets fewer, down to
    one, while its answers are slow or fail."""
    source_batch_max: int = 200
    """Most queries in one call to a source."""
    source_timeout_ms: int = 30_000
    """A call that takes longer is given up; its subjects are asked again, each alone."""
    source_slow_ms: int = 5_000
    """An answer that takes longer halves the calls that go out at a time."""
    source_window_ms: int = 1_000
    """At most one such halving in this time; and for so long an answer shows that a subject which
    fails alone is itself at fault, and not the source."""
    source_failing_subjects: int = 8
    """So many different subjects, each asked alone, that fail with no call answered in between,
    mean that the source is down: queries wait then and get no faults."""
    source_backoff_ms: int = 1_000
    """A source that is down is left alone for about this long, twice that after the first probe
    that fails, and so on; jittered."""
    source_backoff_max_ms: int = 15_000
    """Longest such time: a source that is back is asked within it."""

    def __post_init__(self) -> None:
        for each in fields(self):
            least = 0 if each.name in ZERO_IS_FINE else 1
            value = getattr(self, each.name)
            if value < least:
                raise ValueError(f"{each.name} must be >= {least}, not {value}")
