"""The in-flight state of one task: state tree, timeout list and job lookup table.

Source: the Cape article, "Scheduler: The Brain Behind Inflight Job Management". Everything here is
bookkeeping; what to do with it is decided in `cape_stream.core.issuing` and
`cape_stream.core.settling`.
"""

from collections.abc import Sequence

from cape_stream.core.breaker import BreakerState
from cape_stream.core.effects import SchedulerCounters, SchedulerEffects
from cape_stream.core.inflight.deadlines import Deadlines
from cape_stream.core.inflight.lambda_state import JobRecord, LambdaState, Parked
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.inflight.wakes import Wakes
from cape_stream.core.valves import Valve
from cape_stream.model.active_row import NEVER_MS


class InflightState:
    """Subjects that are pinged, in flight or parked, and the jobs that are out."""

    def __init__(self, valves: Sequence[Valve]) -> None:
        self.valves = valves
        """One a lambda, in plan order."""
        self.queues = list(dict.fromkeys(valve.queue for valve in valves))
        self.waiting = 0
        """Places taken in the valves' lines."""
        self.deferring = False
        """True if some valve has let subjects go that found its line full."""
        self.subjects: dict[str, SubjectState] = {}
        """Root of the state tree: subject → topologies (spans) → lambdas."""
        self.deadlines = Deadlines()
        self.wakes = Wakes()
        self.jobs: dict[str, JobRecord] = {}
        """Lookup table by job id."""
        self.dirty: dict[SubjectState, None] = {}
        """Active subjects that changed since the last commit was taken."""
        self.finished: dict[str, SubjectState] = {}
        """Subjects that ended since then; their cursors are not in the table yet."""
        self.asleep: dict[str, SubjectState] = {}
        """Subjects that went to sleep since then; their rows are not in the table yet."""
        self.paused: set[str] = set()
        """Topologies that an operator has paused, known ones or not."""
        self.parked = 0
        """Parked events over all subjects in memory."""
        self.effects = SchedulerEffects()
        self.counters = SchedulerCounters()

    def register(self, state: LambdaState, record: JobRecord) -> None:
        """A job is out."""
        state.add_job(record)
        record.subject.open_jobs += 1
        self.jobs[record.job_id] = record
        self.deadlines.add(record)
        valve = self.valves[record.lambda_index]
        valve.queue.out += 1
        if valve.is_limited or valve.breaker.state is not BreakerState.CLOSED:
            valve.on_issue(record.issued_ms)
        self.dirty[record.subject] = None

    def release(self, state: LambdaState, record: JobRecord) -> None:
        """A job is no longer out, for whatever reason."""
        del self.jobs[record.job_id]
        self.deadlines.remove(record)
        state.remove_job(record)
        valve = self.valves[record.lambda_index]
        valve.queue.out -= 1
        if valve.is_limited:
            valve.topology.out -= 1
        record.subject.open_jobs -= 1
        self.dirty[record.subject] = None

    def park(
        self, subject: SubjectState, state: LambdaState, sequence: int, parked: Parked
    ) -> None:
        """Put an event aside until ``parked.due_ms``."""
        state.add_parked(sequence, parked)
        subject.parked += 1
        self.parked += 1
        self.dirty[subject] = None
        self.wake_at(subject, parked.due_ms)

    def unpark(self, subject: SubjectState, state: LambdaState, sequence: int) -> Parked:
        """Take a parked event back."""
        subject.parked -= 1
        self.parked -= 1
        self.dirty[subject] = None
        return state.remove_parked(sequence)

    def line_up(self, valve: Valve, subject: SubjectState) -> None:
        """The subject waits until the valve lets its job out; where the line is full, in the table:
        the sweep finds it once there is room."""
        if subject in valve.line:
            return
        if valve.is_full:
            valve.deferred = self.deferring = True
            return
        valve.line[subject] = None
        valve.queue.lines[valve] = None
        subject.waits += 1
        self.waiting += 1

    def step_out(self, valve: Valve, subject: SubjectState) -> None:
        """It waits no more."""
        del valve.line[subject]
        if not valve.line:
            del valve.queue.lines[valve]
        subject.waits -= 1
        self.waiting -= 1

    def wake_at(self, subject: SubjectState, due_ms: int) -> None:
        """Look at the subject again at ``due_ms``."""
        if due_ms != NEVER_MS:
            self.wakes.add(subject, due_ms)

    def next_ms(self) -> int | None:
        """When something is due next; None when nothing is."""
        expiry, wake = self.deadlines.next_ms(), self.wakes.next_ms()
        if wake is None or expiry is None:
            return expiry if wake is None else wake
        return min(wake, expiry)

    def put_to_sleep(self, subject: SubjectState, wake_ms: int) -> None:
        """Nothing is to be done for it before ``wake_ms``: it leaves memory for the table."""
        del self.subjects[subject.subject]
        self.dirty.pop(subject, None)
        self.wakes.discard(subject)
        self.parked -= subject.parked
        subject.wake_ms = wake_ms
        self.asleep[subject.subject] = subject
        self.counters.put_to_sleep += 1

    def wake_up(self, subject: SubjectState, now_ms: int) -> None:
        """It is needed again, before its row was even stored."""
        del self.asleep[subject.subject]
        subject.wake_ms = 0
        self.counters.woken += 1
        self.subjects[subject.subject] = subject
        self.dirty[subject] = None
        self.parked += subject.parked
        self.wake_at(subject, subject.next_due_ms(now_ms))

    def retire(self, subject: SubjectState) -> None:
        """The ping's life has ended: nothing runs and nothing is left to issue."""
        del self.subjects[subject.subject]
        self.dirty.pop(subject, None)
        self.wakes.discard(subject)
        self.finished[subject.subject] = subject
