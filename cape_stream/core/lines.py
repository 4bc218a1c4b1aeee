"""Who is served when a gate opens: the lines of all lambdas, one subject of each in turn."""

from collections.abc import Callable, Iterable

from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.issuing import Issuer
from cape_stream.core.plan import DomainPlan
from cape_stream.core.valves import LINE_MAX, QueueGate, Valve


class Lines:
    """Calls up subjects that wait, see `cape_stream.core.valves`.

    Args:
        plan: the domain's.
        inflight: whose lines.
        issuer: is told whose turn it is.
        advance: lets a subject go on in these lambdas.
    """

    def __init__(
        self,
        plan: DomainPlan,
        inflight: InflightState,
        issuer: Issuer,
        advance: Callable[[SubjectState, Iterable[int], int], None],
    ) -> None:
        self._plan = plan
        self._inflight = inflight
        self._issuer = issuer
        self._advance = advance

    def serve(self, now_ms: int) -> None:
        """Give all that wait what they may have now."""
        inflight = self._inflight
        if inflight.waiting:
            for queue in inflight.queues:
                self._serve_queue(queue, now_ms)
        if inflight.deferring:
            self._call_deferred()

    def serve_after(self, valve: Valve, now_ms: int) -> None:
        """The same for those that may have waited for one job of this lambda to end."""
        inflight = self._inflight
        if inflight.waiting:
            self._serve_queue(valve.queue, now_ms)
            if valve.is_limited:
                for place in self._plan.topologies[valve.topology.place].span:
                    self._serve_queue(inflight.valves[place].queue, now_ms)
        if inflight.deferring:
            self._call_deferred()

    def _serve_queue(self, queue: QueueGate, now_ms: int) -> None:
        """One subject of each lambda's line in turn, as long as the queue takes jobs."""
        inflight, issuer, lines = self._inflight, self._issuer, queue.lines
        tries = len(lines)
        while tries > 0 and queue.out < queue.limit:
            valve = next(iter(lines))
            del lines[valve]
            lines[valve] = None
            if not valve.is_open(now_ms):
                tries -= 1
                continue
            subject = issuer.pulled = _first(valve)
            inflight.step_out(valve, subject)
            self._advance(subject, (valve.place,), now_ms)
            issuer.pulled = None
            tries = len(lines)

    def _call_deferred(self) -> None:
        """Have the table looked through where a line that was full is not any more."""
        inflight = self._inflight
        for valve in inflight.valves:
            if valve.deferred and not valve.is_full and len(valve.line) <= LINE_MAX // 2:
                valve.deferred = False
                inflight.effects.sweep = True
        inflight.deferring = any(valve.deferred for valve in inflight.valves)


def _first(valve: Valve) -> SubjectState:
    """Whose turn it is: the one that waits longest; as a probe one that has not failed."""
    if not valve.breaker.is_closed:
        for subject in valve.line:
            if not subject.lambdas[valve.place].parked:
                return subject
    return next(iter(valve.line))
