"""Bookkeeping held against itself: rows that cannot be, and work that nobody is going to do.

Looks and changes nothing. A finding of one moment may be a change on its way; whoever asks twice
and gets the same has found a defect.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cape_stream.core.inflight.lambda_state import LambdaState
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import DomainPlan
from cape_stream.model.active_row import ActiveRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.sequence import NO_CURSOR


class Finding(NamedTuple):
    """One thing that is wrong."""

    kind: str
    """``leaked``: kept though nothing needs it. ``stuck``: wanted, and nobody is going to do it.
    ``impossible``: no history leads there."""
    subject: str
    detail: str


def audit_inflight(plan: DomainPlan, inflight: InflightState) -> Iterator[Finding]:
    """The in-flight table against its lookup table and its own counters."""
    parked_anywhere = 0
    seen_jobs: set[str] = set()
    for state in inflight.subjects.values():
        yield from _audit_subject(plan, inflight, state, seen_jobs)
        parked_anywhere += state.parked
    for job_id, record in inflight.jobs.items():
        if job_id not in seen_jobs:
            yield Finding("leaked", record.subject.subject, f"job {job_id} is out for no lambda")
    for gate in {id(valve.queue): valve.queue for valve in inflight.valves}.values():
        places = {valve.place for valve in inflight.valves if valve.queue is gate}
        out = sum(record.lambda_index in places for record in inflight.jobs.values())
        if out != gate.out:
            detail = f"queue {gate.name} counts {gate.out} jobs out, {out} are"
            yield Finding("leaked" if gate.out > out else "impossible", "", detail)
    if parked_anywhere != inflight.parked:
        detail = f"{inflight.parked} parked events counted, {parked_anywhere} there"
        yield Finding("impossible", "", detail)


def _audit_subject(
    plan: DomainPlan, inflight: InflightState, state: SubjectState, seen_jobs: set[str]
) -> Iterator[Finding]:
    subject = state.subject
    jobs = parked = 0
    for entry, each in zip(plan.lambdas, state.lambdas, strict=True):
        name = f"{entry.topology}/{entry.lambda_id}"
        jobs += len(each.jobs)
        parked += len(each.parked)
        seen_jobs.update(record.job_id for record in each.jobs)
        for record in each.jobs:
            if inflight.jobs.get(record.job_id) is not record:
                detail = f"job {record.job_id} of {name} is not in the lookup table"
                yield Finding("stuck", subject, detail)
        for sequence in _doubled(each):
            detail = f"event {sequence} of {name} is out, and done, parked or out again"
            yield Finding("impossible", subject, detail)
        for sequence in each.parked:
            if each.has_done(sequence):
                detail = f"event {sequence} of {name} is parked and done"
                yield Finding("impossible", subject, detail)
        if each.high < each.cursor:
            yield Finding("impossible", subject, f"{name} was given less than it has done")
    if (jobs, parked) != (state.open_jobs, state.parked):
        detail = (
            f"{state.open_jobs} jobs and {state.parked} parked events counted,"
            f" {jobs} and {parked} there"
        )
        yield Finding("impossible", subject, detail)
    is_moving = jobs or parked or state.queries or state.wants or state.source_due_ms or state.waits
    if not is_moving:
        yield Finding("stuck", subject, "in memory, and nothing is under way for it")


def _doubled(state: LambdaState) -> Iterator[int]:
    """Events that are out and somewhere else too."""
    taken: set[int] = set()
    for record in state.jobs:
        for sequence in record.sequences:
            if state.has_done(sequence) or sequence in state.parked or sequence in taken:
                yield sequence
            taken.add(sequence)


def audit_cursors(plan: DomainPlan, info: CursorInfo) -> Iterator[Finding]:
    """A row of cursors against the newest event it knows of."""
    starts = {entry.topology: entry.start - 1 for entry in plan.lambdas}
    for topology, cursor in info.cursors.items():
        if cursor > max(info.latest, starts.get(topology, info.latest)):
            detail = f"cursor of {topology} is {cursor}, the newest event seen {info.latest}"
            yield Finding("impossible", info.subject, detail)


class Standing(NamedTuple):
    """Where the rows say that a subject stands."""

    newest: int
    """Newest event known of it."""
    furthest: int
    """The cursor that has come furthest; `NO_CURSOR` if none has moved."""
    is_active: bool
    """Something is under way for it."""


def furthest_cursor(plan: DomainPlan, cursors: Mapping[str, int]) -> int:
    """The highest of the cursors that topologies have reached by delivery; one that begins at a
    sequence id stands there before there is such an event."""
    starts = {entry.topology: entry.start - 1 for entry in plan.lambdas}
    moved = (cursor for name, cursor in cursors.items() if cursor != starts.get(name, NO_CURSOR))
    return max(moved, default=NO_CURSOR)


def audit_standing(subject: str, standing: Standing | None, at_source: int) -> Finding | None:
    """A subject against the newest event that its source shows. A source that has pruned all of a
    subject shows none, and nothing follows from that."""
    if standing is None:
        text = f"the source has events up to {at_source}, and nothing is known of the subject"
        return Finding("stuck", subject, text)
    if standing.furthest > at_source:
        text = f"a cursor is at {standing.furthest}, the newest event of the source at {at_source}"
        return Finding("impossible", subject, text)
    if standing.newest < at_source and not standing.is_active:
        text = (
            f"the source has events up to {at_source}, known are those up to {standing.newest},"
            " and nothing is under way: no ping has come, nor the refresh"
        )
        return Finding("stuck", subject, text)
    return None


def audit_sleeper(row: ActiveRow, *, is_indexed: bool, has_active_row: bool) -> Iterator[Finding]:
    """The row of one that sleeps."""
    if not row.wake_ms:
        yield Finding("impossible", row.subject, "stored as asleep without a time to wake")
    if not is_indexed:
        yield Finding("stuck", row.subject, f"asleep until {row.wake_ms}, and in no index of that")
    if has_active_row:
        yield Finding("impossible", row.subject, "stored as asleep and as active")
    if not any(each.parked or each.jobs or each.unserved for each in row.lambdas):
        yield Finding("leaked", row.subject, "stored as asleep with nothing put aside")
