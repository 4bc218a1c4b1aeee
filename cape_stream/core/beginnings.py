"""Where a topology begins on a subject for which it has no cursor yet.

``earliest`` and a sequence id are plain. ``latest`` means, subject by subject, *behind the newest
event that the domain has seen of it when a dispatcher that has the topology first looks at it*. A
subject of which nothing is stored has news of its own: the topology begins with the newest event
that the first ping names, and with the first event if it names none. So an event that comes after
the topology was added is never left out; of what came before, it may get the last.
"""

from collections.abc import Callable, Mapping

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


def lags(plan: DomainPlan, info: CursorInfo, takes: Callable[[int], bool]) -> bool:
    """True if some topology is not where the subject's newest event is, and takes more now.

    Args:
        plan: the domain's.
        info: where the subject stands.
        takes: says of a topology's place whether work for it gets anywhere.
    """
    known, latest = info.cursors, info.latest
    if known.keys() >= plan.names:
        cursors = [known[topology.name] for topology in plan.topologies]
    else:
        first = first_cursors(plan, known, latest)
        cursors = [first[topology.span.start] for topology in plan.topologies]
    return any(cursor < latest and takes(place) for place, cursor in enumerate(cursors))


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
