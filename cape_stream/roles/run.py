"""Puts roles into one process: all of them on the embedded log, or some of them on Kafka.

`opened` is for programs that look on while it runs, `serve` is the whole life of a process.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cape_stream.roles.backends import Backend, open_backend
from cape_stream.roles.collecting import collect_seldom
from cape_stream.roles.crew import Crew, Part, raise_failure, say, signals
from cape_stream.roles.dispatcher import DispatcherPart
from cape_stream.roles.orphans import hand_back_orphans
from cape_stream.roles.outbox import OutboxPart, outboxes
from cape_stream.roles.progress import Progress
from cape_stream.roles.refresh import RefreshPart
from cape_stream.roles.settings import BackendName, Settings, SettingsError
from cape_stream.roles.topics import topic_specs
from cape_stream.roles.worker import WorkerPart
from cape_stream.sdk.app import App

logger = logging.getLogger(__name__)

ROLES: Mapping[str, Callable[[App, Backend, Settings], Part]] = {
    "dispatcher": DispatcherPart,
    "worker": WorkerPart,
    "refresh": RefreshPart,
}
ALL_ROLES = tuple(ROLES)
OUTBOX: Mapping[str, Callable[[App, Backend, Settings], Part]] = {"outbox": OutboxPart}
"""Only for Apps that have one; on the embedded log it comes by itself, for nobody else could."""


def _gateway(app: App, backend: Backend, settings: Settings) -> Part:
    from cape_stream.roles.gateway import GatewayPart  # brings the web server

    return GatewayPart(app, backend, settings)


GATEWAY: Mapping[str, Callable[[App, Backend, Settings], Part]] = {"gateway": _gateway}
"""On the embedded log it comes by itself if its port is set, for nobody else could open it."""


@contextmanager
def opened(
    app: App,
    settings: Settings,
    *,
    backend_name: BackendName = "embedded",
    roles: Sequence[str] = ALL_ROLES,
) -> Iterator[Crew]:
    """A crew that is ready to start; on the way out it is stopped, and everything is closed.

    On the embedded log missing topics are created, for nobody else could.

    Raises:
        Fatal: the folder is in use or damaged, a setting or the App cannot work.
    """
    if backend_name == "embedded" and "dispatcher" not in roles:
        raise SettingsError(
            f"{' and '.join(roles)} alone cannot use the embedded log, which one process holds:"
            " use `cape run`, or name a Kafka with --kafka HOST:PORT"
        )
    with open_backend(backend_name, settings, app.name) as backend:
        if backend_name == "embedded":
            backend.log.create_topics(topic_specs(app))
            hand_back_orphans(app, backend)
            if any(outboxes(app)):
                roles = (*roles, *OUTBOX)
            if "port" in settings.given.get("gateway", {}):
                roles = (*roles, *GATEWAY)
        parts = {**ROLES, **OUTBOX, **GATEWAY}
        crew = Crew([parts[role](app, backend, settings) for role in roles])
        try:
            yield crew
        finally:
            crew.stop()
            _close_sources(app)


def serve(
    app: App,
    settings: Settings,
    *,
    backend_name: BackendName = "embedded",
    roles: Sequence[str] = ALL_ROLES,
) -> None:
    """Run until a signal, telling how far it is; returns when everything has stopped in order.

    Raises:
        Fatal: it could not begin, or a part of it could not go on.
    """
    interval_ms = settings.process.progress_interval_ms
    with opened(app, settings, backend_name=backend_name, roles=roles) as crew, signals(crew):
        collect_seldom()
        crew.start()
        say(f"{', '.join(roles)} of {app.name} on {backend_name}; Ctrl-C stops")
        progress = Progress()
        while not crew.wait(interval_ms / 1_000 if interval_ms else None):
            progress.say(crew.figures())
        crew.stop()
    raise_failure(crew.failure)
    say(f"stopped; {progress.summary(crew.figures())}")


def _close_sources(app: App) -> None:
    for domain in app.domains.values():
        try:
            domain.source.close()
        except Exception:  # a source is foreign code, and everything of ours is stored by now
            logger.warning("source of %s did not close", domain.name, exc_info=True)
