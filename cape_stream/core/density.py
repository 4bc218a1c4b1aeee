"""What a page of a dense domain is worth, where every sequence id from the first one on must exist.

A source that shows 3 and 5 has lost 4, or does not show it yet: 5 must not be handed out. So a page
counts up to its first gap only, and a page that begins with one is no answer: its query is asked
again, after a wait that grows, for as long as it takes. Nothing is ever taken as not existing but
by a person, who skips the event or sets the cursor.

The ids of a subject begin with 0 or with 1: a page that is asked for from 0 on may begin so.
"""

from cape_stream.core.tracker import page_fault
from cape_stream.model.request import EventPage, QueryFault


def dense_part(page: EventPage) -> tuple[EventPage | QueryFault, str | None]:
    """The part of a page that counts, or a fault if there is none; and what is missing, if any.

    A page that is refused for other reasons comes back as it is.
    """
    events = page.events
    if page_fault(page) is not None or not events:
        return page, None
    start = page.query.start
    expected = events[0].sequence if start == 0 and events[0].sequence == 1 else start
    for place, event in enumerate(events):
        if event.sequence != expected:
            missing = _spelled(expected, event.sequence)
            if place == 0:
                return QueryFault(page.query, missing), missing
            return EventPage(page.query, events[:place]), missing
        expected += 1
    return page, None


def _spelled(expected: int, found: int) -> str:
    gap = f"{expected} is" if found == expected + 1 else f"{expected} to {found - 1} are"
    return f"sequence id {gap} missing before {found} in a dense domain"
