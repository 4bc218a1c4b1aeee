"""Whether a lambda may have another job now, and which subjects wait until it may.

A job passes four gates: its topology (so many at a time, so many a second), its lambda's
breaker, its worker queue (so many as the workers take in time), and its turn: subjects that wait
stand in a line, and whoever comes later stands behind them.
"""

from collections import OrderedDict
from collections.abc import Sequence

from cape_stream.core.breaker import Breaker, BreakerSettings, BreakerState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import DomainPlan, LambdaPlan, TopologyPlan

LINE_MAX = 5_000
"""Most subjects that wait in memory for one lambda; the others leave it and are found again by the
sweep of the table, so that a queue that stands still costs its neighbours nothing."""
UNLIMITED = 2**62
QUEUE_FIRST = 500
QUEUE_LEAST = 4
QUEUED_SHARE = 4
"""A job may spend 1/4 of its timeout in its queue; more, and the queue gets fewer."""
QUEUED_MS_MAX = 2_000
"""And never more than this: news should not stand behind a backlog for long."""


class QueueGate:
    """Jobs that are out in one worker queue, and how many may be.

    The limit follows the age at which workers take jobs: it grows by one a job while all of it is
    used and jobs are taken soon (so it doubles in a round trip), and shrinks by a third, at most
    once a round trip, when they are old.

    Source: "Congestion Avoidance and Control", Jacobson, SIGCOMM 1988.
    """

    __slots__ = ("_credit", "_shrunk", "_shrinks_ms", "limit", "lines", "name", "out", "shrinks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.out = 0
        self.limit = QUEUE_FIRST
        self.lines: dict[Valve, None] = {}
        """Lambdas whose subjects wait, in the order in which they have their turn."""
        self.shrinks = 0
        """How often it had to shrink; grows only."""
        self._shrunk = False
        self._shrinks_ms = 0
        self._credit = 0.0

    def learn(self, queued_ms: int, queued_ms_max: int, now_ms: int) -> None:
        """A worker took a job after so long in the queue; longer than the most is too late."""
        if queued_ms > queued_ms_max:
            if now_ms >= self._shrinks_ms:
                self.limit = max(QUEUE_LEAST, min(self.limit, self.out + 1) * 2 // 3)
                self.shrinks += 1
                self._shrunk = True
                self._shrinks_ms = now_ms + queued_ms
        elif self.out + 1 >= self.limit:
            self._credit += 1 / self.limit if self._shrunk else 1.0
            if self._credit >= 1.0:
                self._credit = 0.0
                self.limit += 1


class TopologyGate:
    """Jobs that are out for one topology, and how many may be, at a time and a second."""

    __slots__ = ("_free_ms", "_gap_ms", "limit", "name", "out", "place")

    def __init__(
        self, name: str, in_flight_max: int | None, jobs_per_s_max: float | None, place: int = 0
    ) -> None:
        self.name = name
        self.place = place
        """In the plan's topologies."""
        self.out = 0
        self.limit = in_flight_max or UNLIMITED
        self._gap_ms = 1_000 / jobs_per_s_max if jobs_per_s_max else 0.0
        self._free_ms = 0.0
        """When the next job may go out; up to a second behind the clock, which allows a burst."""

    @property
    def is_limited(self) -> bool:
        """True if somebody has set a limit."""
        return bool(self._gap_ms) or self.limit < UNLIMITED

    def frees_ms(self) -> int:
        """When the rate lets the next job out."""
        return -int(-self._free_ms // 1)

    def is_in_rate(self, now_ms: int) -> bool:
        """True if the rate lets a job out now."""
        return not self._gap_ms or self._free_ms <= now_ms

    def on_issue(self, now_ms: int) -> None:
        """A job went out."""
        self.out += 1
        if self._gap_ms:
            self._free_ms = max(self._free_ms, now_ms - 1_000) + self._gap_ms


class Valve:
    """All gates of one lambda, and its line."""

    __slots__ = (
        "breaker",
        "deferred",
        "is_limited",
        "line",
        "place",
        "queue",
        "queued_ms_max",
        "reopens_ms",
        "topology",
    )

    def __init__(
        self, plan: LambdaPlan, topology: TopologyGate, queue: QueueGate, breaker: Breaker
    ) -> None:
        self.place = plan.index
        self.queued_ms_max = min(plan.timeout_ms // QUEUED_SHARE, QUEUED_MS_MAX)
        """How old jobs may be when workers take them before the queue gets fewer."""
        self.is_limited = topology.is_limited
        """True if the topology's gate has to be asked; most have none."""
        self.topology = topology
        self.queue = queue
        self.breaker = breaker
        self.line: OrderedDict[SubjectState, None] = OrderedDict()
        """Subjects that wait, the longest first. A plain dict would walk over all that have left
        it to find the first."""
        self.deferred = False
        """True if some subject found the line full and left memory."""
        self.reopens_ms: int | None = None
        """When time alone may open it, as of the last `is_open` that said no; None if it takes
        something else, such as a job that ends."""

    def is_open(self, now_ms: int) -> bool:
        """True if a job may go out now."""
        topology, queue = self.topology, self.queue
        self.reopens_ms = None
        if queue.out >= queue.limit or topology.out >= topology.limit:
            return False
        if not topology.is_in_rate(now_ms):
            self.reopens_ms = topology.frees_ms()
            return False
        if not self.breaker.lets_through(now_ms):
            if self.breaker.state is BreakerState.OPEN:
                self.reopens_ms = self.breaker.reopens_ms
            return False
        return True

    def closed_by(self, now_ms: int) -> str | None:
        """Why no job may go out now, in words; None if one may."""
        if not self.breaker.lets_through(now_ms):
            return f"the breaker is {self.breaker.state}: most subjects fail on this lambda"
        if self.topology.out >= self.topology.limit:
            return f"topology {self.topology.name} has its {self.topology.limit} jobs out"
        if not self.topology.is_in_rate(now_ms):
            return f"topology {self.topology.name} has used up its rate"
        if self.queue.out >= self.queue.limit:
            return f"queue {self.queue.name} has {self.queue.out} jobs of this partition already"
        return None

    @property
    def is_full(self) -> bool:
        """True if nobody else may wait in memory."""
        return len(self.line) >= LINE_MAX

    @property
    def share(self) -> int:
        """Most jobs that one subject may have out: half of what all may."""
        return max(1, min(self.queue.limit, self.topology.limit) // 2)

    def on_issue(self, now_ms: int) -> None:
        """A job went out; its queue has counted it."""
        if self.is_limited:
            self.topology.on_issue(now_ms)
        if self.breaker.state is not BreakerState.CLOSED:
            self.breaker.on_issue()

    def on_report(self, issued_ms: int, queued_ms: int, now_ms: int, *, any_done: bool) -> None:
        """A worker has reported on a job; quick where there is nothing to learn."""
        queue, breaker = self.queue, self.breaker
        if queued_ms > self.queued_ms_max or queue.out + 1 >= queue.limit:
            queue.learn(queued_ms, self.queued_ms_max, now_ms)
        if any_done and breaker.is_worried:
            breaker.on_success(issued_ms)


def valves_of(plan: DomainPlan, settings: BreakerSettings, partitions: int) -> Sequence[Valve]:
    """One valve a lambda, in plan order, for one of so many partitions."""
    topologies = [
        _topology_gate(entry, place, partitions) for place, entry in enumerate(plan.topologies)
    ]
    queues = {entry.queue: QueueGate(entry.queue) for entry in plan.lambdas}
    return [
        Valve(entry, topologies[entry.topology_index], queues[entry.queue], Breaker(settings))
        for entry in plan.lambdas
    ]


def _topology_gate(plan: TopologyPlan, place: int, partitions: int) -> TopologyGate:
    """A partition's share of the limits: never less than one job."""
    most, rate = plan.in_flight_max, plan.jobs_per_s_max
    most, rate = most and -(-most // partitions), rate and rate / partitions
    return TopologyGate(plan.name, most, rate, place)
