"""Which jobs a lambda may have now, and which events are missing for that.

A lambda gets the events past ``high`` that the buffer covers without a gap, as far as everything it
depends on has done them. Where the buffer ends before the subject does, the position is wanted
and the tracker plans a query for it: early, so that a backlog never runs dry between batches.
"""

from collections.abc import Iterable
from itertools import islice

from cape_stream.core.breaker import BreakerState
from cape_stream.core.contents import bytes_in_job, event_bytes, with_inputs
from cape_stream.core.effects import OversizedEvent
from cape_stream.core.gates import gates_open, gates_reach
from cape_stream.core.inflight.lambda_state import JobRecord, LambdaState, Parked
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.job_ids import may_be_ours
from cape_stream.core.plan import DomainPlan, LambdaPlan
from cape_stream.core.retry import backoff_ms
from cape_stream.core.tracker import plan_starts
from cape_stream.core.valves import Valve
from cape_stream.model.event import Event
from cape_stream.model.job import BACKLOG, LIVE, Job
from cape_stream.model.request import EventQuery
from cape_stream.model.status import FailureClass

PREFETCH_MAX = 1_000
"""With more subjects in a line, those behind them fetch no events before it is their turn."""

TOGETHER_MS = 1_000
"""How long what failed waits for what failed with it: the buffer may be too small for all of it."""

_Batch = tuple[list[Event], list[int]]
"""Events of one job, and their sequence ids."""

GONE = "the source no longer returns this event"


