"""Why a subject waits: what is known of it, lambda by lambda, and one sentence for each.

Looks at a state and changes nothing. The answer is plain data, ready to be JSON.
"""

from collections.abc import Container, Sequence
from typing import Any

from cape_stream.core.inflight.lambda_state import JobRecord, LambdaState, Parked
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import DomainPlan, LambdaPlan
from cape_stream.core.valves import Valve
from cape_stream.model.active_row import NEVER_MS
from cape_stream.model.sequence import NO_CURSOR

LISTED_MAX = 50
"""How many parked events of one lambda are listed; their number is always told."""

Answer = dict[str, Any]


def explain(
    plan: DomainPlan,
    subject: SubjectState,
    where: str,
    paused: Container[str],
    now_ms: int,
    valves: Sequence[Valve] = (),
) -> Answer:
    """Everything there is to say.

    Args:
        plan: of the domain.
        subject: its state, also one put together from a stored row.
        where: ``active``, ``asleep`` or ``idle``.
        paused: topologies that are.
        now_ms: the present moment, by the clock of the times in the state.
        valves: of the task, one a lambda; none leaves out what they say.
    """
    topologies = []
    reasons: list[str] = []
    for topology in plan.topologies:
        lambdas = []
        for place in topology.span:
            entry = plan.lambdas[place]
            because, is_done = _because(plan, subject, entry, where, paused, now_ms)
            told = _lambda(entry, subject.lambdas[place], because, now_ms)
            if valves:
                told["valve"] = _valve(valves[place], subject, now_ms)
                closed = told["valve"]["closed_by"]
                if closed and not is_done and not subject.lambdas[place].jobs:
                    told["because"] = because = f"{closed}; {because}"
            if not is_done:
                reasons.append(f"{_name(entry)}: {because}")
            lambdas.append(told)
        topologies.append(
            {
                "topology": topology.name,
                "cursor": subject.cursor_of(topology.span),
                "paused": topology.name in paused,
                "lambdas": lambdas,
            }
        )
    rests_ms = max(0, subject.source_due_ms - now_ms)
    return {
        "subject": subject.subject,
        "where": where,
        "head": subject.head,
        "newest_seen": subject.seen,
        "because": reasons[0] if reasons else "everything known of it is done",
        "source": {
            "queries_out": len(subject.queries),
            "failures_in_a_row": subject.faults,
            "asked_again_in_ms": rests_ms,
        },
        "topologies": topologies,
        "carried": [
            f"{row.topology}/{row.lambda_id}"
            for row in (subject.carried.lambdas if subject.carried else ())
        ],
    }


def parked_events(plan: DomainPlan, subject: SubjectState, now_ms: int) -> list[Answer]:
    """Everything of one subject that is put aside."""
    return [
        {
            "subject": subject.subject,
            "topology": entry.topology,
            "lambda": entry.lambda_id,
            **_parked(sequence, state.parked[sequence], now_ms),
        }
        for entry, state in zip(plan.lambdas, subject.lambdas, strict=True)
        for sequence in sorted(state.parked)
    ]


def _name(entry: LambdaPlan) -> str:
    return f"{entry.topology}/{entry.lambda_id}"


def _valve(valve: Valve, subject: SubjectState, now_ms: int) -> Answer:
    return {
        "closed_by": valve.closed_by(now_ms),
        "breaker": str(valve.breaker.state),
        "queue_jobs_out": valve.queue.out,
        "queue_limit": valve.queue.limit,
        "subjects_in_line": len(valve.line),
        "is_in_line": subject in valve.line,
    }


def _lambda(entry: LambdaPlan, state: LambdaState, because: str, now_ms: int) -> Answer:
    parked = [_parked(each, state.parked[each], now_ms) for each in sorted(state.parked)]
    return {
        "lambda": entry.lambda_id,
        "queue": entry.queue,
        "cursor": state.cursor,
        "done_beyond": sorted(state.done)[:LISTED_MAX],
        "because": because,
        "in_flight": [_job(record, now_ms) for record in state.jobs],
        "parked_count": len(parked),
        "parked": parked[:LISTED_MAX],
    }


def _job(record: JobRecord, now_ms: int) -> Answer:
    return {
        "job_id": record.job_id,
        "events": list(record.sequences),
        "attempt": record.attempt,
        "epoch": record.epoch,
        "since_ms": now_ms - record.issued_ms,
        "expires_in_ms": record.expires_ms - now_ms,
    }


