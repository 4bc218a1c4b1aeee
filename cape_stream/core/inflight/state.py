"""The in-flight state of one task: state tree, timeout list and job lookup table.

Source: the Cape article, "Scheduler: The Brain Behind Inflight Job Management". Everything here is
bookkeeping; what to do with it is decided in `cape_stream.core.issuing` and
`cape_stream.core.settling`.
"""

from heapq import heappop, heappush

from cape_stream.core.effects import SchedulerCounters, SchedulerEffects
from cape_stream.core.inflight.deadlines import Deadlines
from cape_stream.core.inflight.lambda_state import JobRecord, LambdaState, Parked
from cape_stream.core.inflight.subject import SubjectState


class InflightState:
    """Subjects that are pinged, in flight or parked, and the jobs that are out."""

    def __init__(self) -> None:
        self.subjects: dict[str, SubjectState] = {}
        """Root of the state tree: subject → topologies (spans) → lambdas."""
        self.deadlines = Deadlines()
        self.jobs: dict[str, JobRecord] = {}
        """Lookup table by job id."""
        self.dirty: dict[SubjectState, None] = {}
        """Active subjects that changed since the last commit was taken."""
        self.finished: dict[str, SubjectState] = {}
        """Subjects that ended since then; their cursors are not in the table yet."""
        self.parked = 0
        """Parked events over all subjects."""
        self.effects = SchedulerEffects()
        self.counters = SchedulerCounters()
        self._wakes: list[tuple[int, int, SubjectState]] = []
        self._wake_count = 0

    def register(self, state: LambdaState, record: JobRecord) -> None:
        """A job is out."""
        state.add_job(record)
        record.subject.open_jobs += 1
        self.jobs[record.job_id] = record
        self.deadlines.add(record)
        self.dirty[record.subject] = None

    def release(self, state: LambdaState, record: JobRecord) -> None:
        """A job is no longer out, for whatever reason."""
        del self.jobs[record.job_id]
        self.deadlines.remove(record)
        state.remove_job(record)
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

    def wake_at(self, subject: SubjectState, due_ms: int) -> None:
        """Look at the subject again at ``due_ms``."""
        self._wake_count += 1
        heappush(self._wakes, (due_ms, self._wake_count, subject))

    def take_woken(self, now_ms: int) -> list[SubjectState]:
        """Subjects to look at now, each once."""
        woken: dict[SubjectState, None] = {}
        while self._wakes and self._wakes[0][0] <= now_ms:
            subject = heappop(self._wakes)[2]
            if self.subjects.get(subject.subject) is subject:
                woken[subject] = None
        return list(woken)

    def next_ms(self) -> int | None:
        """When something is due next; None when nothing is."""
        expiry = self.deadlines.next_ms()
        if not self._wakes:
            return expiry
        wake = self._wakes[0][0]
        return wake if expiry is None else min(wake, expiry)

    def retire(self, subject: SubjectState) -> None:
        """The ping's life has ended: nothing runs and nothing is left to issue."""
        del self.subjects[subject.subject]
        self.dirty.pop(subject, None)
        self.finished[subject.subject] = subject
