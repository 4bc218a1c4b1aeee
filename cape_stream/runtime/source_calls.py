"""One call to an event source: what it asks, and what makes an answer one to its question."""

from collections.abc import Sequence
from dataclasses import dataclass

from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.background import Pending
from cape_stream.ports.source import EventSource
from cape_stream.runtime.task import Task

Answer = EventPage | QueryFault
Asked = tuple[Task, EventQuery]


@dataclass(slots=True)
class Call:
    """One call that is out."""

    asked: list[Asked]
    pending: Pending[Sequence[Answer]]
    started_ms: int
    is_alone: bool
    """Its query came from among those that get a call of their own."""
    is_probe: bool
    met_limit: bool = False
    """The limit was reached while it was out."""


@dataclass(slots=True)
class Fetch:
    """One call, ready to run in the background."""

    source: EventSource
    queries: list[EventQuery]

    def __call__(self) -> Sequence[Answer]:
        return self.source.fetch_many(self.queries)


def checked(query: EventQuery, answer: object) -> Answer:
    """The source's answer, if it is one to this query."""
    if isinstance(answer, EventPage | QueryFault) and answer.query == query:
        return answer
    return QueryFault(query, "the source answered something else")