def _parked(sequence: int, parked: Parked, now_ms: int) -> Answer:
    is_quarantined = parked.due_ms == NEVER_MS
    return {
        "event": sequence,
        "quarantined": is_quarantined,
        "failure_class": str(parked.failure_class) if parked.failure_class else None,
        "attempts": parked.attempts,
        "failures": parked.charged,
        "first_error": parked.first_error,
        "last_error": parked.last_error,
        "first_ms": parked.first_ms,
        "last_ms": parked.last_ms,
        "due_in_ms": None if is_quarantined else max(0, parked.due_ms - now_ms),
    }


def _because(
    plan: DomainPlan,
    subject: SubjectState,
    entry: LambdaPlan,
    where: str,
    paused: Container[str],
    now_ms: int,
) -> tuple[str, bool]:
    """The sentence of one lambda, and whether it has nothing to do."""
    state = subject.lambdas[entry.index]
    newest = max(subject.head, subject.seen)
    is_open = bool(state.jobs or state.parked)
    if state.cursor >= newest and not is_open:
        return "everything known is done", True
    if entry.topology in paused:
        return f"the topology is paused; `cape topology resume` lets it go on{_out(state)}", False
    oldest = _oldest_parked(state)
    if oldest is not None and (entry.ordered or not state.jobs):
        return _put_aside(entry, oldest, state.parked[oldest], now_ms), False
    if state.jobs:
        return _running(state.jobs[0], len(state.jobs), now_ms), False
    waits_for = _gate(plan, subject, entry)
    if waits_for is not None:
        return waits_for, False
    return _needs_source(subject, where, now_ms), False


def _out(state: LambdaState) -> str:
    return f"; {len(state.jobs)} jobs of before are still out" if state.jobs else ""


def _oldest_parked(state: LambdaState) -> int | None:
    oldest = min(state.parked, default=None)
    if oldest is None or (state.jobs and state.jobs[0].sequences[0] < oldest):
        return None
    return oldest


def _put_aside(entry: LambdaPlan, sequence: int, parked: Parked, now_ms: int) -> str:
    why = "was handed back or not reached"
    if parked.failure_class is not None:
        why = f"failed ({parked.failure_class}: {parked.last_error})"
    after = "; what follows it waits for it" if entry.ordered else ""
    if parked.due_ms == NEVER_MS:
        return (
            f"event {sequence} {why} {parked.charged} times and is in quarantine until somebody"
            f" releases, skips or rewinds it{after}"
        )
    if parked.due_ms > now_ms:
        wait_s = (parked.due_ms - now_ms) / 1_000
        return (
            f"event {sequence} {why} and is tried again in {wait_s:.1f} s, as attempt"
            f" {parked.attempts + 1}{after}"
        )
    return f"event {sequence} {why} and is due: it waits for its payload or for an older event"


def _running(record: JobRecord, count: int, now_ms: int) -> str:
    since_s = (now_ms - record.issued_ms) / 1_000
    left_s = (record.expires_ms - now_ms) / 1_000
    return (
        f"{count} jobs are out; the oldest, {record.job_id} with event {record.sequences[0]},"
        f" attempt {record.attempt}, for {since_s:.1f} s, and is given up in {left_s:.1f} s"
    )


def _gate(plan: DomainPlan, subject: SubjectState, entry: LambdaPlan) -> str | None:
    """Whom the next event waits for; None if it may go, or if nobody knows of one."""
    state = subject.lambdas[entry.index]
    if not entry.gates:
        return None
    position = state.high + 1
    end = subject.buffer.covered_to(position)
    known = next(subject.buffer.between(position, end), None) if end is not None else None
    for gate in entry.gates:
        before, name = subject.lambdas[gate], _name(plan.lambdas[gate])
        if known is not None and not before.has_done(known.sequence):
            return f"event {known.sequence} waits for {name}, which has not done it"
        if known is None and before.cursor <= state.high:
            at = "nothing" if before.cursor == NO_CURSOR else f"everything up to {before.cursor}"
            return f"it waits for {name}, which has done {at}"
    return None


def _needs_source(subject: SubjectState, where: str, now_ms: int) -> str:
    if subject.source_due_ms > now_ms:
        wait_s = (subject.source_due_ms - now_ms) / 1_000
        return (
            f"the source failed or fell short {subject.faults} times in a row; it is asked again in"
            f" {wait_s:.1f} s"
        )
    if subject.queries:
        return "the source is being asked for the next events"
    if where == "active":
        return "the next events are about to be asked for"
    return "nothing is under way for it: the next sweep, or a ping, takes it up"
