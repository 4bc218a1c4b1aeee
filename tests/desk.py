"""A desk to try a scheduler at: its time, its source, its table, and its jobs under short names.

The scheduler is the real one. What a dispatcher does around it, the desk does by hand and in the
open: it carries effects out, stores rows when told to, and crashes when told to.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import msgpack

from cape_stream.core import rows
from cape_stream.core.beginnings import lags
from cape_stream.core.carrying import holds_unserved
from cape_stream.core.effects import OversizedEvent, SchedulerCounters
from cape_stream.core.inflight.lambda_state import JobRecord, LambdaState
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.operating import Ruling
from cape_stream.core.plan import compile_plan
from cape_stream.core.scheduler import Scheduler, SchedulerSettings
from cape_stream.core.valves import valves_of
from cape_stream.model.active_row import NEVER_MS, ActiveRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.operation import Operation, Verb
from cape_stream.model.request import EventPage, EventQuery, QueryFault, SchedulingRequest
from cape_stream.model.status import EventFailure, FailureClass, JobStatus, StatusKind
from cape_stream.model.topology import DomainSpec, LambdaSpec, Ordering, RetrySpec, TopologySpec

TURNS_MAX = 200
"""How often a desk goes back and forth with its source before a test calls it a livelock."""

START_MS = 1_000_000_000

PLAIN = (LambdaSpec(lambda_id="only"),)


def topology(
    name: str,
    *lambdas: LambdaSpec,
    ordering: Ordering = "parallel",
    after: tuple[str, ...] = (),
    start: int = 0,
    window: int = 1_000,
    retry: RetrySpec | None = None,
    quarantine_after: Mapping[FailureClass, int] | None = None,
    from_latest: bool = False,
    formerly: tuple[str, ...] = (),
    in_flight_max: int | None = None,
) -> TopologySpec:
    """A topology with one lambda called ``only``, unless told otherwise."""
    return TopologySpec(
        name=name,
        lambdas=lambdas or PLAIN,
        ordering=ordering,
        after=after,
        start=start,
        window=window,
        retry=retry or RetrySpec(),
        quarantine_after=quarantine_after or {},
        from_latest=from_latest,
        formerly=formerly,
        in_flight_max=in_flight_max,
    )


def event(sequence: int, payload: bytes = b"") -> Event:
    """An event as a source holds it."""
    return Event(sequence, payload or b"e%d" % sequence)


def foreign(*fields: Any) -> Event:
    """An event as foreign code may build it."""
    return Event(*fields)


class Desk:
    """One scheduler and everything around it.

    Args:
        topologies: of the domain.
        page_limit: most events of one answer.
        epoch: of the first owner; a crash makes it grow.
        settings: of the scheduler.
    """

    def __init__(
        self,
        *topologies: TopologySpec,
        page_limit: int = 10,
        epoch: int = 1,
        settings: SchedulerSettings | None = None,
    ) -> None:
        domain = DomainSpec(name="flights", topologies=topologies, page_limit=page_limit)
        self.plan = compile_plan(domain)
        self.now_ms = START_MS
        self.source: dict[str, list[Event]] = {}
        """What the source holds, for `serve`."""
        self.active: dict[str, bytes] = {}
        self.asleep: dict[str, ActiveRow] = {}
        self.swept = False
        """True once the scheduler has asked for a look through the table."""
        """Stored active rows, encoded as a dispatcher does."""
        self.infos: dict[str, CursorInfo] = {}
        """Stored cursor infos."""
        self.jobs: dict[str, Job] = {}
        """Every job ever issued or known, by the name the test calls it."""
        self.oversized: list[OversizedEvent] = []
        self.queries: list[EventQuery] = []
        """Asked and not answered."""
        self.asked: list[EventQuery] = []
        """Every query ever."""
        self._settings = settings
        self._epoch = epoch
        self.scheduler = self._new_scheduler()

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(self.plan, partition=0, epoch=self._epoch, settings=self._settings)

    # --- inputs --------------------------------------------------------------------------------

    def publish(self, subject: str, sequences: Iterable[int]) -> None:
        """The source gets these events."""
        self.source.setdefault(subject, []).extend(event(sequence) for sequence in sequences)

    def ping(self, subject: str, latest: int | None = None) -> None:
        """News of a subject."""
        self.scheduler.on_ping(subject, latest, self._stored(subject), self.now_ms)
        self._take_effects()

    def answer(
        self, subject: str, sequences: Iterable[int], start: int | None = None
    ) -> EventQuery:
        """Answer the oldest query of a subject, or the one from ``start``, by hand."""
        return self.answer_with(subject, [event(sequence) for sequence in sequences], start)

    def answer_with(
        self, subject: str, events: Sequence[Event], start: int | None = None
    ) -> EventQuery:
        """The same with whole events."""
        query = self._take_query(subject, start)
        self.scheduler.on_page(EventPage(query, events), self.now_ms)
        self._take_effects()
        return query

    def fault(self, subject: str, start: int | None = None) -> None:
        """The source cannot answer the oldest query of a subject."""
        query = self._take_query(subject, start)
        self.scheduler.on_fault(QueryFault(query, "the source is away"), self.now_ms)
        self._take_effects()

    def request(self, request: SchedulingRequest) -> None:
        """A tracker elsewhere asks for jobs."""
        self.scheduler.on_request(request, self._stored(request.subject), self.now_ms)
        self._take_effects()

    def serve(self) -> None:
        """Answer from `source` until nothing is asked any more."""
        for _ in range(TURNS_MAX):
            if not self.queries:
                return
            query = self.queries[0]
            held = self.source.get(query.subject, [])
            page = [each for each in held if each.sequence >= query.start][: query.limit]
            self.answer_with(query.subject, page, query.start)
        raise AssertionError(f"the scheduler asks and asks: {self.asked[-5:]}")

    def report(
        self,
        name: str,
        *,
        done: Iterable[int] | None = None,
        failed: Mapping[int, FailureClass] | Iterable[int] = (),
        kind: StatusKind = StatusKind.RESULTS,
        outputs: Mapping[int, bytes] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        """A worker's report on a job: all done, unless told otherwise."""
        self.status(self.make_status(name, done, failed, kind, outputs, retry_after_ms))

    def make_status(
        self,
        name: str,
        done: Iterable[int] | None = None,
        failed: Mapping[int, FailureClass] | Iterable[int] = (),
        kind: StatusKind = StatusKind.RESULTS,
        outputs: Mapping[int, bytes] | None = None,
        retry_after_ms: int | None = None,
    ) -> JobStatus:
        """The report itself, to send later or to lie with."""
        job = self.jobs[name]
        classes = (
            failed if isinstance(failed, Mapping) else dict.fromkeys(failed, FailureClass.TRANSIENT)
        )
        failures = [
            EventFailure(sequence, each, f"{each} {sequence}", retry_after_ms)
            for sequence, each in classes.items()
        ]
        if done is None:
            ended = kind is StatusKind.RESULTS
            done = [e.sequence for e in job.events if ended and e.sequence not in classes]
        return JobStatus(
            job.job_id,
            job.domain,
            job.partition,
            job.subject,
            job.topology,
            job.lambda_id,
            job.epoch,
            job.attempt,
            kind,
            list(done),
            outputs or {},
            failures,
        )

    def status(self, status: JobStatus) -> None:
        """A report as it arrives."""
        self.scheduler.on_status(status, self._stored(status.subject), self.now_ms)
        self._take_effects()

    def undelivered(self, name: str, refusal: str | None = None) -> None:
        """The log never got the job; ``refusal``: and never will, says why."""
        self.scheduler.on_undelivered(self.jobs[name].job_id, refusal, self.now_ms)
        self._take_effects()

    def tick(self, passed_ms: int = 0) -> None:
        """Time passes at once, however much is due on the way."""
        self.now_ms += passed_ms
        self.scheduler.on_tick(self.now_ms)
        self._take_effects()

    def wait(self, passed_ms: int) -> None:
        """Time passes, with a tick and the source's answers whenever something is due."""
        until_ms = self.now_ms + passed_ms
        for _ in range(TURNS_MAX):
            self.commit()
            due_ms = self.next_ms()
            if due_ms is None or due_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.tick()
            self.wake_due()
            self.serve()
        self.now_ms = until_ms
        self.tick()
        self.serve()

    def next_ms(self) -> int | None:
        """When something is due next, in memory or stored asleep."""
        due_ms = [row.wake_ms for row in self.asleep.values() if row.wake_ms != NEVER_MS]
        if (next_ms := self.scheduler.next_ms()) is not None:
            due_ms.append(next_ms)
        return min(due_ms, default=None)

    # --- storing and crashing ------------------------------------------------------------------

    def commit(self) -> None:
        """Store what has changed."""
        changes = self.scheduler.take_changes(self.now_ms)
        for subject, wake_ms in changes.woken:
            assert self.asleep.pop(subject).wake_ms == wake_ms, "indexed by another time"
        for subject in changes.had_row:
            del self.active[subject]
        for row in changes.active:
            self.active[row.subject] = msgpack.encode(row)
        for row in changes.asleep:
            self.asleep[row.subject] = msgpack.decode(msgpack.encode(row), type=ActiveRow)
        for info in changes.finished:
            self.infos[info.subject] = info
            assert info.subject not in self.active, "an ended subject left its row behind"

    def crash(
        self,
        *,
        adopting: Iterable[str] | None = None,
        statuses: Iterable[JobStatus] = (),
        clock_step_ms: int = 0,
    ) -> None:
        """Die and come back as the next owner, with what was stored and what the log has.

        Args:
            adopting: names of the jobs that the log holds; None for all first attempts.
            statuses: what workers reported meanwhile.
            clock_step_ms: how far the new process' clock is off.
        """
        self.now_ms += clock_step_ms
        self._epoch += 1
        self.queries.clear()
        paused = self.scheduler.paused
        self.scheduler = self._new_scheduler()
        rows = [msgpack.decode(value, type=ActiveRow) for value in self.active.values()]
        self.scheduler.paused.update(paused)
        self.scheduler.restore(rows, self.now_ms)
        if adopting is None:
            adopting = [name for name, job in self.jobs.items() if job.attempt == 1]
        for name in adopting:
            job = self.jobs[name]
            self.scheduler.adopt(job, self._stored(job.subject), self.now_ms)
        for status in statuses:
            self.scheduler.settle_only(status, self._stored(status.subject), self.now_ms)
        self.scheduler.resume(self.now_ms)
        self._take_effects()
        self.wake_due(max(0, -clock_step_ms))

    def order(
        self,
        verb: Verb,
        topology_name: str,
        subject: str | None = "S",
        sequence: int | None = None,
        why: str = "a test",
    ) -> Ruling:
        """An operator orders something."""
        operation = Operation(
            operation_id=f"O{self.now_ms}",
            verb=verb,
            domain="flights",
            topology=topology_name,
            subject=subject,
            sequence=sequence,
            who="somebody",
            why=why,
        )
        stored = self._stored(subject) if subject else None
        ruling = self.scheduler.on_operation(operation, stored, self.now_ms)
        self._take_effects()
        if ruling.sweep:
            self.sweep()
        return ruling

    def deploy(self, *topologies: TopologySpec, adopting: Iterable[str] | None = None) -> None:
        """A dispatcher of another release takes over what was stored last."""
        self.commit()
        domain = DomainSpec(name="flights", topologies=topologies, page_limit=self.plan.page_limit)
        self.plan = compile_plan(domain)
        self.crash(adopting=adopting)

    def sweep(self) -> None:
        """What the engine does now and then: look for forgotten work."""
        for subject, info in list(self.infos.items()):
            stored = self._stored(subject)
            if isinstance(stored, ActiveRow):
                if holds_unserved(self.plan, stored, self.scheduler.paused):
                    self.scheduler.on_wake(stored, self.now_ms)
            elif stored is not None and lags(self.plan, info, self.scheduler.takes):
                self.scheduler.on_ping(subject, info.latest, info, self.now_ms)
        self._take_effects()

    def _stored(self, subject: str) -> CursorInfo | ActiveRow | None:
        if self.scheduler.holds(subject):
            return None
        return self.asleep.get(subject) or self.infos.get(subject)

    def wake_due(self, ahead_ms: int = 0) -> None:
        """What the engine does every second: bring back what is due in the table.

        Args:
            ahead_ms: how far the clock that stored it was ahead of ours.
        """
        for row in list(self.asleep.values()):
            if row.wake_ms <= self.now_ms + ahead_ms:
                self.scheduler.on_wake(row, self.now_ms)
        self._take_effects()

    # --- looking -------------------------------------------------------------------------------

    @property
    def counters(self) -> SchedulerCounters:
        """What has happened to the present scheduler."""
        return self.scheduler.counters

    def state(self, subject: str) -> SubjectState:
        """The state of an active subject."""
        found = self.scheduler.subject(subject)
        assert found is not None, f"{subject} is not active"
        return found

    def look(self, subject: str) -> SubjectState | None:
        """What is known of a subject that is active or asleep, wherever it is."""
        found = self.scheduler.subject(subject) or self.scheduler.sleeper(subject)
        apart = InflightState(valves_of(self.plan, SchedulerSettings(), 1))
        if found is None and subject in self.asleep and not self.scheduler.holds(subject):
            return rows.restore(self.plan, apart, self.asleep[subject], self.now_ms)
        return found

    def lambda_state(
        self, subject: str, topology_name: str, lambda_id: str = "only"
    ) -> LambdaState:
        """One leaf of it."""
        return self.state(subject).lambdas[self.plan.by_name[topology_name, lambda_id]]

    def cursor(self, subject: str, topology_name: str) -> int:
        """How far a topology has come, wherever that is known."""
        self.commit()
        span = next(each.span for each in self.plan.topologies if each.name == topology_name)
        state = self.look(subject)
        if state is not None:
            return state.cursor_of(span)
        return self.infos[subject].cursors[topology_name]

    def peek(self, subject: str) -> list[int]:
        """Cursors per lambda, wherever they are, without storing anything."""
        state = self.look(subject)
        if state is not None:
            return [entry.cursor for entry in state.lambdas]
        return self.scheduler._roster.known_cursors(subject, self.infos.get(subject))

    def out(self, topology_name: str | None = None) -> list[list[int]]:
        """Sequence ids of every job that is out, in the order in which they were issued."""
        return [sequences for _, sequences in self._open_jobs(topology_name)]

    def events_out(self, topology_name: str | None = None) -> list[int]:
        """All sequence ids in them."""
        return [sequence for sequences in self.out(topology_name) for sequence in sequences]

    def names_out(self, topology_name: str | None = None) -> list[str]:
        """The names of those jobs."""
        return [name for name, _ in self._open_jobs(topology_name)]

    def record(self, name: str) -> JobRecord:
        """The scheduler's record of a job that is out."""
        return next(
            record
            for state in self.scheduler.subjects()
            for entry in state.lambdas
            for record in entry.jobs
            if record.job_id == self.jobs[name].job_id
        )

    def _open_jobs(self, topology_name: str | None) -> Iterator[tuple[str, list[int]]]:
        records = {
            record.job_id: list(record.sequences)
            for state in self.scheduler.subjects()
            for entry in state.lambdas
            for record in entry.jobs
        }
        for name, job in self.jobs.items():
            if job.job_id in records and topology_name in (None, job.topology):
                yield name, records[job.job_id]

    def newest(self) -> Job:
        """The job issued last."""
        return list(self.jobs.values())[-1]

    def lie(self, name: str, **changes: Any) -> JobStatus:
        """A report of success that is wrong about its job."""
        return replace(self.make_status(name), **changes)

    # --- inside --------------------------------------------------------------------------------

    def _take_query(self, subject: str, start: int | None) -> EventQuery:
        for query in self.queries:
            if query.subject == subject and start in (None, query.start):
                self.queries.remove(query)
                return query
        raise AssertionError(f"nothing was asked for {subject} from {start}: {self.queries}")

    def _take_effects(self) -> None:
        effects = self.scheduler.take_effects()
        for job in effects.jobs:
            self.jobs[f"J{len(self.jobs) + 1}"] = job
        self.oversized += effects.oversized
        self.swept = self.swept or effects.sweep
        self.queries += effects.queries
        self.asked += effects.queries
