"""State of topologies and lambdas that this dispatcher does not know, carried through unchanged.

During a rolling deploy dispatchers of two releases take turns over one state, and a roll-back
gives it back to the older one. Whoever rewrites a subject's row therefore keeps what it cannot
read: the other release goes on exactly where it left off.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import DomainPlan
from cape_stream.model.active_row import ActiveRow, LambdaRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.sequence import NO_CURSOR

CURSOR_ONLY = ""
"""Lambda id of a row that carries nothing but the cursor of a whole topology."""


class Carried(NamedTuple):
    """What one subject's row says of topologies and lambdas that the plan does not have."""

    cursors: Mapping[str, int]
    """Topology → its cursor."""
    lambdas: Sequence[LambdaRow]
    """Lambdas with all that was stored of them; their topology may be known."""


def carried_from(plan: DomainPlan, stored: CursorInfo | ActiveRow | None) -> Carried | None:
    """What of ``stored`` the plan does not know; None, as nearly always, if it knows all."""
    if stored is None:
        return None
    if isinstance(stored, CursorInfo):
        if stored.cursors.keys() <= plan.names:
            return None
        cursors = {name: at for name, at in stored.cursors.items() if name not in plan.names}
        return Carried(cursors, ())
    foreign = [row for row in stored.lambdas if (row.topology, row.lambda_id) not in plan.by_name]
    if not foreign:
        return None
    cursors = {
        row.topology: row.cursor
        for row in foreign
        if row.lambda_id == CURSOR_ONLY and row.topology not in plan.names
    }
    lambdas = [row._replace(unserved=True) for row in foreign if row.lambda_id != CURSOR_ONLY]
    return Carried(cursors, lambdas) if cursors or lambdas else None


def carried_rows(carried: Carried) -> Iterator[LambdaRow]:
    """What to store of it in a full row."""
    yield from carried.lambdas
    for topology, cursor in carried.cursors.items():
        yield LambdaRow(topology, CURSOR_ONLY, cursor, unserved=True)


def carried_cursors(carried: Carried, known: Mapping[str, int]) -> dict[str, int]:
    """Cursors of all topologies, the ``known`` ones too: none is further than a carried lambda."""
    cursors = {**carried.cursors, **known}
    for row in carried.lambdas:
        cursors[row.topology] = min(row.cursor, cursors.get(row.topology, row.cursor))
    return cursors


def needs_full_row(plan: DomainPlan, subject: SubjectState) -> bool:
    """True if cursors alone would lose something that is carried: work under way or put aside, or
    a lambda that is behind its topology."""
    carried = subject.carried
    if carried is None:
        return False
    for row in carried.lambdas:
        if row.jobs or row.parked or row.done or row.outputs:
            return True
        if row.topology in plan.names:
            span = next(each.span for each in plan.topologies if each.name == row.topology)
            if row.cursor < subject.cursor_of(span):
                return True
    return False


def newest_carried(carried: Carried | None) -> int:
    """Newest event that carried work proves to exist; `NO_CURSOR` if it proves none."""
    newest = NO_CURSOR
    for row in carried.lambdas if carried else ():
        for sequence in (
            *row.done,
            *(parked.sequence for parked in row.parked),
            *(sequence for job in row.jobs for sequence in job.sequences),
        ):
            newest = max(newest, sequence)
    return newest


def holds_unserved(plan: DomainPlan, row: ActiveRow, paused: Container[str] = ()) -> bool:
    """True if a sleeping row was written by somebody who did not serve a lambda that we do: it has
    to be looked at, whatever it says about when to wake."""
    return any(
        each.topology in plan.names
        if each.lambda_id == CURSOR_ONLY
        else (each.topology, each.lambda_id) in plan.by_name
        for each in row.lambdas
        if each.unserved and each.topology not in paused
    )
