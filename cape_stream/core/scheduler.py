"""The scheduler: the only owner of in-flight bookkeeping and the only writer of cursors.

Every input (ping, answer of the source, status, passing time) enters at its subject, passes down
through the topologies in topological order, and returns with post-processing: what is still
wanted from the source, and whether the subject's life has ended.

It keeps no clock and does no I/O. What it wants done stands in `take_effects`; what has changed,
in `take_changes`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from cape_stream.core import rows
from cape_stream.core.breaker import BreakerSettings
from cape_stream.core.effects import SchedulerCounters, SchedulerEffects
from cape_stream.core.inflight.lambda_state import JobRecord
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.issuing import Issuer
from cape_stream.core.lines import Lines
from cape_stream.core.operating import Operator, Ruling
from cape_stream.core.plan import DomainPlan
from cape_stream.core.retry import backoff_ms
from cape_stream.core.roster import Changes, Roster
from cape_stream.core.rows import Stored
from cape_stream.core.settling import Settler
from cape_stream.core.tracker import page_fault
from cape_stream.core.valves import Valve, valves_of
from cape_stream.model.active_row import ActiveRow
from cape_stream.model.job import Job
from cape_stream.model.operation import Operation
from cape_stream.model.request import EventPage, QueryFault, SchedulingRequest
from cape_stream.model.sequence import SEQUENCE_MAX
from cape_stream.model.status import JobStatus, StatusKind
from cape_stream.model.topology import RetrySpec

JOB_BYTES_LIMIT = 1_000_000
"""A record of a job topic takes 1,048,588 bytes (`topics/jobs.toml`), all of a job included."""
SOURCE_BEHIND_TRIES = 5
"""How often an answer may fall short of what a ping promised, or of what was seen before, until the
source is believed. What it shows later, refresh has to find."""


@dataclass(slots=True, frozen=True, kw_only=True)
class SchedulerSettings(BreakerSettings):
    """Bounds of one task's scheduler."""

    job_bytes_max: int = 900_000
    """Most bytes of events in one job; below the log's record limit (1 MiB by default)."""
    source_retry: RetrySpec = RetrySpec(first_ms=100, max_ms=30_000, floor_ms=20)
    """How a failing source is asked again, per subject."""
    buffered_events_max: int = 400
    """Most events of one subject held in memory before all but the next ones are dropped."""
    backlog_after_events: int = 200
    """A job that ends so many sequence ids behind its subject's head is backlog: it goes to the
    lane that workers take from when nothing live waits."""
    sleep_after_ms: int = 60_000
    """A subject with nothing but parked work leaves memory when none of it is due sooner."""

    def __post_init__(self) -> None:
        bounds = {
            "job_bytes_max": (1, JOB_BYTES_LIMIT),
            "buffered_events_max": (1, None),
            "backlog_after_events": (1, None),
            "sleep_after_ms": (0, None),
            "breaker_subjects": (1, None),
            "breaker_cooldown_ms": (1, None),
            "breaker_cooldown_max_ms": (self.breaker_cooldown_ms, None),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if value < least or (most is not None and value > most):
                upper = "" if most is None else f" and <= {most}"
                raise ValueError(f"{name} must be >= {least}{upper}, not {value}")
        if not self.breaker_share > 0:
            raise ValueError(f"breaker_share must be > 0, not {self.breaker_share}")


class Scheduler:
    """One task: all subjects of one partition of one domain."""

    def __init__(
        self,
        plan: DomainPlan,
        *,
        partition: int,
        epoch: int,
        settings: SchedulerSettings | None = None,
        partitions: int = 1,
    ) -> None:
        """``epoch``: grows with every owner of the task; part of job ids and fencing tokens.
        ``partitions``: among how many tasks the limits of the topologies are divided."""
        self.plan = plan
        self._settings = settings or SchedulerSettings()
        self._inflight = InflightState(valves_of(plan, self._settings, partitions))
        self._settler = Settler(plan, self._inflight)
        self._issuer = Issuer(
            plan,
            self._inflight,
            partition=partition,
            epoch=epoch,
            job_bytes_max=self._settings.job_bytes_max,
            backlog_after=self._settings.backlog_after_events,
        )
        self._lines = Lines(plan, self._inflight, self._issuer, self._advance)
        self._roster = Roster(plan, self._inflight, self._settings.sleep_after_ms)
        self._operator = Operator(plan, self._inflight, self._roster, self._issuer)
        self._places = range(len(plan.lambdas))

    # --- what the owner asks about -------------------------------------------------------------

    @property
    def counters(self) -> SchedulerCounters:
        """What has happened so far."""
        return self._inflight.counters

    @property
    def open_jobs(self) -> int:
        """Jobs that are out."""
        return len(self._inflight.jobs)

    @property
    def parked_events(self) -> int:
        """Events that are put aside until a due time."""
        return self._inflight.parked

    @property
    def active_subjects(self) -> int:
        """Subjects in memory."""
        return len(self._inflight.subjects)

    def holds(self, subject: str) -> bool:
        """True if the subject is here, so that no stored row has to be brought."""
        return self._roster.holds(subject)

    def subject(self, subject: str) -> SubjectState | None:
        """State of an active subject, to look at, not to change."""
        return self._inflight.subjects.get(subject)

    def sleeper(self, subject: str) -> SubjectState | None:
        """State of a subject that went to sleep since the last commit, to look at."""
        return self._inflight.asleep.get(subject)

    def finisher(self, subject: str) -> SubjectState | None:
        """State of a subject that ended since the last commit, to look at."""
        return self._inflight.finished.get(subject)

    def imagined(self, row: ActiveRow, now_ms: int) -> SubjectState:
        """State of a subject as its row tells, to look at; nothing of it is in memory after."""
        apart = InflightState(valves_of(self.plan, self._settings, 1))
        return rows.restore(self.plan, apart, row, now_ms)

    def known_cursors(self, subject: str, stored: Stored | None) -> list[int]:
        """One cursor per lambda of a subject that is not in memory."""
        return self._roster.known_cursors(subject, stored)

    def jobs_out(self) -> dict[str, int]:
        """Topology → its jobs that are out; those with none are left out."""
        lambdas = self.plan.lambdas
        places = (record.lambda_index for record in self._inflight.jobs.values())
        return Counter(lambdas[place].topology for place in places)

    @property
    def inflight(self) -> InflightState:
        """The in-flight state, to look at, not to change."""
        return self._inflight

    def subjects(self) -> Iterable[SubjectState]:
        """All active subjects, to look at, not to change."""
        return self._inflight.subjects.values()

    @property
    def paused(self) -> set[str]:
        """Topologies that an operator has paused; the owner stores them and puts them back."""
        return self._inflight.paused

    def next_ms(self) -> int | None:
        """When `on_tick` has something to do next."""
        next_ms = self._inflight.next_ms()
        if not self._inflight.waiting:
            return next_ms
        lines = (valve.reopens_ms for valve in self._inflight.valves if valve.line)
        return min((ms for ms in (next_ms, *lines) if ms is not None), default=None)

    def takes(self, topology: int) -> bool:
        """True if a subject that lags in the topology of this place would get somewhere."""
        span = self.plan.topologies[topology].span
        if self.plan.topologies[topology].name in self._inflight.paused:
            return False
        return not all(self._inflight.valves[place].is_full for place in span)

    @property
    def valves(self) -> Sequence[Valve]:
        """One a lambda, in plan order."""
        return self._inflight.valves

    # --- inputs --------------------------------------------------------------------------------

    def on_ping(self, subject: str, latest: int | None, stored: Stored | None, now_ms: int) -> None:
        """News of a subject. ``stored``: its row, when `holds` said it is not here."""
        self._inflight.counters.pings += 1
        state = self._inflight.subjects.get(subject)
        if state is None:
            state = self._roster.activate_for(subject, latest, stored, now_ms)
            if state is None:
                self._inflight.counters.stale_pings += 1
                return
        if latest is None:
            state.head = max(state.head, state.next_unknown())
        elif latest <= state.promised:
            return
        else:
            state.promised = latest
            state.head = max(state.head, latest)
        if state.queries:
            state.queries = dict.fromkeys(state.queries)
            return
        self._advance(state, self._places, now_ms)

    def on_page(self, page: EventPage, now_ms: int) -> None:
        """The source's answer to a query."""
        query = page.query
        state = self._inflight.subjects.get(query.subject)
        if state is None or query not in state.queries:
            return
        fault = page_fault(page)
        if fault is not None:
            self._inflight.counters.bad_pages += 1
            self.on_fault(QueryFault(query, fault), now_ms)
            return
        self._learn(state, page, now_ms)
        self._advance(state, self._places, now_ms)

    def on_request(self, request: SchedulingRequest, stored: Stored | None, now_ms: int) -> None:
        """Everything there is in an interval, decided afresh against the cursors as they are now.

        For a tracker that runs elsewhere; its view may be stale by the time it gets here.
        """
        state = self._inflight.subjects.get(request.subject)
        if state is None:
            state = self._roster.activate(request.subject, stored, now_ms)
        state.head = max(state.head, request.latest)
        if request.events:
            state.seen = max(state.seen, request.events[-1].sequence)
        state.buffer.add(request.start, request.end, request.events)
        self._advance(state, self._places, now_ms)

    def on_fault(self, fault: QueryFault, now_ms: int) -> None:
        """The source could not answer: this subject asks again later, the others go on."""
        state = self._inflight.subjects.get(fault.query.subject)
        if state is None or fault.query not in state.queries:
            return
        del state.queries[fault.query]
        state.wants.add(fault.query.start)
        self._inflight.counters.query_faults += 1
        self._rest_source(state, now_ms)

    def on_status(self, status: JobStatus, stored: Stored | None, now_ms: int) -> None:
        """A worker's report. ``stored`` as for `on_ping`."""
        inflight = self._inflight
        record = inflight.jobs.get(status.job_id)
        if record is None:
            self._on_stranger(status, stored, now_ms)
            return
        plan = self.plan.lambdas[record.lambda_index]
        if self._is_about(record, status):
            self._settler.report(record, status, now_ms)
            if status.kind is not StatusKind.HEARTBEAT:
                self._advance(record.subject, plan.affected, now_ms)
                if inflight.waiting or inflight.deferring:
                    self._lines.serve_after(inflight.valves[record.lambda_index], now_ms)

    def on_wake(self, row: ActiveRow, now_ms: int) -> None:
        """The wake-up time of a subject that sleeps has come; nothing if it is here already."""
        if not self.holds(row.subject):
            self._advance(self._roster.activate(row.subject, row, now_ms), self._places, now_ms)
            self._lines.serve(now_ms)

    def on_operation(self, operation: Operation, stored: Stored | None, now_ms: int) -> Ruling:
        """An operator's order. ``stored`` as for `on_ping`."""
        ruling = self._operator.order(operation, stored, now_ms)
        if ruling.subject is not None:
            self._advance(ruling.subject, self._places, now_ms)
        elif ruling.sweep:
            self._look_everywhere(now_ms)
        self._lines.serve(now_ms)
        return ruling

    def _look_everywhere(self, now_ms: int) -> None:
        """At every subject that the table does not tell of, for it may go on now."""
        inflight = self._inflight
        for subject in (*inflight.subjects, *inflight.finished, *inflight.asleep):
            state = inflight.subjects.get(subject)
            if state is None:
                state = self._roster.activate(subject, None, now_ms)
            self._advance(state, self._places, now_ms)

    def on_undelivered(self, job_id: str, refusal: str | None, now_ms: int) -> None:
        """The client gave this job up; the log may have it all the same.

        ``refusal``: why the log will never take it, None if it may the next time.
        """
        record = self._inflight.jobs.get(job_id)
        if record is not None:
            self._settler.withdraw(record, refusal, now_ms)
            self._lines.serve(now_ms)

    def on_tick(self, now_ms: int) -> None:
        """Time has passed: expire jobs, take up what is due."""
        for record in self._inflight.deadlines.take_expired(now_ms):
            self._settler.expire(record, now_ms)
        for state in self._inflight.wakes.take(now_ms):
            if state.source_due_ms <= now_ms:
                state.source_due_ms = 0
            elif state.source_due_ms:
                self._inflight.wake_at(state, state.source_due_ms)
            if state.parked:
                self._inflight.wake_at(state, state.next_due_ms(now_ms))
            self._advance(state, self._places, now_ms)
        self._lines.serve(now_ms)

    # --- restart -------------------------------------------------------------------------------

    def restore(self, stored: Iterable[ActiveRow], now_ms: int) -> None:
        """Put stored subjects back. Nothing is issued before `resume`."""
        for row in stored:
            rows.restore(self.plan, self._inflight, row, now_ms)
        self._inflight.dirty.clear()

    def adopt(self, job: Job, stored: Stored | None, now_ms: int) -> None:
        """A job found in the log after the stored state was made."""
        state = self._inflight.subjects.get(job.subject)
        if state is None:
            state = self._roster.activate(job.subject, stored, now_ms)
        rows.adopt(self.plan, self._inflight, state, job, now_ms)

    def settle_only(self, status: JobStatus, stored: Stored | None, now_ms: int) -> None:
        """A status read while catching up: it counts, but nothing is issued yet."""
        record = self._inflight.jobs.get(status.job_id)
        if record is None:
            self._note_stranger(status, stored, now_ms)
        elif self._is_about(record, status):
            self._settler.report(record, status, now_ms)

    def resume(self, now_ms: int) -> None:
        """Catching up has ended: every restored subject goes on."""
        for state in list(self._inflight.subjects.values()):
            self._advance(state, self._places, now_ms)
        self._lines.serve(now_ms)

    # --- outputs -------------------------------------------------------------------------------

    def take_effects(self) -> SchedulerEffects:
        """What to do for the inputs since the last call."""
        effects = self._inflight.effects
        self._inflight.effects = SchedulerEffects()
        return effects

    def take_changes(self, now_ms: int) -> Changes:
        """What to store for the inputs since the last call."""
        return self._roster.take_changes(now_ms)

    # --- inside --------------------------------------------------------------------------------

    def _is_about(self, record: JobRecord, status: JobStatus) -> bool:
        """True if the report names what its job is about; otherwise it is refused."""
        plan = self.plan.lambdas[record.lambda_index]
        if (
            record.subject.subject == status.subject
            and plan.lambda_id == status.lambda_id
            and plan.topology == status.topology
        ):
            return True
        self._inflight.counters.wrong_subject += 1
        return False

    def _learn(self, state: SubjectState, page: EventPage, now_ms: int) -> None:
        """Learn from a good page which events there are, and how far the subject goes.

        A short page says that nothing follows. If more was promised or seen, the page may be older
        than that, or come from a copy of the source that lags: the source is asked again a few
        times before it is believed.
        """
        events = page.events
        end = events[-1].sequence if events else page.query.start - 1
        seen_before, seen_now = state.queries.pop(page.query), state.seen
        if events:
            state.seen = max(state.seen, end)
        if seen_before is None:
            if None not in state.queries.values():
                state.head = max(state.head, state.next_unknown())
        elif len(events) == page.query.limit:
            state.faults = state.behind = 0
            state.head = max(state.head, min(end + 1, SEQUENCE_MAX))
        elif end < max(state.seen, state.promised) and state.behind < SOURCE_BEHIND_TRIES:
            state.behind += 1
            self._inflight.counters.source_behind += 1
            self._rest_source(state, now_ms)
        else:
            state.faults = state.behind = 0
            end = max(end, seen_before)
            state.promised = min(state.promised, end)
            others_saw = seen_now > seen_before
            state.head = max(state.head, state.seen) if others_saw else state.seen
            # It says nothing about what lies before it: another question may still be open there,
            # and a restart asks again only for what is below the head.
            state.head = max((state.head, *(query.start for query in state.queries)))
        self._keep(state, page, end)

    def _keep(self, state: SubjectState, page: EventPage, end: int) -> None:
        """Put the page into the buffer, where it covers all up to ``end``, and drop from there what
        nobody needs any more."""
        start = page.query.start
        if end < start:
            return
        buffer = state.buffer
        if buffer.intervals:
            buffer.drop_through(min(entry.high for entry in state.lambdas))
        buffer.add(start, end, page.events)
        if len(buffer.sequences) > self._settings.buffered_events_max:
            self._cut_buffer(state, start)

    def _cut_buffer(self, state: SubjectState, asked: int) -> None:
        """Keep one page of what comes next for each lambda, and one from ``asked`` on: somebody has
        just wanted that, perhaps for an event that was put aside."""
        buffer = state.buffer
        windows: list[tuple[int, int]] = []
        for start in sorted({asked, *(entry.high + 1 for entry in state.lambdas)}):
            end = buffer.covered_to(start)
            if end is None or (windows and start <= windows[-1][1]):
                continue
            page = list(islice(buffer.between(start, end), self.plan.page_limit))
            if len(page) == self.plan.page_limit:
                end = page[-1].sequence
            windows.append((start, end))
        buffer.keep_only(windows)

    def _rest_source(self, state: SubjectState, now_ms: int) -> None:
        """Ask nothing for this subject for a while."""
        state.faults += 1
        wait_ms = backoff_ms(self._settings.source_retry, state.faults, state.subject)
        state.source_due_ms = now_ms + wait_ms
        self._inflight.wake_at(state, state.source_due_ms)

    def _on_stranger(self, status: JobStatus, stored: Stored | None, now_ms: int) -> None:
        found = self._note_stranger(status, stored, now_ms)
        if found is not None:
            self._advance(found, self._places, now_ms)
            self._lines.serve(now_ms)

    def _note_stranger(
        self, status: JobStatus, stored: Stored | None, now_ms: int
    ) -> SubjectState | None:
        """Take what an unknown job's report proves; the subject it concerns, if it changed."""
        counters = self._inflight.counters
        counters.unknown_statuses += 1
        place = self.plan.by_name.get((status.topology, status.lambda_id))
        if place is None or not status.done or not self._issuer.may_have_issued(status.job_id):
            return None
        state = self._inflight.subjects.get(status.subject)
        if state is None:
            cursor = self._roster.known_cursors(status.subject, stored)[place]
            if all(sequence <= cursor for sequence in status.done):
                counters.repeated_events += len(status.done)
                return None
            state = self._roster.activate(status.subject, stored, now_ms)
        state.head = max(state.head, *status.done)
        self._settler.stranger(state, place, status)
        return state

    def _advance(self, state: SubjectState, places: Iterable[int], now_ms: int) -> None:
        """Issue, ask, and end the subject's life if nothing is left."""
        self._issuer.fill(state, places, now_ms)
        if state.wants:
            self._issuer.ask(state, now_ms)
        if state.open_jobs or state.queries or state.wants or state.source_due_ms or state.waits:
            return
        everywhere = places is self._places
        self._roster.let_go(state, now_ms, looked_everywhere=everywhere)
