"""The worker role: runs an App's handlers on the jobs of its queues."""

import threading
from collections.abc import Mapping

from cape_stream.ports.claims import ClaimStore
from cape_stream.roles.backends import Backend, StoppedError, patiently
from cape_stream.roles.claims import open_claims
from cape_stream.roles.executions import Executions
from cape_stream.roles.partitions import check_counts
from cape_stream.roles.sandboxes import open_sandboxes
from cape_stream.roles.settings import Settings
from cape_stream.runtime.worker import Worker
from cape_stream.runtime.worker_executors import SpawnedSandbox
from cape_stream.sdk.app import App


class WorkerPart:
    """Implements `cape_stream.roles.crew.Part`.

    Args:
        app: whose handlers.
        backend: where jobs come from; stays open.
        settings: everything in effect.

    Raises:
        SettingsError: the worker is told to serve a queue that the App does not use.
    """

    name = "worker"

    def __init__(self, app: App, backend: Backend, settings: Settings) -> None:
        self._app = app
        self._backend = backend
        self._worker_settings = settings.worker(app.queues)
        self._realtime = settings.realtime
        self._stopping = threading.Event()
        self._worker: Worker | None = None

    def run(self) -> None:
        """See `Part.run`."""
        app, backend = self._app, self._backend
        try:
            patiently(
                lambda: check_counts(backend.log, app),
                backend.place,
                stopping=self._stopping.is_set,
            )
        except StoppedError:
            return
        claims = open_claims(self._worker_settings)
        executions = Executions(app, realtime=self._realtime)
        try:
            self._serve(claims, executions)
        finally:
            executions.close()
            if claims is not None:
                claims.close()

    def _serve(self, claims: ClaimStore | None, executions: Executions) -> None:
        app, backend, settings = self._app, self._backend, self._worker_settings
        handlers = executions.handlers(settings.executor)
        sandboxes = open_sandboxes(app.name, settings, handlers)
        try:
            worker = Worker(
                backend.log,
                backend.codec,
                backend.clock,
                app.topic_names,
                handlers,
                settings,
                claims,
                SpawnedSandbox if sandboxes is None else sandboxes.begin,
            )
            self._worker = worker
            if self._stopping.is_set():
                worker.stop()
            worker.run()
        finally:
            if sandboxes is not None:
                sandboxes.close()

    def stop(self) -> None:
        """See `Part.stop`."""
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop()

    def figures(self) -> Mapping[str, int]:
        """See `Part.figures`."""
        if self._worker is None:
            return {}
        counters = self._worker.counters()
        return {
            "jobs_taken": counters.taken,
            "jobs_done": counters.done,
            "jobs_running": counters.running,
            "worker_events_done": counters.events_done,
            "worker_events_failed": sum(counters.events_failed.values()),
            "dead_letters": counters.dead_letters,
        }
