"""Limits how many calls to one event source a whole fleet of dispatchers has open at once.

Each dispatcher has a limit of its own for each source (`cape_stream.runtime.source_pacing`). With a
Valkey they share a second one: what one of them hears from a source that is slow or throttles slows
all of them, and together they never ask more than it has been seen to bear. Without the server the
limits of the dispatchers go on alone.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cape_stream.errors import Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.source import Changes, EventSource, NotAskedError
from cape_stream.roles.valkey import URL_VARIABLE, open_store
from cape_stream.runtime.settings import EngineSettings

if TYPE_CHECKING:
    from cape_stream.coordination.limits import Limits

CALLS_MOST = 200
"""Of a whole fleet at one source."""
LEASE_MIN_MS = 1_000
PERMIT_WAIT_MS = 1_000
"""Waited for in the thread of the call; then its queries go back to the others."""


class LimitedSource:
    """Implements `EventSource`: another one, asked within the limit of its fleet.

    Args:
        source: the other one.
        limits: of the fleet.
        name: of the limit.
        slow_ms: an answer that takes longer counts as a refusal.
    """

    def __init__(self, source: EventSource, limits: "Limits", name: str, slow_ms: int) -> None:
        self._source = source
        self._limits = limits
        self._name = name
        self._slow_ms = slow_ms

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `EventSource.fetch_many`."""
        with ExitStack() as stack:
            try:
                call = stack.enter_context(self._limits(self._name, PERMIT_WAIT_MS))
            except Retry as error:
                raise NotAskedError(error.reason) from error
            began_s = time.monotonic()
            try:
                answers = self._source.fetch_many(queries)
            except Retry as error:
                if len(queries) > 1 or error.after_ms is not None:
                    call.refused(error.after_ms)
                raise  # else it is most likely the one subject that cannot be read
            if (time.monotonic() - began_s) * 1_000 >= self._slow_ms:
                call.refused()
            return answers

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """See `EventSource.changed_since`; one leader asks, so nothing limits it."""
        return self._source.changed_since(watermark, limit)

    def close(self) -> None:
        """See `EventSource.close`."""
        self._source.close()


class SourceLimits:
    """The limits of a process that dispatches.

    With ``CAPE_VALKEY_URL`` they are those of the fleet on that server; without it there are none.

    Args:
        app: the App's name.
        settings: how much one process asks.
        environ: variables.

    Raises:
        Fatal: the URL cannot be understood, or its client is not installed.
    """

    def __init__(
        self, app: str, settings: EngineSettings, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._app = app
        self._settings = settings
        url = environ.get(URL_VARIABLE)
        self._store = open_store(url) if url else None

    def around(self, domain: str, source: EventSource) -> EventSource:
        """The source of a domain, within its limit."""
        if self._store is None:
            return source
        from cape_stream.coordination.limit_scripts import HOLD_MAX_MS
        from cape_stream.coordination.limits import Limits, LimitSettings

        settings = self._settings
        calls_max, lease_ms = settings.source_calls_max, 2 * settings.source_timeout_ms
        limit = LimitSettings(
            start=calls_max,
            most=max(CALLS_MOST, calls_max),
            lease_ms=max(LEASE_MIN_MS, min(lease_ms, HOLD_MAX_MS)),
            fallback_slots=calls_max,
        )
        name = f"source {self._app}.{domain}"
        return LimitedSource(source, Limits(self._store, limit), name, settings.source_slow_ms)

    def close(self) -> None:
        """Free connections."""
        if self._store is not None:
            self._store.close()
