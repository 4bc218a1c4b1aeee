"""What may go wrong and how long things take, as plain numbers drawn from one seed."""

from dataclasses import dataclass
from random import Random

Span = tuple[int, int]
"""Closed range of virtual milliseconds to draw from."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Faults:
    """Probabilities in [0, 1] and durations; the default is a perfect, instant world."""

    commit_retry: float = 0.0
    """A commit is refused before it began."""
    commit_abort: float = 0.0
    """A commit is aborted after its records were written."""
    poll_retry: float = 0.0
    """A member's poll finds the log away."""
    poll_short: float = 0.0
    """A poll returns a random part of what is there."""
    assign_part: float = 0.0
    """A member is given a random part of its partitions now and the others with a later answer."""
    read_retry: float = 0.0
    """A batch of a reader finds the log away."""
    send_fail: float = 0.0
    """The producer gives up a record."""
    ack_lost: float = 0.0
    """The log has a record, and the producer gives it up all the same."""
    send_full: float = 0.0
    """The producer's local queue is full for now."""
    source_raise: float = 0.0
    """A whole `fetch_many` or `changed_since` fails."""
    source_fault: float = 0.0
    """One query of a call is answered with a `QueryFault`."""
    source_hang: float = 0.0
    """A source call takes ``hang_ms``."""
    source_partial: float = 0.0
    """A page ends early, as from a replica that lags."""
    source_garbage: float = 0.0
    """A page breaks the rules: unsorted, repeated, out of range, too many."""

    fetch_ms: Span = (0, 0)
    """From a record's arrival to a waiting member."""
    heartbeat_ms: Span = (0, 0)
    """Between two heartbeats of a member; well below the session timeout."""
    answer_ms: Span = (0, 0)
    """From a heartbeat to its answer, until which a member that was put out does not know it."""
    send_ms: Span = (0, 0)
    """A sent record's stay in the producer's buffer; it dies with the process."""
    wire_ms: Span = (0, 0)
    """From the buffer to the log; no longer in the process's hands."""
    ack_ms: Span = (0, 0)
    """From the log back to the producer."""
    commit_write_ms: Span = (0, 0)
    """From the begin of a transaction to the check of the member's epoch."""
    commit_end_ms: Span = (0, 0)
    """From there to the end of the transaction, which holds readers up meanwhile."""
    commit_answer_ms: Span = (0, 0)
    """From there to the committer."""
    offsets_ms: Span = (0, 0)
    """How long a `Member.commit` takes to be stored."""
    read_ms: Span = (0, 0)
    """One batch of a reader."""
    start_ms: Span = (0, 0)
    """Background work: from its submission to its begin."""
    show_ms: Span = (0, 0)
    """Background work: from its end to when the loop can see it."""
    source_ms: Span = (0, 0)
    """One call of a source."""
    hang_ms: Span = (60_000, 600_000)
    """One call of a source that hangs."""


CALM = Faults()
"""Nothing fails and nothing takes time."""

STEADY = Faults(
    fetch_ms=(0, 3),
    heartbeat_ms=(5, 50),
    answer_ms=(1, 20),
    send_ms=(0, 3),
    wire_ms=(0, 3),
    ack_ms=(0, 3),
    commit_write_ms=(5, 30),
    commit_end_ms=(5, 30),
    commit_answer_ms=(1, 10),
    offsets_ms=(1, 20),
    read_ms=(0, 5),
    start_ms=(0, 5),
    show_ms=(0, 5),
    source_ms=(1, 20),
)
"""Nothing fails, everything takes a realistic time."""

ROUGH = Faults(
    commit_retry=0.05,
    commit_abort=0.05,
    poll_retry=0.02,
    poll_short=0.3,
    assign_part=0.1,
    read_retry=0.05,
    send_fail=0.01,
    ack_lost=0.01,
    send_full=0.01,
    source_raise=0.03,
    source_fault=0.03,
    source_hang=0.002,
    source_partial=0.05,
    fetch_ms=(0, 10),
    heartbeat_ms=(5, 200),
    answer_ms=(1, 100),
    send_ms=(0, 15),
    wire_ms=(0, 15),
    ack_ms=(0, 15),
    commit_write_ms=(1, 60),
    commit_end_ms=(1, 60),
    commit_answer_ms=(0, 30),
    offsets_ms=(0, 50),
    read_ms=(0, 20),
    start_ms=(0, 20),
    show_ms=(0, 20),
    source_ms=(1, 60),
)
"""Everything fails now and then, and nothing can be relied on to be quick."""


class Dice:
    """The seeded chance of a world: says whether a fault happens and how long a step takes.

    Args:
        seed: two dice of one seed roll alike.
        faults: the odds, which the world may replace at any time.
    """

    def __init__(self, seed: int, faults: Faults = CALM) -> None:
        self.random = Random(seed)
        self.faults = faults

    def happens(self, probability: float) -> bool:
        """True with ``probability``; draws nothing for 0, so that calm parts cost no luck."""
        return probability > 0 and self.random.random() < probability

    def draw_ms(self, span: Span) -> int:
        """A duration in the closed ``span``."""
        return span[0] if span[0] == span[1] else self.random.randint(*span)
