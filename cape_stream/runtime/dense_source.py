"""The source of a dense domain: pages count up to their first gap, which is asked for again."""

import logging
from collections.abc import Sequence
from threading import Lock

from cape_stream.core.density import dense_part
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.source import Changes, EventSource

TOLD_MAX = 1_000
"""Gaps remembered as told: each is met again and again."""

logger = logging.getLogger("cape_stream.sources")


class DenseSource:
    """Implements `EventSource`: another one, with what `cape_stream.core.density` makes of it.

    Args:
        source: the other one.
        domain: its name, for the log.
    """

    def __init__(self, source: EventSource, domain: str) -> None:
        self.source = source
        self._domain = domain
        self._lock = Lock()
        self._told: dict[tuple[str, str], None] = {}

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `EventSource.fetch_many`."""
        return [self._checked(answer) for answer in self.source.fetch_many(queries)]

    def _checked(self, answer: EventPage | QueryFault) -> EventPage | QueryFault:
        if not isinstance(answer, EventPage):
            return answer
        part, missing = dense_part(answer)
        if missing is not None:
            self._tell(answer.query.subject, missing)
        return part

    def _tell(self, subject: str, missing: str) -> None:
        with self._lock:
            if (subject, missing) in self._told:
                return
            self._told[subject, missing] = None
            if len(self._told) > TOLD_MAX:
                del self._told[next(iter(self._told))]
        logger.warning("%s %r: %s; it is asked for again", self._domain, subject, missing)

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """See `EventSource.changed_since`."""
        return self.source.changed_since(watermark, limit)

    def close(self) -> None:
        """See `EventSource.close`."""
        self.source.close()
