"""Where a topology begins on a subject for which it has no cursor yet.

``earliest`` and a sequence id are plain. ``latest`` means, subject by subject, *behind the newest
event that the domain has seen of it when a dispatcher that has the topology first looks at it*. A
subject of which nothing is stored has news of its own: the topology begins with the newest event
that the first ping names, and with the first event if it names none. So an event that comes after
the topology was added is never left out; of what came before, it may get the last.
"""

from collections.abc import Container, Mapping

from cape_stream.core.plan import DomainPlan, LambdaPlan
from cape_stream.model.active_row import ActiveRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.sequence import NO_CURSOR


def first_cursors(plan: DomainPlan, known: Mapping[str, int], newest: int) -> list[int]:
    """One cursor per lambda.

    Args:
        plan: of the domain.
        known: topology → stored cursor, former names too.
        newest: newest event that is old news; `NO_CURSOR` if nothing is known to be.
    """
    return [_first_cursor(entry, known, newest) for entry in plan.lambdas]


def lags(plan: DomainPlan, info: CursorInfo, paused: Container[str] = ()) -> bool:
    """True if some topology that is not ``paused`` is not where the subject's newest event is."""
    known, latest = info.cursors, info.latest
    if known.keys() >= plan.names:
        return any(known[name] < latest and name not in paused for name in plan.names)
    cursors = zip(plan.lambdas, first_cursors(plan, known, latest), strict=True)
    return any(cursor < latest and entry.topology not in paused for entry, cursor in cursors)


def newest_in_row(row: ActiveRow) -> int:
    """Newest event that a full row proves to exist, or the place where a topology begins."""
    newest = NO_CURSOR
    for each in row.lambdas:
        newest = max((newest, each.cursor, *each.done, *(p.sequence for p in each.parked)))
        for job in each.jobs:
            newest = max(newest, *job.sequences)
    return newest


def _first_cursor(entry: LambdaPlan, known: Mapping[str, int], newest: int) -> int:
    for name in (entry.topology, *entry.formerly):
        if name in known:
            return known[name]
    return max(newest, NO_CURSOR) if entry.from_latest else entry.start - 1
