"""In-flight state ↔ the plain rows that are stored.

A restored subject takes nothing for granted: every lambda looks again from its cursor on, skipping
what is done, out or parked. So a gap that a crash left below a job that did get out is found.
"""

from collections.abc import Collection

from cape_stream.core.beginnings import first_cursors, newest_in_row
from cape_stream.core.carrying import (
    carried_cursors,
    carried_from,
    carried_rows,
    newest_carried,
)
from cape_stream.core.inflight.lambda_state import JobRecord, LambdaState, Parked
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.job_ids import NO_JOB, job_age
from cape_stream.core.plan import DomainPlan
from cape_stream.model.active_row import NEVER_MS, ActiveRow, JobRow, LambdaRow, ParkedRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.job import Job
from cape_stream.model.sequence import NO_CURSOR
from cape_stream.model.status import ERROR_HEAD_CHARS_MAX, FailureClass

ERROR_BYTES_MAX = 1_000_000
"""What the error texts of a subject take up in its row together: where many events are put aside,
less of each is stored. A row has to fit a record, whatever fails how often."""


def cursor_info(plan: DomainPlan, subject: SubjectState) -> CursorInfo:
    """Cursors of all topologies of ``subject``."""
    cursors = {t.name: subject.cursor_of(t.span) for t in plan.topologies}
    if subject.carried is not None:
        cursors = carried_cursors(subject.carried, cursors)
    return CursorInfo(subject.subject, subject.seen, cursors)


Stored = CursorInfo | ActiveRow
"""What the table may hold of a subject that is not in memory: cursors, or all if it sleeps."""


def active_row(
    plan: DomainPlan, subject: SubjectState, now_ms: int, paused: Collection[str] = ()
) -> ActiveRow:
    """``subject`` as it stands at this moment; to be encoded before it goes on."""
    error_bytes = _error_bytes(subject.parked)
    rows = [
        LambdaRow(
            entry.topology,
            entry.lambda_id,
            state.cursor,
            sorted(state.done) if state.done else (),
            [_job_row(record) for record in state.jobs] if state.jobs else (),
            [_parked_row(*item, error_bytes) for item in state.parked.items()]
            if state.parked
            else (),
            state.outputs,
            entry.topology in paused,
            *state.fence,
            state.floor,
        )
        for entry, state in zip(plan.lambdas, subject.lambdas, strict=True)
    ]
    if subject.carried is not None:
        rows.extend(carried_rows(subject.carried))
    return ActiveRow(subject.subject, subject.head, now_ms, rows, subject.wake_ms)


def _job_row(record: JobRecord) -> JobRow:
    return JobRow(
        record.job_id,
        record.sequences,
        record.attempt,
        record.charged,
        record.timeout_ms,
        record.epoch,
    )


def _error_bytes(parked: int) -> int | None:
    """How much is stored of each error text of so many parked events; None: all of it."""
    share = ERROR_BYTES_MAX // (2 * max(1, parked))
    return None if share >= 4 * ERROR_HEAD_CHARS_MAX else share


def _parked_row(sequence: int, parked: Parked, error_bytes: int | None) -> ParkedRow:
    return ParkedRow(
        sequence,
        parked.attempts,
        parked.charged,
        parked.due_ms,
        parked.failure_class or "",
        _head(parked.first_error, error_bytes),
        _head(parked.last_error, error_bytes),
        parked.first_ms,
        parked.last_ms,
        parked.epoch,
    )


def _head(text: str, bytes_max: int | None) -> str:
    return text if bytes_max is None else text.encode()[:bytes_max].decode(errors="ignore")


def stored_cursors(plan: DomainPlan, row: ActiveRow) -> list[int]:
    """One cursor per lambda from a full row."""
    known = _topology_cursors(row)
    if known.keys() >= plan.names:
        cursors = [known[entry.topology] for entry in plan.lambdas]
    else:
        cursors = first_cursors(plan, known, newest_in_row(row))
    for place, stored in _known_lambdas(plan, row).items():
        cursors[place] = stored.cursor
    return cursors


def _known_lambdas(plan: DomainPlan, row: ActiveRow) -> dict[int, LambdaRow]:
    return {
        place: stored
        for stored in row.lambdas
        if (place := plan.by_name.get((stored.topology, stored.lambda_id))) is not None
    }


