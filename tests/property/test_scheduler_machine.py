"""The scheduler against its dumb twin, under everything that may come in, in any order."""

import os
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.operation import Outcome, Verb
from cape_stream.model.request import EventQuery
from cape_stream.model.status import JobStatus, StatusKind
from cape_stream.model.topology import LambdaSpec, Ordering, RetrySpec, TopologySpec
from tests.desk import Desk, topology
from tests.property.scheduler_twin import Twin, sequences

SUBJECTS = ("A", "B")
TIMEOUT_MS = 5_000
RETRY = RetrySpec(first_ms=100, max_ms=1_000, floor_ms=10)
STEPS_MAX = 2_000
EXAMPLES = int(os.environ.get("SCHEDULER_EXAMPLES", "60"))
"""How many histories are tried; thousands make a good night."""


def stage(lambda_id: str, *inputs: str, batch: int = 2) -> LambdaSpec:
    return LambdaSpec(lambda_id=lambda_id, inputs=inputs, max_batch=batch, timeout_ms=TIMEOUT_MS)


def plain(
    name: str,
    *lambdas: LambdaSpec,
    ordering: Ordering = "parallel",
    after: tuple[str, ...] = (),
    start: int = 0,
    window: int = 1_000,
) -> TopologySpec:
    parts = lambdas or (stage("only"),)
    return topology(
        name, *parts, ordering=ordering, after=after, start=start, window=window, retry=RETRY
    )


DOMAINS: dict[str, tuple[TopologySpec, ...]] = {
    "parallel": (plain("T1", window=4),),
    "ordered": (plain("T1", ordering="ordered"),),
    "mixed": (plain("T1", ordering="ordered"), plain("T2", window=3), plain("T3", start=7)),
    "after": (
        plain("T1"),
        plain("T2", ordering="ordered", after=("T1",)),
        plain("T3", after=("T2",)),
    ),
    "stages": (
        plain("T1", stage("parse"), stage("store", "parse", batch=3)),
        plain("T2", after=("T1",)),
    ),
    "ordered stages": (
        plain("T1", stage("parse"), stage("store", "parse", batch=3), ordering="ordered"),
    ),
    "diamond": (
        plain("A"),
        plain("B", ordering="ordered", start=3),
        plain("C", after=("A", "B"), window=5),
    ),
}

subjects = st.sampled_from(SUBJECTS)
picks = st.integers(0, 1_000)
"""Which of the things that are there: an index, taken modulo their number."""