class Issuer:
    """Makes jobs and event queries for one task. Decides nothing about their outcome."""

    def __init__(
        self,
        plan: DomainPlan,
        inflight: InflightState,
        *,
        partition: int,
        epoch: int,
        job_bytes_max: int,
        backlog_after: int,
    ) -> None:
        self._plan = plan
        self._inflight = inflight
        self._partition = partition
        self._epoch = epoch
        self._job_bytes_max = job_bytes_max
        self._backlog_after = backlog_after
        self.pulled: SubjectState | None = None
        """The subject whose turn it is, if it has stood in a line."""
        self._prefix = f"{partition}-{epoch:x}-"
        self._count = 0

    @property
    def newest_job(self) -> tuple[int, int]:
        """Age of the newest job issued, see `cape_stream.core.job_ids`."""
        return self._epoch, self._count

    def may_have_issued(self, job_id: str) -> bool:
        """True if the id is one that this task has given out, now or under an earlier owner."""
        return may_be_ours(job_id, self._partition, self._epoch, self._count)

    def fill(self, subject: SubjectState, places: Iterable[int], now_ms: int) -> None:
        """Issue what these lambdas may have now; note in ``subject.wants`` what they lack."""
        plans, states, head = self._plan.lambdas, subject.lambdas, subject.head
        valves, paused = self._inflight.valves, self._inflight.paused
        shared: dict[tuple[int, int], _Batch | None] = {}
        for place in places:
            state = states[place]
            if state.high >= head and not state.parked:
                continue
            plan = plans[place]
            if paused and plan.topology in paused:
                continue
            valve = valves[place]
            queue = valve.queue
            if (
                valve.line
                or queue.out >= queue.limit
                or valve.is_limited
                or valve.breaker.state is not BreakerState.CLOSED
            ) and not self._has_turn(subject, plan, state, valve, now_ms):
                continue
            if (
                not plan.gates
                and state.is_plain()
                and self._fill_plain(subject, plan, state, now_ms, shared)
            ):
                continue
            if state.parked and not self._fill_parked(subject, plan, state, now_ms):
                continue
            if plan.ordered and (state.jobs or state.parked):
                if not state.parked:
                    self._look_ahead(subject, plan, state)
            else:
                self._fill_fresh(subject, plan, state, now_ms)

    def _has_turn(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        state: LambdaState,
        valve: Valve,
        now_ms: int,
    ) -> bool:
        """True if the valve is open and nobody stands before the subject; else it waits."""
        is_open = valve.is_open(now_ms)
        if is_open and (not valve.line or subject is self.pulled):
            return True
        self._wait(subject, plan, state, valve, now_ms)
        if is_open:
            valve.reopens_ms = now_ms  # Time has opened it: the line is served next.
        return False

    def _wait(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        state: LambdaState,
        valve: Valve,
        now_ms: int,
    ) -> None:
        """The valve is closed: stand in its line. Not without the events, and not before another
        topology has done them: in the line it would only be called up for nothing."""
        if not (state.parked and state.is_due(now_ms)):
            position = state.high + 1
            if position > subject.head:
                return
            if plan.gates and not gates_reach(subject, plan, position):
                return
            if subject.buffer.covered_to(position) is None:
                if subject.queries:
                    return
                if len(valve.line) < PREFETCH_MAX:
                    subject.wants.add(position)
                    return
        self._inflight.line_up(valve, subject)

    def ask(self, subject: SubjectState, now_ms: int) -> None:
        """Make the fewest queries for what ``subject`` wants, unless its source has to rest."""
        wants = subject.wants
        if subject.source_due_ms > now_ms:
            return
        limit = self._plan.page_limit
        if subject.queries:
            wants = {
                want
                for want in wants
                if not any(q.start <= want < q.start + limit for q in subject.queries)
            }
        for start in plan_starts(wants, limit):
            query = EventQuery(subject.subject, start, limit)
            subject.queries[query] = subject.seen
            self._inflight.effects.queries.append(query)
            self._inflight.counters.queries += 1
        subject.wants.clear()

    def _fill_plain(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        state: LambdaState,
        now_ms: int,
        shared: dict[tuple[int, int], _Batch | None],
    ) -> bool:
        """The first job for a lambda that has nothing open and waits for nobody; False if that is
        not all it may have.

        By far the most frequent case, and most topologies stand at the same position: they share
        one batch. Whatever is special is left to `_fill_fresh`, which gives the same result.
        """
        position = state.high + 1
        key = (position, plan.max_batch)
        if key not in shared:
            shared[key] = self._plain_batch(subject, position, plan.max_batch)
        batch = shared[key]
        if batch is None:
            return False
        events, sequences = batch
        if not events:
            subject.wants.add(position)
            return True
        state.high = sequences[-1]
        self._issue(subject, plan, state, events, sequences, 1 + state.floor, 0, now_ms, None)
        return state.high >= subject.head

    def _plain_batch(self, subject: SubjectState, position: int, limit: int) -> _Batch | None:
        """The next events from ``position`` as one job; empty where the buffer does not cover it,
        None where it takes a closer look."""
        end = subject.buffer.covered_to(position)
        if end is None:
            return [], []
        events = list(islice(subject.buffer.between(position, end), limit))
        size = 0
        for event in events:
            size += event_bytes(event)
        if not events or size > self._job_bytes_max:
            return None
        return events, [event.sequence for event in events]

    def _fill_fresh(
        self, subject: SubjectState, plan: LambdaPlan, state: LambdaState, now_ms: int
    ) -> None:
        """Issue events that this lambda never had."""
        buffer = subject.buffer
        valve = self._inflight.valves[plan.index]
        another = False
        while (position := state.high + 1) <= subject.head:
            if not self._may_have(subject, state, valve, now_ms, another=another):
                return
            end = buffer.covered_to(position)
            if end is None:
                self._look_ahead(subject, plan, state)
                return
            batch, reached = self._next_batch(subject, plan, state, position, end)
            if batch:
                self._issue_or_refuse(subject, plan, state, batch, 1 + state.floor, 0, now_ms, None)
                another = True
                if plan.ordered:
                    break
            elif not reached:
                break
        self._look_ahead(subject, plan, state)

    def _may_have(
        self,
        subject: SubjectState,
        state: LambdaState,
        valve: Valve,
        now_ms: int,
        *,
        another: bool,
    ) -> bool:
        """True if the subject may have a job: no more than its share, and in turn with others."""
        if state.jobs and len(state.jobs) >= valve.share:
            return False
        if (another and valve.line) or not valve.is_open(now_ms):
            self._inflight.line_up(valve, subject)
            return False
        return True

    def _next_batch(
        self, subject: SubjectState, plan: LambdaPlan, state: LambdaState, start: int, end: int
    ) -> tuple[list[Event], bool]:
        """The next fresh events of one job from [start, end], and whether ``high`` moved.

        Moves ``high`` over everything it takes and everything that is accounted for already.
        """
        room = plan.window - state.open_events()
        known = state.accounted() if start <= state.unsure_to else None
        if known is not None and room < 1:
            # What is done beyond a gap fills the window; only closing the gap makes room again.
            end, room = min(end, state.unsure_to), plan.max_batch
        room = min(room, plan.max_batch)
        batch: list[Event] = []
        size = 0
        before = state.high
        for event in subject.buffer.between(start, end):
            sequence = event.sequence
            if plan.gates and not gates_open(subject, plan, sequence):
                break
            if known is not None and sequence in known:
                state.high = sequence
                continue
            size += bytes_in_job(subject, plan, event)
            if len(batch) >= room or (batch and size > self._job_bytes_max):
                break
            if not batch and state.high > before:
                self._pass_known(subject, state)
            batch.append(event)
            state.high = sequence
        if not batch and state.high > before:
            self._pass_known(subject, state)
        return batch, state.high > before

    def _pass_known(self, subject: SubjectState, state: LambdaState) -> None:
        """``high`` has moved over events that were accounted for: the cursor may follow. To be
        called before an event that is in no job yet lies at or below ``high``."""
        state.settle(())
        self._inflight.dirty[subject] = None

    def _fill_parked(
        self, subject: SubjectState, plan: LambdaPlan, state: LambdaState, now_ms: int
    ) -> bool:
        """Issue parked events whose time has come; ordered: only from the oldest on. False if it
        has to wait in line before it may have anything else."""
        if plan.ordered and state.jobs:
            return True
        valve = self._inflight.valves[plan.index]
        run: list[Event] = []
        size, kind = 0, 0
        found = self._due_events(subject, plan, state, now_ms)
        for sequence in sorted(state.parked):
            parked, event = state.parked[sequence], found.get(sequence)
            if event is not None:
                grown = size + bytes_in_job(subject, plan, event)
                fits = len(run) < plan.max_batch and grown <= self._job_bytes_max
                # What has failed goes together, but not with what was only handed back.
                own_kind = parked.attempts if plan.ordered else int(parked.charged > 0)
                if run and (own_kind != kind or not fits):
                    self._reissue(subject, plan, state, run, now_ms)
                    run, grown = [], bytes_in_job(subject, plan, event)
                    if plan.ordered:
                        return True
                    if not self._may_have(subject, state, valve, now_ms, another=True):
                        return False
                run.append(event)
                size, kind = grown, own_kind
            elif plan.ordered:
                break
        if run:
            self._reissue(subject, plan, state, run, now_ms)
        return True

    def _due_events(
        self, subject: SubjectState, plan: LambdaPlan, state: LambdaState, now_ms: int
    ) -> dict[int, Event]:
        """Parked events that are due; what is missing is asked for. Those that failed go together:
        for a moment none goes before all are here, if one page holds them."""
        found: dict[int, Event] = {}
        late_ms = now_ms - TOGETHER_MS
        failed = [q for q, p in state.parked.items() if p.charged and late_ms < p.due_ms <= now_ms]
        together = bool(failed) and max(failed) - min(failed) < self._plan.page_limit
        awaited = False
        for sequence in sorted(state.parked):
            parked = state.parked[sequence]
            # Adopted jobs may have been issued on successes that are lost, inputs and all.
            if parked.due_ms > now_ms or not gates_open(subject, plan, sequence):
                continue
            event = subject.buffer.get(sequence)
            if event is not None:
                found[sequence] = event
                continue
            self._ask_again(subject, plan, sequence, parked, now_ms)
            awaited = awaited or sequence in failed
        if awaited and together and not plan.ordered:
            return {q: e for q, e in found.items() if q not in failed}
        return found

    def _ask_again(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        sequence: int,
        parked: Parked,
        now_ms: int,
    ) -> None:
        """A parked event is due and its payload is not here: want it, unless the source has just
        answered without it. Then it waits on, visibly: nothing is ever silently dropped."""
        if subject.buffer.covered_to(sequence) is None:
            subject.wants.add(sequence)
            return
        parked.charged += 1
        parked.failure_class = FailureClass.PERMANENT
        parked.last_error = GONE
        parked.last_ms = now_ms
        parked.due_ms = now_ms + backoff_ms(plan.retry, parked.charged, subject.subject)
        subject.buffer.drop_through(sequence)
        self._inflight.counters.vanished_events += 1
        self._inflight.dirty[subject] = None
        self._inflight.wake_at(subject, parked.due_ms)

    def _reissue(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        state: LambdaState,
        events: list[Event],
        now_ms: int,
    ) -> None:
        unpark = self._inflight.unpark
        carried = {e.sequence: unpark(subject, state, e.sequence) for e in events}
        attempt = max(parked.attempts for parked in carried.values()) + 1
        charged = max(parked.charged for parked in carried.values())
        self._issue_or_refuse(subject, plan, state, events, attempt, charged, now_ms, carried)

    def _issue_or_refuse(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        state: LambdaState,
        events: list[Event],
        attempt: int,
        charged: int,
        now_ms: int,
        carried: dict[int, Parked] | None,
    ) -> None:
        """Make one job of ``events``, unless it is one event that fits no job."""
        if len(events) == 1:
            size = bytes_in_job(subject, plan, events[0])
            if size > self._job_bytes_max:
                self._refuse(subject, plan, state, events[0], size, now_ms, carried)
                return
        if plan.inputs:
            events = with_inputs(subject, self._plan, plan, events)
        sequences = [event.sequence for event in events]
        self._issue(subject, plan, state, events, sequences, attempt, charged, now_ms, carried)

    def _issue(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        state: LambdaState,
        events: list[Event],
        sequences: list[int],
        attempt: int,
        charged: int,
        now_ms: int,
        carried: dict[int, Parked] | None,
    ) -> None:
        """Make one job of ``events`` and register it."""
        self._count += 1
        job_id = f"{self._prefix}{self._count:x}"
        timeout_ms = plan.timeout_ms
        inflight = self._inflight
        inflight.register(
            state,
            JobRecord(
                job_id,
                subject,
                plan.index,
                sequences,
                attempt,
                charged,
                now_ms,
                timeout_ms,
                carried,
                self._epoch,
            ),
        )
        inflight.effects.jobs.append(
            Job(
                job_id,
                self._plan.name,
                self._partition,
                subject.subject,
                plan.topology,
                plan.lambda_id,
                plan.queue,
                self._epoch,
                attempt,
                now_ms,
                timeout_ms,
                events,
                LIVE if subject.head - sequences[-1] < self._backlog_after else BACKLOG,
            )
        )
        inflight.counters.jobs_issued += 1
        if attempt > 1:
            inflight.counters.jobs_retried += 1

    def _refuse(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        state: LambdaState,
        event: Event,
        size: int,
        now_ms: int,
        carried: dict[int, Parked] | None,
    ) -> None:
        """Park an event that fits no job: the subject waits, its neighbours do not."""
        parked = carried[event.sequence] if carried else Parked(0, 0, 0)
        if parked.failure_class is None:
            what = OversizedEvent(subject.subject, plan.index, event.sequence, size)
            self._inflight.effects.oversized.append(what)
            self._inflight.counters.oversized_events += 1
            parked.first_ms = now_ms
            parked.first_error = f"event of {size} bytes is over the job limit"
        parked.last_error = parked.first_error
        parked.last_ms = now_ms
        parked.failure_class = FailureClass.INVALID
        parked.charged += 1
        parked.due_ms = now_ms + backoff_ms(plan.retry, parked.charged, subject.subject)
        self._inflight.park(subject, state, event.sequence, parked)

    def _look_ahead(self, subject: SubjectState, plan: LambdaPlan, state: LambdaState) -> None:
        """Want the next page once the buffer holds nothing more for this lambda."""
        position = state.high + 1
        if position > subject.head:
            return
        end = subject.buffer.covered_to(position)
        if end is not None:
            if next(subject.buffer.between(position, end), None) is not None:
                return
            position = end + 1
            if position > subject.head:
                return
        if not plan.gates or gates_reach(subject, plan, position):
            subject.wants.add(position)
