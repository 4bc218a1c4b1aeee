"""A dumb twin of the scheduler: one mark per event and lambda, and no cleverness at all.

It knows no buffers, intervals, high marks or wake-ups. Whatever it can say about a scheduler it
finds by looking through everything that ever happened to a subject.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from cape_stream.core.inflight.lambda_state import LambdaState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import DomainPlan, LambdaPlan
from cape_stream.model.job import Job
from cape_stream.model.status import JobStatus
from tests.desk import Desk


@dataclass(slots=True)
class Mark:
    """What has become of one event in one lambda."""

    state: str
    """``out``, ``parked`` or ``done``."""
    attempts: int
    """Issued so far."""
    epoch: int
    """Of the owner that issued the last of them."""
    job: str = ""
    """Name of the job that is out."""
    is_hearsay: bool = False
    """Done by the word of a job that nobody here knew; forgotten if the subject ends before it."""


Marks = dict[int, Mark]


@dataclass(slots=True)
class Twin:
    """Marks of all subjects of one desk, and what has to hold for them."""

    desk: Desk
    marks: dict[tuple[str, int], Marks] = field(default_factory=dict)
    """(subject, lambda) → sequence → mark; an event that is not here was never issued or done."""
    outputs: dict[tuple[str, int, int], set[bytes]] = field(default_factory=dict)
    """(subject, lambda, sequence) → outputs that a success has brought."""
    first: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """Whose first attempt an event was in; a job the log never got does not count."""
    expires_ms: dict[str, int] = field(default_factory=dict)
    """Jobs that are out, and when they expire."""
    stored: dict[tuple[str, int], Marks] = field(default_factory=dict)
    """The marks as of the last commit."""
    void: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """(subject, lambda) → jobs of before a rewind, whose reports count no more."""
    _seen_jobs: int = 0

    @property
    def plan(self) -> DomainPlan:
        """The domain."""
        return self.desk.plan

    def place(self, job: Job) -> LambdaPlan:
        """The lambda of a job."""
        return self.plan.lambdas[self.plan.by_name[job.topology, job.lambda_id]]

    def of(self, subject: str, place: int) -> Marks:
        """Marks of one lambda."""
        return self.marks.setdefault((subject, place), {})

    def open_in(self, name: str) -> list[int]:
        """Events that are still open in a job."""
        job = self.desk.jobs[name]
        marks = self.of(job.subject, self.place(job).index)
        return [each for each in sequences(job) if each in marks and marks[each].job == name]

    # --- what happens --------------------------------------------------------------------------

    def see_new_jobs(self) -> None:
        """Judge and note every job issued since the last call."""
        for name, job in list(self.desk.jobs.items())[self._seen_jobs :]:
            for fault in self._faults_of_issue(name, job):
                raise AssertionError(f"{name} {job.topology} {sequences(job)}: {fault}")
            plan = self.place(job)
            for sequence in sequences(job):
                self.of(job.subject, plan.index)[sequence] = Mark(
                    "out", job.attempt, job.epoch, name
                )
                if job.attempt == 1:
                    self.first[job.subject, plan.index, sequence] = name
            self.expires_ms[name] = job.issued_ms + job.timeout_ms
        self._seen_jobs = len(self.desk.jobs)

    def report(self, name: str, status: JobStatus) -> None:
        """A report about the job itself, which is out or is not."""
        job = self.desk.jobs[name]
        plan = self.place(job)
        for sequence, output in status.outputs.items():
            self.outputs.setdefault((job.subject, plan.index, sequence), set()).add(output)
        marks = self.of(job.subject, plan.index)
        if name not in self.expires_ms:
            if name not in self.void.get((job.subject, plan.index), ()):
                self._late(plan, marks, status)
            return
        for sequence in self.open_in(name):
            done = sequence in status.done
            marks[sequence] = Mark("done" if done else "parked", job.attempt, job.epoch)
        del self.expires_ms[name]

    def skip(self, subject: str, topology: str, sequence: int) -> None:
        """A person takes an event as done."""
        for plan in self.plan.lambdas:
            marks = self.of(subject, plan.index)
            mark = marks.get(sequence)
            if plan.topology != topology or (mark is not None and mark.state == "done"):
                continue
            marks[sequence] = Mark("done", 0, 0, is_hearsay=mark is None)
            if mark is not None and mark.job and not self.open_in(mark.job):
                del self.expires_ms[mark.job]

    def rewind(self, subject: str, topology: str, cursor: int) -> None:
        """A person has put the cursor back: what was above it never happened."""
        for plan in self.plan.lambdas:
            if plan.topology != topology:
                continue
            marks = self.of(subject, plan.index)
            given_up = [each for each in marks.values() if each.state != "done"]
            for mark in given_up:
                self.expires_ms.pop(mark.job, None)
            floor = max((mark.attempts for mark in given_up), default=0)
            assert self._floor(subject, plan) >= floor, "an old fencing token would come again"
            for sequence in [each for each in marks if each > cursor]:
                del marks[sequence]
                self.first.pop((subject, plan.index, sequence), None)
            self.void[subject, plan.index] = set(list(self.desk.jobs)[: self._seen_jobs])

    def _floor(self, subject: str, plan: LambdaPlan) -> int:
        """Attempts that a rewind has given up, as the scheduler remembers them."""
        state = self.desk.look(subject)
        return state.lambdas[plan.index].floor if state else 0

    def _late(self, plan: LambdaPlan, marks: Marks, status: JobStatus) -> None:
        for sequence in status.done:
            mark = marks.get(sequence)
            if mark is None:
                marks[sequence] = Mark("done", 0, 0, is_hearsay=True)
                continue
            if mark.state == "done":
                continue
            token = status.epoch, status.attempt
            if plan.ordered and token < (mark.epoch, mark.attempts):
                continue
            left = mark.job
            marks[sequence] = Mark("done", mark.attempts, mark.epoch)
            if left and not self.open_in(left):
                del self.expires_ms[left]

    def close(self, name: str, *, is_lost: bool = False) -> None:
        """The job has expired, or its client gave it up; a lost one never ran."""
        job = self.desk.jobs[name]
        plan = self.place(job)
        for sequence in self.open_in(name):
            self.of(job.subject, plan.index)[sequence] = Mark("parked", job.attempt, job.epoch)
        for sequence in sequences(job) if is_lost else ():
            self.first.pop((job.subject, plan.index, sequence), None)
        del self.expires_ms[name]

    def resync_after(self, seen_jobs: int) -> None:
        """After a crash: what is out and parked is what the new owner says, what was done is done.

        Jobs beyond the first ``seen_jobs`` were issued by the new owner and are judged as ever.
        """
        before = {key: done_in(marks) for key, marks in self.marks.items()}
        self.marks.clear()
        self.expires_ms.clear()
        names = {job.job_id: name for name, job in self.desk.jobs.items()}
        for state in filter(None, map(self.desk.look, self.desk.source)):
            for plan, entry in zip(self.plan.lambdas, state.lambdas, strict=True):
                self._take_over(state, plan, entry, names)
        for (subject, place), done in before.items():
            lost = [each for each in done if not self._still_done(subject, place, each)]
            assert not lost, f"{subject}, lambda {place}: {lost} had been done before the crash"
        self._check_not_revived()

    def _take_over(
        self, state: SubjectState, plan: LambdaPlan, entry: LambdaState, names: dict[str, str]
    ) -> None:
        marks = self.of(state.subject, plan.index)
        for each in self.desk.source.get(state.subject, []):
            if each.sequence >= plan.start and entry.has_done(each.sequence):
                marks[each.sequence] = Mark("done", 1, 0)
        for sequence, parked in entry.parked.items():
            marks[sequence] = Mark("parked", parked.attempts, parked.epoch)
        for record in entry.jobs:
            name = names[record.job_id]
            self.expires_ms[name] = record.expires_ms
            for sequence in record.sequences:
                marks[sequence] = Mark("out", record.attempt, record.epoch, name)

    def _still_done(self, subject: str, place: int, sequence: int) -> bool:
        marks = self.of(subject, place)
        if sequence in marks:
            return marks[sequence].state == "done"
        if self.desk.look(subject) is None:
            marks[sequence] = Mark("done", 1, 0)
            return self.desk.peek(subject)[place] >= sequence
        return False

    def commit(self) -> None:
        """What is now is what a crash will go back to."""
        self.stored = {
            key: {each: replace(mark) for each, mark in marks.items()}
            for key, marks in self.marks.items()
        }

    def _check_not_revived(self) -> None:
        """A job that had ended before the commit must not be out again after a crash."""
        for key, marks in self.stored.items():
            for sequence, was in marks.items():
                mark = self.marks.get(key, {}).get(sequence)
                if mark is None or mark.state != "out" or was.state == "out":
                    continue
                attempt = self.desk.jobs[mark.job].attempt
                is_newer = was.state == "parked" and attempt > was.attempts
                assert is_newer, f"{key} {sequence} is out in {mark.job}, it had been {was}"

    # --- what has to hold ----------------------------------------------------------------------

    def _faults_of_issue(self, name: str, job: Job) -> Iterator[str]:
        """What is wrong with a job that was issued just now."""
        plan = self.place(job)
        marks = self.of(job.subject, plan.index)
        ids = sequences(job)
        if ids != sorted(set(ids)) or not ids or len(ids) > plan.max_batch:
            yield "its events are not ascending, none, or too many"
        for event in job.events:
            mark = marks.get(event.sequence)
            if mark is not None and mark.state != "parked":
                yield f"{event.sequence} is {mark.state} already, in {mark.job}"
            if job.attempt != (mark.attempts if mark else self._floor(job.subject, plan)) + 1:
                yield f"{event.sequence} is in its attempt {job.attempt}, after {mark}"
            if job.attempt == 1 and (job.subject, plan.index, event.sequence) in self.first:
                yield f"{event.sequence} was a first attempt before"
            shut = [
                gate for gate in plan.gates if not self._passed(job.subject, gate, event.sequence)
            ]
            if shut:
                yield f"{event.sequence} goes out before lambdas {shut} have done it"
            yield from self._faults_of_inputs(job, plan, event.sequence, dict(event.inputs))
        if plan.ordered:
            if any(mark.state == "out" for mark in marks.values()):
                yield "another job of the subject is out"
            older = [each for each in self._wanted(job.subject, plan) if each < ids[0]]
            open_ = [each for each in older if each not in marks or marks[each].state != "done"]
            if open_:
                yield f"{open_} are not done"

    def _faults_of_inputs(
        self, job: Job, plan: LambdaPlan, sequence: int, inputs: dict[str, bytes]
    ) -> Iterator[str]:
        for place in plan.inputs:
            known = self.outputs.get((job.subject, place, sequence), set())
            got = inputs.pop(self.plan.lambdas[place].lambda_id, None)
            if got not in known:
                yield f"{sequence} has input {got!r}, the lambdas before gave {known}"
        if inputs:
            yield f"{sequence} has inputs nobody declared: {inputs}"

    def _wanted(self, subject: str, plan: LambdaPlan) -> list[int]:
        held = self.desk.source.get(subject, [])
        return [each.sequence for each in held if each.sequence >= plan.start]

    def _passed(self, subject: str, place: int, sequence: int) -> bool:
        if sequence < self.plan.lambdas[place].start:
            return True
        mark = self.of(subject, place).get(sequence)
        return mark is not None and mark.state == "done"

    def faults(self) -> Iterator[str]:
        """Everything that does not hold now, in words."""
        for subject in self.desk.source:
            state = self.desk.look(subject)
            cursors = self.desk.peek(subject)
            for plan, cursor in zip(self.plan.lambdas, cursors, strict=True):
                entry = state.lambdas[plan.index] if state else None
                for fault in self._faults_of_lambda(subject, plan, cursor, entry):
                    yield f"{subject}, {plan.topology}.{plan.lambda_id}: {fault}"
            if state is not None and state is self.desk.scheduler.subject(subject):
                yield from self._faults_of_subject(state)
        out = sorted(self.desk.names_out())
        if out != sorted(self.expires_ms):
            yield f"jobs out are {out}, should be {sorted(self.expires_ms)}"
        if len(out) != self.desk.scheduler.open_jobs:
            yield f"{self.desk.scheduler.open_jobs} jobs counted, {len(out)} are out"

    def _faults_of_lambda(
        self, subject: str, plan: LambdaPlan, cursor: int, entry: LambdaState | None
    ) -> Iterator[str]:
        marks = self.of(subject, plan.index)
        if entry is None:
            for sequence, mark in list(marks.items()):
                if mark.is_hearsay and sequence > cursor:
                    del marks[sequence]
                elif mark.state != "done":
                    yield f"{sequence} is {mark.state}, and the subject has ended"
        else:
            yield from self._faults_of_events(marks, entry)
        expected = self._newest_all_done(subject, plan)
        unsure = entry is not None and entry.unsure_to > entry.high
        if cursor > expected or (cursor < expected and not unsure):
            yield f"the cursor is {cursor}, should be {expected}"

    def _newest_all_done(self, subject: str, plan: LambdaPlan) -> int:
        """The newest event such that it and all before it are done."""
        marks = self.of(subject, plan.index)
        newest = plan.start - 1
        for sequence in self._wanted(subject, plan):
            if sequence not in marks or marks[sequence].state != "done":
                break
            newest = sequence
        return newest

    def _faults_of_events(self, marks: Marks, entry: LambdaState) -> Iterator[str]:
        """Events that are not where they should be."""
        parked = {each: mark.attempts for each, mark in marks.items() if mark.state == "parked"}
        found = {each: put.attempts for each, put in entry.parked.items()}
        if found != parked:
            yield f"parked are {found}, should be {parked}"
        out = {each: mark.job for each, mark in marks.items() if mark.state == "out"}
        jobs = {each: self._name(job.job_id) for job in entry.jobs for each in job.sequences}
        if jobs != out or sum(len(job.sequences) for job in entry.jobs) != len(out):
            yield f"out are {jobs}, should be {out}"
        lost = [each for each in done_in(marks) if not entry.has_done(each)]
        if lost:
            yield f"{lost} are done, and not here"

    def _name(self, job_id: str) -> str:
        return next(name for name, job in self.desk.jobs.items() if job.job_id == job_id)

    def _faults_of_subject(self, state: SubjectState) -> Iterator[str]:
        """Counts that do not fit, and subjects that nothing would ever move again."""
        jobs = sum(len(entry.jobs) for entry in state.lambdas)
        parked = sum(len(entry.parked) for entry in state.lambdas)
        if (state.open_jobs, state.parked) != (jobs, parked):
            yield f"{state.subject} counts {state.open_jobs} jobs, {state.parked} parked"
        asked = {query for query in self.desk.queries if query.subject == state.subject}
        if asked != set(state.queries):
            yield f"{state.subject} waits for {set(state.queries)}, asked are {asked}"
        due_ms = list(self._due_times_ms(state))
        next_ms = self.desk.scheduler.next_ms()
        if not (jobs or due_ms or state.queries):
            yield f"{state.subject} waits for nothing"
        if due_ms and (next_ms is None or next_ms > max(min(due_ms), self.desk.now_ms)):
            yield f"{state.subject} is due at {min(due_ms)}, the next look is at {next_ms}"

    def _due_times_ms(self, state: SubjectState) -> Iterator[int]:
        """When time alone has to move the subject: a parked event may also wait for its payload, or
        for the job before it."""
        if state.source_due_ms:
            yield state.source_due_ms
            return
        for plan, entry in zip(self.plan.lambdas, state.lambdas, strict=True):
            if not entry.parked or state.queries or (plan.ordered and entry.jobs):
                continue
            due_ms = [entry.parked[each].due_ms for each in sorted(entry.parked)]
            yield due_ms[0] if plan.ordered else min(due_ms)


def sequences(job: Job) -> list[int]:
    """Sequence ids of a job."""
    return [event.sequence for event in job.events]


def done_in(marks: Marks) -> Iterable[int]:
    """Events that are done."""
    return [each for each, mark in marks.items() if mark.state == "done"]
