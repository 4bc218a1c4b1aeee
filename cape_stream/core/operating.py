"""Operators' verbs: what each does to a subject or to a topology, and when it is refused.

An order comes in like a ping, at its subject, and is decided in the same order by whoever owns the
partition: the same state gives the same ruling, so an order that is read again after a crash
changes nothing twice. Whether it was applied, had nothing to do, or was refused is a value.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cape_stream.core import surgery
from cape_stream.core.inflight.lambda_state import LambdaState
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.issuing import Issuer
from cape_stream.core.plan import DomainPlan, TopologyPlan
from cape_stream.core.roster import Roster
from cape_stream.core.rows import Stored
from cape_stream.model.operation import (
    NUMBERED_VERBS,
    REASONED_VERBS,
    TOPOLOGY_VERBS,
    Operation,
    Outcome,
    Verb,
)
from cape_stream.model.sequence import NO_CURSOR


@dataclass(slots=True)
class Ruling:
    """What was decided about one order."""

    outcome: Outcome
    detail: str
    subject: SubjectState | None = None
    """Whose turn it is now to be looked at; None if nothing changed."""
    sweep: bool = False
    """True if the table has to be looked through for subjects that may go on now."""


class Operator:
    """Carries orders out on the in-flight state of one task."""

    def __init__(
        self, plan: DomainPlan, inflight: InflightState, roster: Roster, issuer: Issuer
    ) -> None:
        self._plan = plan
        self._inflight = inflight
        self._roster = roster
        self._issuer = issuer
        self._topologies = {topology.name: topology for topology in plan.topologies}
        self._subject_verbs: dict[
            Verb, Callable[[Operation, SubjectState, TopologyPlan, int], Ruling]
        ] = {
            Verb.REWIND: self._rewind,
            Verb.SET: self._set,
            Verb.SKIP: self._skip,
            Verb.RELEASE: self._release,
            Verb.RETRY: self._retry,
            Verb.BACKFILL: self._backfill,
        }

    def order(self, operation: Operation, stored: Stored | None, now_ms: int) -> Ruling:
        """Decide one order, and carry it out unless it is refused.

        Args:
            operation: what is wanted.
            stored: the subject's row, when it is not in memory.
            now_ms: the present moment.
        """
        verb = operation.verb
        if verb in REASONED_VERBS and not operation.why.strip():
            return _refused(f"{verb} needs a reason, so that the audit tells why")
        if verb is Verb.RESUME:
            return self._resume(operation)
        topology = self._topologies.get(operation.topology)
        if topology is None:
            known = ", ".join(self._topologies)
            return _refused(f"no topology {operation.topology!r} in this domain: it has {known}")
        if verb in TOPOLOGY_VERBS:
            return self._pause(operation, topology)
        subject = operation.subject
        if subject is None:
            return _refused(f"{verb} is about one subject and names none")
        if verb in NUMBERED_VERBS and operation.sequence is None:
            return _refused(f"{verb} names no sequence id")
        if stored is None and not self._roster.holds(subject):
            return _refused(f"no subject {subject!r} in this domain: nothing is known of it")
        was_active = subject in self._inflight.subjects
        state = self._inflight.subjects.get(subject)
        if state is None:
            state = self._roster.activate(subject, stored, now_ms)
        ruling = self._subject_verbs[verb](operation, state, topology, now_ms)
        if ruling.outcome is Outcome.APPLIED or not was_active:
            ruling.subject = state
        return ruling

    # --- topologies ----------------------------------------------------------------------------

    def _pause(self, operation: Operation, topology: TopologyPlan) -> Ruling:
        places = (record.lambda_index for record in self._inflight.jobs.values())
        out = sum(place in topology.span for place in places)
        words = f"{out} jobs are out" if out else "no job is out"
        if topology.name in self._inflight.paused:
            return Ruling(Outcome.NOTHING, f"was paused; {words}")
        self._inflight.paused.add(topology.name)
        return Ruling(Outcome.APPLIED, f"paused; {words}")

    def _resume(self, operation: Operation) -> Ruling:
        """Also of a topology that this release does not know: it may have been paused by another,
        and nobody else can let it go."""
        if operation.topology in self._inflight.paused:
            self._inflight.paused.discard(operation.topology)
            return Ruling(Outcome.APPLIED, "resumed", sweep=True)
        if operation.topology not in self._topologies:
            known = ", ".join(self._topologies)
            return _refused(f"no topology {operation.topology!r} in this domain: it has {known}")
        return Ruling(Outcome.NOTHING, "was not paused")

    # --- cursors -------------------------------------------------------------------------------

    def _rewind(
        self, operation: Operation, subject: SubjectState, topology: TopologyPlan, now_ms: int
    ) -> Ruling:
        to, cursor = _number(operation), subject.cursor_of(topology.span)
        if to > cursor:
            return _refused(
                f"the cursor is at {_spelled(cursor)}, before {_spelled(to)}: a rewind goes back;"
                " use `cape cursor set` to take events as done"
            )
        return self._put_back(subject, topology, to)

    def _set(
        self, operation: Operation, subject: SubjectState, topology: TopologyPlan, now_ms: int
    ) -> Ruling:
        to, cursor = _number(operation), subject.cursor_of(topology.span)
        if to <= cursor:
            return self._put_back(subject, topology, to)
        newest = max(subject.seen, subject.head)
        if to > newest:
            return _refused(
                f"{to} is beyond the newest event known, {_spelled(newest)}: what does not exist"
                " yet cannot be taken as done"
            )
        for place in topology.span:
            surgery.finish_through(self._inflight, subject, subject.lambdas[place], to)
        self._drop_outputs(subject, topology)
        now = subject.cursor_of(topology.span)
        return _applied(f"cursor {_spelled(cursor)} → {_spelled(now)}; up to {to} taken as done")

    def _backfill(
        self, operation: Operation, subject: SubjectState, topology: TopologyPlan, now_ms: int
    ) -> Ruling:
        first, cursor = _number(operation), subject.cursor_of(topology.span)
        if cursor < first:
            return Ruling(
                Outcome.NOTHING, f"the cursor is at {_spelled(cursor)}: all from {first} on is due"
            )
        return self._put_back(subject, topology, first - 1)

    def _put_back(self, subject: SubjectState, topology: TopologyPlan, to: int) -> Ruling:
        cursor = subject.cursor_of(topology.span)
        if to < topology.start - 1:
            return _refused(
                f"{_spelled(to)} is before the history of {topology.name!r}, which starts with"
                f" {topology.start}: rewind to {_spelled(topology.start - 1)} at most"
            )
        if all(state.high == to and state.is_plain() for state in self._of(subject, topology)):
            return Ruling(Outcome.NOTHING, f"the cursor is at {_spelled(cursor)}")
        fence = self._issuer.newest_job
        given_up = 0
        newest = max(entry.high for entry in subject.lambdas)
        for place in topology.span:
            state = subject.lambdas[place]
            given_up += surgery.rewind(self._inflight, subject, state, to, fence)
        subject.head = max(subject.head, subject.seen, newest)
        text = f"cursor {_spelled(cursor)} → {_spelled(to)}"
        return _applied(text + (f"; {given_up} jobs given up" if given_up else ""))

    def _skip(
        self, operation: Operation, subject: SubjectState, topology: TopologyPlan, now_ms: int
    ) -> Ruling:
        sequence, cursor = _number(operation), subject.cursor_of(topology.span)
        newest = max(subject.seen, subject.head)
        if sequence > newest:
            return _refused(
                f"{sequence} is beyond the newest event known, {_spelled(newest)}: what does not"
                " exist yet cannot be taken as done"
            )
        changed = [
            surgery.finish_one(self._inflight, subject, state, sequence)
            for state in self._of(subject, topology)
        ]
        if not any(changed):
            return Ruling(Outcome.NOTHING, f"{sequence} was done")
        self._drop_outputs(subject, topology)
        now = subject.cursor_of(topology.span)
        moved = f"; cursor {_spelled(cursor)} → {_spelled(now)}" if now != cursor else ""
        return _applied(f"{sequence} taken as done{moved}")

    def _of(self, subject: SubjectState, topology: TopologyPlan) -> list[LambdaState]:
        return [subject.lambdas[place] for place in topology.span]

    def _drop_outputs(self, subject: SubjectState, topology: TopologyPlan) -> None:
        """Forget outputs that every lambda they were kept for is done with now."""
        for place in topology.span:
            source = subject.lambdas[place]
            fed = [subject.lambdas[other] for other in self._plan.lambdas[place].fed]
            if source.outputs:
                source.drop_outputs(
                    [each for each in source.outputs if all(s.has_done(each) for s in fed)]
                )

    # --- what is put aside ---------------------------------------------------------------------

    def _release(
        self, operation: Operation, subject: SubjectState, topology: TopologyPlan, now_ms: int
    ) -> Ruling:
        return self._make_due(subject, topology, [_number(operation)], now_ms)

    def _retry(
        self, operation: Operation, subject: SubjectState, topology: TopologyPlan, now_ms: int
    ) -> Ruling:
        parked = {each for place in topology.span for each in subject.lambdas[place].parked}
        return self._make_due(subject, topology, sorted(parked), now_ms)

    def _make_due(
        self, subject: SubjectState, topology: TopologyPlan, sequences: Iterable[int], now_ms: int
    ) -> Ruling:
        due: list[int] = []
        for sequence in sequences:
            for place in topology.span:
                state = subject.lambdas[place]
                if sequence in state.parked:
                    surgery.make_due(self._inflight, subject, state, sequence, now_ms)
                    due.append(sequence)
        if due:
            return _applied(f"due now: {', '.join(map(str, due[:SHOWN_MAX]))}{_more(due)}")
        places = self._of(subject, topology)
        for sequence in sequences:
            if all(state.has_done(sequence) for state in places):
                return Ruling(Outcome.NOTHING, f"{sequence} was done")
            if any(state.job_with(sequence) for state in places):
                return Ruling(Outcome.NOTHING, f"{sequence} is in a job that is out")
            return _refused(f"{sequence} is not put aside: it has not been tried yet")
        return Ruling(Outcome.NOTHING, "nothing of it is put aside")


SHOWN_MAX = 20
"""How many sequence ids an audit entry lists."""


def _more(due: list[int]) -> str:
    return f" and {len(due) - SHOWN_MAX} more" if len(due) > SHOWN_MAX else ""


def _number(operation: Operation) -> int:
    assert operation.sequence is not None, "refused before if it names none"
    return operation.sequence


def _spelled(cursor: int) -> str:
    return "none" if cursor == NO_CURSOR else str(cursor)


def _applied(detail: str) -> Ruling:
    return Ruling(Outcome.APPLIED, detail)


def _refused(detail: str) -> Ruling:
    return Ruling(Outcome.REFUSED, detail)
