"""The refresh role: one candidate for the lead of the sweep over an App's sources."""

import threading
from collections.abc import Mapping

from cape_stream.roles.backends import Backend, StoppedError, member_name, patiently
from cape_stream.roles.partitions import check_counts
from cape_stream.roles.settings import Settings
from cape_stream.runtime.refresh import LeadState, RefreshBackgrounds, Refresher
from cape_stream.runtime.steady import ThreadBackground
from cape_stream.sdk.app import App

WALKS_PER_DOMAIN = 2


class RefreshPart:
    """Implements `cape_stream.roles.crew.Part`.

    Args:
        app: whose sources.
        backend: where the pings go; stays open.
        settings: everything in effect.
    """

    name = "refresh"

    def __init__(self, app: App, backend: Backend, settings: Settings) -> None:
        self._app = app
        self._backend = backend
        self._settings = settings.refresh
        self._stopping = threading.Event()
        self._refresher: Refresher | None = None

    def run(self) -> None:
        """See `Part.run`."""
        app, backend, settings = self._app, self._backend, self._settings
        stopping = self._stopping.is_set
        try:
            patiently(lambda: check_counts(backend.log, app), backend.place, stopping=stopping)
        except StoppedError:
            return
        calls_max = WALKS_PER_DOMAIN * (1 + settings.calls_hanging_max) * len(app.domains)
        backgrounds = RefreshBackgrounds(
            sources=ThreadBackground(calls_max, "cape-sweeps"),
            marks=ThreadBackground(1, "cape-marks"),
        )
        refresher = Refresher(
            log=backend.log,
            codec=backend.codec,
            clock=backend.clock,
            names=app.topic_names,
            partitions=app.partitions,
            sources={name: domain.source for name, domain in app.domains.items()},
            backgrounds=backgrounds,
            member_name=member_name(app.name, self.name),
            settings=settings,
        )
        self._refresher = refresher
        try:
            while not stopping():
                refresher.turn()
        finally:
            refresher.close()
            backgrounds.sources.close()
            backgrounds.marks.close()

    def stop(self) -> None:
        """See `Part.stop`."""
        self._stopping.set()

    def figures(self) -> Mapping[str, int]:
        """See `Part.figures`."""
        refresher = self._refresher
        if refresher is None:
            return {}
        return {
            "refresh_leads": int(refresher.state is LeadState.LEADING),
            "refresh_pings": refresher.counters.pings,
            "refresh_sources_failing": len(refresher.errors()),
        }