class SchedulerMachine(RuleBasedStateMachine):
    """Pings, answers, reports, time, commits and crashes, and after each the twin's word."""

    @initialize(
        domain=st.sampled_from(sorted(DOMAINS)),
        page_limit=st.integers(1, 5),
        buffered=st.sampled_from([2, 6, 400]),
        job_bytes=st.sampled_from([150, 900_000]),
        sleep_after_ms=st.sampled_from([0, 300, 60_000]),
    )
    def begin(
        self, domain: str, page_limit: int, buffered: int, job_bytes: int, sleep_after_ms: int
    ) -> None:
        bounds = SchedulerSettings(
            buffered_events_max=buffered,
            job_bytes_max=job_bytes,
            source_retry=RetrySpec(first_ms=50, max_ms=500, floor_ms=10),
            sleep_after_ms=sleep_after_ms,
        )
        self.desk = Desk(*DOMAINS[domain], page_limit=page_limit, settings=bounds)
        for subject in SUBJECTS:
            self.desk.source[subject] = []
        self.twin = Twin(self.desk)
        self.had: dict[EventQuery, int] = {}
        """How many events the source had when a query was made."""
        self.announced: dict[str, int] = {}
        self.lied: set[str] = set()
        self.pings: list[tuple[str, int | None]] = []
        """Since the last commit; a crash reads them again."""
        self.statuses: list[JobStatus] = []
        self.lost: set[str] = set()
        """Jobs the log never got."""

    # --- the world -----------------------------------------------------------------------------

    @rule(subject=subjects, gaps=st.lists(st.integers(1, 4), min_size=1, max_size=6))
    def publish(self, subject: str, gaps: list[int]) -> None:
        held = self.desk.source[subject]
        sequence = held[-1].sequence if held else -1
        for gap in gaps:
            sequence += gap
            held.append(Event(sequence, b"e%d" % sequence))

    @rule(subject=subjects, vague=st.booleans(), off=st.sampled_from([0, 0, 0, -1, -5, 1]))
    def ping(self, subject: str, vague: bool, off: int) -> None:
        newest = self.newest(subject)
        latest = None if vague else max(newest + off, 0)
        told = newest if latest is None else min(latest, newest)
        self.announced[subject] = max(self.announced.get(subject, -1), told)
        self.pings.append((subject, latest))
        self.desk.ping(subject, latest)

    @precondition(lambda self: self.desk.queries)
    @rule(pick=picks, freshness=st.floats(0, 1))
    def answer(self, pick: int, freshness: float) -> None:
        """The source answers as of some moment between the question and now."""
        query = self.desk.queries[pick % len(self.desk.queries)]
        held = self.desk.source[query.subject]
        asked = self.had.get(query, len(held))
        self.give(query, held[: asked + round((len(held) - asked) * freshness)])

    @precondition(lambda self: self.desk.queries)
    @rule(pick=picks, behind=st.integers(1, 10))
    def answer_from_a_copy_that_lags(self, pick: int, behind: int) -> None:
        query = self.desk.queries[pick % len(self.desk.queries)]
        self.lied.add(query.subject)
        self.give(query, self.desk.source[query.subject][:-behind])

    @precondition(lambda self: self.desk.queries)
    @rule(pick=picks, garbage=st.booleans())
    def fail_to_answer(self, pick: int, garbage: bool) -> None:
        query = self.desk.queries[pick % len(self.desk.queries)]
        if garbage:
            page = [Event(query.start, b""), Event(query.start, b"")]
            self.desk.answer_with(query.subject, page, query.start)
        else:
            self.desk.fault(query.subject, query.start)

    # --- workers -------------------------------------------------------------------------------

    @precondition(lambda self: self.desk.names_out())
    @rule(pick=picks)
    def succeed(self, pick: int) -> None:
        self.report(self.pick_out(pick), failing=0)

    @precondition(lambda self: self.desk.names_out())
    @rule(pick=picks, failing=st.integers(1, 7), missing=st.integers(0, 7), back=st.booleans())
    def succeed_in_part(self, pick: int, failing: int, missing: int, back: bool) -> None:
        """Bits say which events fail and which have no result."""
        self.report(self.pick_out(pick), failing, missing, back)

    @precondition(lambda self: self.desk.jobs)
    @rule(pick=picks, failing=st.sampled_from([0, 0, 1, 2, 7]))
    def report_whatever_became_of_the_job(self, pick: int, failing: int) -> None:
        names = [name for name in self.desk.jobs if name not in self.lost]
        if names:
            self.report(names[pick % len(names)], failing)

    @precondition(lambda self: self.late())
    @rule(pick=picks, failing=st.sampled_from([0, 0, 1]))
    def report_too_late(self, pick: int, failing: int) -> None:
        """A worker that was given up, while its events are still open."""
        late = self.late()
        self.report(late[pick % len(late)], failing)

    @precondition(lambda self: self.desk.names_out())
    @rule(pick=picks)
    def beat(self, pick: int) -> None:
        name = self.pick_out(pick)
        job, now_ms = self.desk.jobs[name], self.desk.now_ms
        extended_ms = min(now_ms + TIMEOUT_MS, self.issued_ms(name, job) + 20 * TIMEOUT_MS)
        self.twin.expires_ms[name] = max(self.twin.expires_ms[name], extended_ms)
        self.desk.report(name, kind=StatusKind.HEARTBEAT)

    @precondition(lambda self: self.desk.names_out())
    @rule(pick=picks, wrong=st.sampled_from(["subject", "topology", "lambda_id", "job_id"]))
    def lie(self, pick: int, wrong: str) -> None:
        self.desk.status(self.desk.lie(self.pick_out(pick), **{wrong: "no such thing"}))

    @precondition(lambda self: self.desk.names_out())
    @rule(pick=picks, arrived=st.booleans())
    def give_up_sending(self, pick: int, arrived: bool) -> None:
        """Nobody can tell whether the log has the job all the same."""
        name = self.pick_out(pick)
        if not arrived:
            self.lost.add(name)
        self.twin.close(name, is_lost=not arrived)
        self.desk.undelivered(name)

    # --- operators -----------------------------------------------------------------------------

    @precondition(lambda self: self.known_subjects())
    @rule(pick=picks, place=picks, event=picks)
    def skip(self, pick: int, place: int, event: int) -> None:
        subject, name = self.pick_topology(pick, place)
        held = self.desk.source[subject]
        sequence = held[event % len(held)].sequence
        ruling = self.desk.order(Verb.SKIP, name, subject, sequence)
        if ruling.outcome is Outcome.APPLIED:
            self.twin.skip(subject, name, sequence)
        self.settle_order()

    @precondition(lambda self: self.known_subjects())
    @rule(pick=picks, place=picks, back=st.integers(0, 4))
    def rewind(self, pick: int, place: int, back: int) -> None:
        subject, name = self.pick_topology(pick, place)
        [topology] = [each for each in self.desk.plan.topologies if each.name == name]
        cursor = min(self.desk.peek(subject)[place] for place in topology.span)
        held = [each.sequence for each in self.desk.source[subject]]
        stops = [topology.start - 1, *(each for each in held if topology.start <= each <= cursor)]
        to = stops[max(len(stops) - 1 - back, 0)]
        ruling = self.desk.order(Verb.REWIND, name, subject, to)
        if ruling.outcome is Outcome.APPLIED:
            self.twin.rewind(subject, name, to)
        self.settle_order()

    @precondition(lambda self: self.known_subjects())
    @rule(pick=picks, place=picks)
    def retry_all(self, pick: int, place: int) -> None:
        subject, name = self.pick_topology(pick, place)
        self.desk.order(Verb.RETRY, name, subject)
        self.settle_order()

    def known_subjects(self) -> list[str]:
        """Subjects of which something is stored or in memory, and the source has an event."""
        return [
            subject
            for subject, held in self.desk.source.items()
            if held and (self.desk.look(subject) is not None or subject in self.desk.infos)
        ]

    def pick_topology(self, pick: int, place: int) -> tuple[str, str]:
        known = self.known_subjects()
        topologies = self.desk.plan.topologies
        return known[pick % len(known)], topologies[place % len(topologies)].name

    def settle_order(self) -> None:
        """An order and its effect are stored together; what a crash between does, the engine's
        tests know."""
        self.twin_agrees()
        self.commit()

    # --- time, commits, crashes ----------------------------------------------------------------

    @rule(passed_ms=st.sampled_from([0, 1, 20, 100, 1_000, TIMEOUT_MS, 30_000]))
    def tick(self, passed_ms: int) -> None:
        self.desk.now_ms += passed_ms
        for name, expires_ms in list(self.twin.expires_ms.items()):
            if expires_ms <= self.desk.now_ms:
                self.twin.close(name)
        self.desk.tick()
        self.desk.wake_due()

    @rule()
    def commit(self) -> None:
        self.desk.commit()
        self.twin.commit()
        self.pings.clear()
        self.statuses.clear()

    @rule(clock_step_ms=st.sampled_from([0, 0, -3_600_000, 3_600_000]))
    def crash(self, clock_step_ms: int) -> None:
        jobs = self.desk.jobs.items()
        adopting = [name for name, job in jobs if job.attempt == 1 and name not in self.lost]
        self.had.clear()
        seen = len(self.desk.jobs)
        self.desk.crash(adopting=adopting, statuses=self.statuses, clock_step_ms=clock_step_ms)
        self.twin.resync_after(seen)
        for subject, latest in self.pings:
            self.desk.ping(subject, latest)

    # --- what has to hold ----------------------------------------------------------------------

    @invariant()
    def twin_agrees(self) -> None:
        if not hasattr(self, "twin"):
            return
        for query in self.desk.queries:
            self.had.setdefault(query, len(self.desk.source[query.subject]))
        self.twin.see_new_jobs()
        faults = list(self.twin.faults())
        assert not faults, "; ".join(faults)

    def teardown(self) -> None:
        """In peace everything arrives: first what was announced, then, pinged, all there is."""
        if not hasattr(self, "twin"):
            return
        self.heal()
        for subject, announced in self.announced.items():
            if subject not in self.lied:
                self.check_delivered(subject, announced)
        for subject in SUBJECTS:
            if self.desk.source[subject]:
                self.desk.ping(subject, self.newest(subject))
        self.heal()
        for subject in SUBJECTS:
            self.check_delivered(subject, self.newest(subject))

    def heal(self) -> None:
        """Sources answer, workers succeed, and time passes, until nothing is left."""
        for _ in range(STEPS_MAX):
            self.twin_agrees()
            if self.desk.queries:
                self.give(self.desk.queries[0], self.desk.source[self.desk.queries[0].subject])
                continue
            if names := self.desk.names_out():
                self.report(names[0], failing=0)
                continue
            self.commit()
            if (due_ms := self.desk.next_ms()) is None:
                break
            self.tick(max(due_ms - self.desk.now_ms, 0))
        assert self.desk.scheduler.active_subjects == 0, "it does not come to rest"
        assert not self.desk.asleep, "somebody sleeps for ever"

    def check_delivered(self, subject: str, newest: int) -> None:
        for plan in self.desk.plan.lambdas:
            marks = self.twin.of(subject, plan.index)
            wanted = [e.sequence for e in self.desk.source[subject] if e.sequence >= plan.start]
            missing = [
                each
                for each in wanted
                if each <= newest and (each not in marks or marks[each].state != "done")
            ]
            assert not missing, f"{subject}, {plan.topology}.{plan.lambda_id} never had {missing}"

    # --- parts ---------------------------------------------------------------------------------

    def newest(self, subject: str) -> int:
        held = self.desk.source[subject]
        return held[-1].sequence if held else -1

    def late(self) -> list[str]:
        """Jobs that are not out, with events that are not done."""
        return [
            name
            for name, job in self.desk.jobs.items()
            if name not in self.lost
            and name not in self.twin.expires_ms
            and any(
                mark.state != "done"
                for each in sequences(job)
                if (mark := self.twin.of(job.subject, self.twin.place(job).index).get(each))
            )
        ]

    def pick_out(self, pick: int) -> str:
        names = self.desk.names_out()
        return names[pick % len(names)]

    def issued_ms(self, name: str, job: Job) -> int:
        """When the lease of a job began: a restart begins it anew."""
        record = self.desk.record(name)
        return record.issued_ms

    def give(self, query: EventQuery, held: list[Event]) -> None:
        self.had.pop(query, None)
        page = [each for each in held if each.sequence >= query.start][: query.limit]
        self.desk.answer_with(query.subject, page, query.start)

    def report(self, name: str, failing: int, missing: int = 0, back: bool = False) -> None:
        ids = sequences(self.desk.jobs[name])
        failed = [each for place, each in enumerate(ids) if failing >> place & 1]
        done = [
            each
            for place, each in enumerate(ids)
            if each not in failed and not missing >> place & 1
        ]
        status = self.desk.make_status(
            name,
            done,
            failed,
            StatusKind.HANDED_BACK if back else StatusKind.RESULTS,
            {each: f"{each} of {name}".encode() for each in done},
        )
        self.twin.report(name, status)
        self.statuses.append(replace(status))
        self.desk.status(status)


SchedulerMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
TestScheduler = SchedulerMachine.TestCase
