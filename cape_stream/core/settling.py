"""What a report, a timeout or a lost job means for the events it was about.

A success is a fact: it counts by (subject, topology, lambda, sequence id), whatever has become of
the job. A failure counts only for the attempt that is out.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from cape_stream.core.inflight.lambda_state import (
    JobRecord,
    LambdaState,
    Parked,
    output_bytes,
)
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.job_ids import NO_JOB, job_age
from cape_stream.core.plan import DomainPlan, LambdaPlan
from cape_stream.core.retry import backoff_ms
from cape_stream.model.active_row import NEVER_MS
from cape_stream.model.status import EventFailure, FailureClass, JobStatus, StatusKind

NO_RESULT = "the handler gave no result for this event"
TIMED_OUT = "no status within the timeout"
NO_ROOM = "no room for its output before the lambdas that take it have done what they have"
NO_ROOM_WAIT_MS = 60_000
"""When an event whose output had no room is done anew at the latest."""
SUBJECT_OUTPUT_BYTES_MAX = 3_000_000
"""What the outputs of a subject may take up together. They are kept in its row, which has to fit
the largest record of the changelog (`topics/changelog.toml`) beside errors and sequence ids: a
row that does not fit stops every commit of its dispatcher."""


class Settler:
    """Applies outcomes to the in-flight state of one task. Issues nothing."""

    def __init__(self, plan: DomainPlan, inflight: InflightState) -> None:
        self._plan = plan
        self._inflight = inflight

    def report(self, record: JobRecord, status: JobStatus, now_ms: int) -> None:
        """A status of a job that is out."""
        counters = self._inflight.counters
        plan = self._plan.lambdas[record.lambda_index]
        state = record.subject.lambdas[record.lambda_index]
        if status.kind is StatusKind.HEARTBEAT:
            counters.heartbeats += 1
            expires_ms = min(now_ms + record.timeout_ms, record.ceiling_ms())
            self._inflight.deadlines.move(record, max(record.expires_ms, expires_ms))
            return
        self._inflight.release(state, record)
        valve = self._inflight.valves[record.lambda_index]
        any_done = bool(status.done)
        valve.on_report(record.issued_ms, status.queued_ms, now_ms, any_done=any_done)
        if status.kind is StatusKind.HANDED_BACK:
            valve.breaker.on_no_news(record.issued_ms)
        elif not any_done:
            self._note_failure(record, now_ms)
        if plan.fed and status.outputs:
            status = self._with_room(record, plan, state, status)
        if not status.failures and list(status.done) == record.sequences:
            self._finish(record.subject, plan, state, record.sequences, status)
            counters.jobs_done += 1
            return
        self._report_parts(record, plan, state, status, now_ms)

    def _report_parts(
        self,
        record: JobRecord,
        plan: LambdaPlan,
        state: LambdaState,
        status: JobStatus,
        now_ms: int,
    ) -> None:
        """Results that differ from event to event, or that leave some out."""
        counters = self._inflight.counters
        failures = {failure.sequence: failure for failure in status.failures}
        known = set(record.sequences)
        done = known.intersection(status.done)
        counters.extra_events += len({*status.done, *failures} - known)
        handed_back = status.kind is StatusKind.HANDED_BACK
        counters.handed_back += handed_back
        excused = handed_back
        for sequence in record.sequences:
            if sequence in done:
                continue
            failure = failures.get(sequence)
            if failure is None and not excused:
                counters.missing_events += 1
                failure = EventFailure(sequence, FailureClass.BUG, NO_RESULT)
            self._put_aside(record, plan, state, sequence, failure, now_ms)
            excused = excused or plan.ordered
        counters.jobs_done += not handed_back and len(done) == len(known)
        self._finish(record.subject, plan, state, sorted(done), status)

    def _with_room(
        self, record: JobRecord, plan: LambdaPlan, state: LambdaState, status: JobStatus
    ) -> JobStatus:
        """The status, where an event whose output has no room has to be done anew."""
        crowded = self._crowded(record.subject, state, sorted(status.done), status)
        if not crowded:
            return status
        first = min(crowded)
        if plan.ordered:
            crowded = {sequence for sequence in status.done if sequence >= first}
        self._inflight.counters.crowded_outputs += len(crowded)
        failures = [
            EventFailure(sequence, FailureClass.TRANSIENT, NO_ROOM, NO_ROOM_WAIT_MS)
            for sequence in ([first] if plan.ordered else sorted(crowded))
        ]
        done = [sequence for sequence in status.done if sequence not in crowded]
        return replace(status, done=done, failures=[*status.failures, *failures])

    def _crowded(
        self, subject: SubjectState, state: LambdaState, done: Iterable[int], status: JobStatus
    ) -> set[int]:
        """Events whose outputs have no room. One has: nobody waits for more room than all."""
        kept = sum(each.output_bytes for each in subject.lambdas)
        is_first = not state.outputs
        crowded: set[int] = set()
        for sequence in done:
            size = output_bytes(status.outputs.get(sequence))
            if size and kept + size > SUBJECT_OUTPUT_BYTES_MAX and not is_first:
                crowded.add(sequence)
            elif size:
                kept += size
                is_first = False
        return crowded

    def expire(self, record: JobRecord, now_ms: int) -> None:
        """The job's time is up: the same as a status that says so for every event."""
        self._inflight.counters.timeouts += 1
        plan = self._plan.lambdas[record.lambda_index]
        state = record.subject.lambdas[record.lambda_index]
        self._inflight.release(state, record)
        self._note_failure(record, now_ms)
        for sequence in record.sequences:
            failure = EventFailure(sequence, FailureClass.TIMEOUT, TIMED_OUT)
            self._put_aside(record, plan, state, sequence, failure, now_ms)

    def withdraw(self, record: JobRecord, refusal: str | None, now_ms: int) -> None:
        """The client gave the job up: issue its events again, at once and not charged; a job that
        was refused for good counts as failed, for at once it would be refused again.

        As a new attempt, for no client can tell a record that was never sent from one whose
        acknowledgement was lost; a worker may yet get the old one.
        """
        self._inflight.counters.undelivered += 1
        plan = self._plan.lambdas[record.lambda_index]
        state = record.subject.lambdas[record.lambda_index]
        self._inflight.release(state, record)
        self._inflight.valves[record.lambda_index].breaker.on_no_news(record.issued_ms)
        for sequence in record.sequences:
            failure = None
            if refusal is not None:
                failure = EventFailure(sequence, FailureClass.INVALID, refusal)
            self._put_aside(record, plan, state, sequence, failure, now_ms)

    def stranger(self, subject: SubjectState, place: int, status: JobStatus) -> None:
        """A report whose job is not out: repeated, given up, or issued by a lost owner."""
        counters = self._inflight.counters
        plan = self._plan.lambdas[place]
        state = subject.lambdas[place]
        taken: list[int] = []
        if state.fence != NO_JOB and job_age(status.job_id) <= state.fence:
            counters.ignored_successes += len(status.done)
            return
        crowded = self._crowded(subject, state, status.done, status) if plan.fed else ()
        token = (status.epoch, status.attempt)
        for sequence in status.done:
            if state.has_done(sequence):
                counters.repeated_events += 1
            elif sequence not in crowded and self._takes(subject, plan, state, sequence, token):
                taken.append(sequence)
            else:
                counters.ignored_successes += 1
        if taken:
            counters.late_successes += len(taken)
            state.unsure_to = max(state.unsure_to, *taken)
            self._inflight.dirty[subject] = None
            self._finish(subject, plan, state, taken, status)

    def _takes(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        state: LambdaState,
        sequence: int,
        token: tuple[int, int],
    ) -> bool:
        """True if a late success counts; takes the event out of where it waits.

        An ordered topology takes it only from the current or a newer attempt: an older one may
        still have a rival at work, which must not run beside the next event. Newer by the fencing
        token (epoch, attempt): a lost owner may have counted further than what it stored.
        """
        record = state.job_with(sequence)
        if record is not None:
            if plan.ordered and token < (record.epoch, record.attempt):
                return False
            if len(record.sequences) == 1:
                self._inflight.release(state, record)
            else:
                state.shrink_job(record, sequence)
            return True
        parked = state.parked.get(sequence)
        if parked is not None:
            if plan.ordered and token < (parked.epoch, parked.attempts):
                return False
            self._inflight.unpark(subject, state, sequence)
            return True
        return len(state.done) < plan.window

    def _finish(
        self,
        subject: SubjectState,
        plan: LambdaPlan,
        state: LambdaState,
        sequences: Collection[int],
        status: JobStatus,
    ) -> None:
        """Mark events done, keep their outputs, move the cursor."""
        self._inflight.counters.events_done += len(sequences)
        if plan.fed and status.outputs:
            for sequence in sequences:
                output = status.outputs.get(sequence)
                if output is not None:
                    state.keep_output(sequence, output)
        state.settle(sequences)
        for place in plan.inputs:
            self._drop_outputs(subject, place)

    def _drop_outputs(self, subject: SubjectState, place: int) -> None:
        """Forget outputs that every lambda fed by ``place`` is done with."""
        source = subject.lambdas[place]
        if source.outputs:
            fed = [subject.lambdas[other] for other in self._plan.lambdas[place].fed]
            outputs = source.outputs
            source.drop_outputs([q for q in outputs if all(state.has_done(q) for state in fed)])
            if source.parked and not source.is_full:
                _make_crowded_due(source)

    def _note_failure(self, record: JobRecord, now_ms: int) -> None:
        """Nothing of the job got done: tell the breaker of its lambda."""
        breaker = self._inflight.valves[record.lambda_index].breaker
        breaker.on_failure(record.subject.subject, record.attempt, record.issued_ms, now_ms)

    def _put_aside(
        self,
        record: JobRecord,
        plan: LambdaPlan,
        state: LambdaState,
        sequence: int,
        failure: EventFailure | None,
        now_ms: int,
    ) -> None:
        """Park an event of an ended job; without a failure it is due at once and not charged."""
        parked = _carried(record, sequence, now_ms)
        parked.attempts, parked.epoch = record.attempt, record.epoch
        parked.due_ms = now_ms
        if failure is not None:
            self._inflight.counters.events_failed += 1
            _remember(parked, failure, now_ms)
            is_open = not self._inflight.valves[plan.index].breaker.is_closed
            if is_open or failure.error == NO_ROOM:
                # Nobody gets this done now: it waits for the breaker or for room, and spends no
                # attempt.
                parked.due_ms += failure.retry_after_ms or 0
                self._inflight.park(record.subject, state, sequence, parked)
                return
            parked.charged += 1
            salt = f"{record.subject.subject}/{plan.topology}/{plan.lambda_id}"
            wait_ms = backoff_ms(plan.retry, record.charged + 1, salt)
            parked.due_ms += max(wait_ms, failure.retry_after_ms or 0)
            if not record.charged:
                # A subject backs off as a whole: what fails beside others waits to go with them.
                parked.due_ms = max(parked.due_ms, state.next_failed_due_ms(now_ms) or 0)
            limit = plan.quarantine_after.get(failure.failure_class)
            if limit is not None and parked.charged >= limit:
                parked.due_ms = NEVER_MS
                self._inflight.counters.quarantined_events += 1
        self._inflight.park(record.subject, state, sequence, parked)


def _carried(record: JobRecord, sequence: int, now_ms: int) -> Parked:
    """What is remembered of an event of the job; a restart keeps only the charge."""
    if record.carried is not None:
        return record.carried[sequence]
    return Parked(record.attempt - 1, record.charged, now_ms)


def _make_crowded_due(state: LambdaState) -> None:
    """There is room again: what had none goes out with the next jobs."""
    for parked in state.parked.values():
        if parked.last_error == NO_ROOM and parked.due_ms != NEVER_MS:
            parked.due_ms = 0


def _remember(parked: Parked, failure: EventFailure, now_ms: int) -> None:
    parked.failure_class = failure.failure_class
    parked.last_error = failure.error
    parked.last_ms = now_ms
    if not parked.first_ms:
        parked.first_error = failure.error
        parked.first_ms = now_ms
