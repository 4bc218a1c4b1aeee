"""How the handlers of a simulated world behave: how long they take and how they end."""

from dataclasses import dataclass
from enum import Enum
from random import Random

from cape_stream.model.job import Job
from cape_stream.model.status import EventFailure, FailureClass


class Outcome(Enum):
    """What becomes of one event in a handler's hands."""

    DONE = "done"
    FAILED = "failed"
    FORGOTTEN = "forgotten"
    """The handler gives no result for it."""
    HANDED_BACK = "handed back"
    """The worker stops here; what is left of the job goes back."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Behaviour:
    """Probabilities in [0, 1] and durations; the default never fails."""

    latencies_ms: tuple[int, ...] = (1, 3, 10)
    """What an event takes, one of these at random."""
    slow: float = 0.0
    """An event takes up to three timeouts of its job."""
    beating: float = 1.0
    """Of the slow ones, those that send heartbeats meanwhile."""
    failing: float = 0.0
    """An event fails, once in so many tries."""
    forgetting: float = 0.0
    handing_back: float = 0.0
    repeating: float = 0.0
    """A status is sent a second time, somewhat later."""
    lagging: float = 0.0
    """A status is sent only when the job may have been given up."""
    concurrency: int = 50
    """Jobs a worker runs at a time."""

    def draw_duration_ms(self, random: Random, job: Job) -> int:
        """How long the next event of ``job`` takes."""
        if random.random() < self.slow:
            return random.randint(job.timeout_ms // 2, 3 * job.timeout_ms)
        return random.choice(self.latencies_ms)

    def draw_outcome(self, random: Random) -> Outcome:
        """How it ends, unless its subject is poisoned."""
        luck = random.random()
        for outcome, share in (
            (Outcome.FAILED, self.failing),
            (Outcome.FORGOTTEN, self.forgetting),
            (Outcome.HANDED_BACK, self.handing_back),
        ):
            if luck < share:
                return outcome
            luck -= share
        return Outcome.DONE


def draw_failure(random: Random, sequence: int) -> EventFailure:
    """A failure of any class, which now and then asks for a pause."""
    kind = random.choice(list(FailureClass))
    pause_ms = random.randint(0, 200) if random.random() < 0.2 else None
    return EventFailure(sequence, kind, "simulated", pause_ms)