def restore(plan: DomainPlan, inflight: InflightState, row: ActiveRow, now_ms: int) -> SubjectState:
    """Put a stored subject back into ``inflight``, with fresh leases for its jobs."""
    known = _known_lambdas(plan, row)
    cursors = stored_cursors(plan, row)
    subject = SubjectState(row.subject, cursors, NO_CURSOR)
    subject.carried = carried_from(plan, row)
    if row.wake_ms:
        subject.index_ms = row.wake_ms
        inflight.counters.woken += 1
    else:
        subject.has_row = True
    inflight.subjects[row.subject] = subject
    for place, stored in known.items():
        _restore_lambda(inflight, subject, place, stored, row.saved_ms, now_ms)
    subject.head = row.head
    subject.seen = _newest_seen(plan, subject)
    inflight.dirty[subject] = None
    return subject


def _topology_cursors(row: ActiveRow) -> dict[str, int]:
    """Where each topology of the row stands: there a lambda begins that was added to it since."""
    cursors: dict[str, int] = {}
    for stored in row.lambdas:
        cursors[stored.topology] = min(stored.cursor, cursors.get(stored.topology, stored.cursor))
    return cursors


def _newest_seen(plan: DomainPlan, subject: SubjectState) -> int:
    """Newest event that a restored subject proves to exist: done, out, or put aside. A cursor below
    the first event of its topology proves nothing."""
    seen = newest_carried(subject.carried)
    for entry, state in zip(plan.lambdas, subject.lambdas, strict=True):
        if state.cursor >= entry.start:
            seen = max(seen, state.cursor)
        if state.unsure_to > state.cursor:
            seen = max(seen, state.unsure_to)
    return seen


def _restore_lambda(
    inflight: InflightState,
    subject: SubjectState,
    place: int,
    stored: LambdaRow,
    saved_ms: int,
    now_ms: int,
) -> None:
    state = subject.lambdas[place]
    state.fence, state.floor = (stored.fence_epoch, stored.fence_count), stored.floor
    state.add_done(stored.done)
    for sequence, output in stored.outputs.items():
        state.keep_output(sequence, output)
    for job in stored.jobs:
        record = JobRecord(
            job.job_id,
            subject,
            place,
            list(job.sequences),
            job.attempt,
            job.charged,
            now_ms,
            job.timeout_ms,
            epoch=job.epoch,
        )
        inflight.register(state, record)
    for row in stored.parked:
        parked = Parked(row.attempts, row.charged, _due_after_restart(row, saved_ms, now_ms))
        parked.failure_class = FailureClass(row.failure_class) if row.failure_class else None
        parked.first_error, parked.last_error = row.first_error, row.last_error
        parked.first_ms, parked.last_ms = row.first_ms, row.last_ms
        parked.epoch = row.epoch
        inflight.park(subject, state, row.sequence, parked)
    state.unsure_to = max(state.accounted(), default=state.cursor)


def _due_after_restart(row: ParkedRow, saved_ms: int, now_ms: int) -> int:
    """The due time, but never further away than it was when it was stored: a clock that went back
    between two processes must not park anything for hours."""
    if row.due_ms == NEVER_MS:
        return NEVER_MS
    return now_ms + min(max(row.due_ms - now_ms, 0), max(row.due_ms - saved_ms, 0))


def adopt(
    plan: DomainPlan, inflight: InflightState, subject: SubjectState, job: Job, now_ms: int
) -> bool:
    """Take over a job that is in the log but not in the restored table. False: nothing of it is
    new. Only events that are not done, out, or parked at this attempt are taken."""
    place = plan.by_name.get((job.topology, job.lambda_id))
    if place is None or job.job_id in inflight.jobs:
        return False
    state = subject.lambdas[place]
    if state.fence != NO_JOB and job_age(job.job_id) <= state.fence:
        return False
    fresh = [
        event.sequence for event in job.events if _adoptable(state, event.sequence, job.attempt)
    ]
    if not fresh:
        return False
    charged = 0
    for sequence in fresh:
        if sequence in state.parked:
            charged = max(charged, inflight.unpark(subject, state, sequence).charged)
    record = JobRecord(
        job.job_id,
        subject,
        place,
        fresh,
        job.attempt,
        charged,
        now_ms,
        job.timeout_ms,
        epoch=job.epoch,
    )
    inflight.register(state, record)
    state.unsure_to = max(state.unsure_to, fresh[-1])
    subject.head = max(subject.head, fresh[-1])
    subject.seen = max(subject.seen, fresh[-1])
    inflight.counters.adopted += 1
    return True


def _adoptable(state: LambdaState, sequence: int, attempt: int) -> bool:
    if state.has_done(sequence) or state.job_with(sequence) is not None:
        return False
    parked = state.parked.get(sequence)
    return parked is None or parked.attempts < attempt
