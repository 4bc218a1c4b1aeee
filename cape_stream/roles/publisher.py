"""The publisher role: carries the jobs of some worker queues from Kafka to SQS."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cape_stream.adapters.sqs.object_store import S3ObjectStore
from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.queues.messages import jobs
from cape_stream.queues.publishing import Publisher
from cape_stream.roles.backends import Backend, open_backend
from cape_stream.roles.crew import Crew, raise_failure, say, signals
from cape_stream.roles.processor import patiently
from cape_stream.roles.progress import Progress
from cape_stream.roles.settings import Settings, SettingsError
from cape_stream.sdk.app import App

POLL_MS = 200
"""How long one poll waits for jobs; bounds how late a stop is seen."""


class PublisherPart:
    """Implements `cape_stream.roles.crew.Part`.

    Args:
        app: whose jobs.
        queues: worker queues that go to SQS.
        backend: where the topics are; stays open.
        settings: everything in effect.

    Raises:
        SettingsError: the App has no such queue.
    """

    name = "publisher"

    def __init__(
        self, app: App, queues: Sequence[str], backend: Backend, settings: Settings
    ) -> None:
        unknown = [queue for queue in queues if queue not in app.queues]
        if unknown or not queues:
            raise SettingsError(
                f"{unknown[0] if unknown else 'nothing'!r} is no queue of App {app.name!r}; it uses"
                f" {', '.join(app.queues)}"
            )
        self._app = app
        self._queues = queues
        self._backend = backend
        self._settings = settings
        self._stopping = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._publisher: Publisher | None = None

    def run(self) -> None:
        """See `Part.run`."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """See `Part.stop`."""
        self._stopping.set()
        self._wake()

    def figures(self) -> Mapping[str, int]:
        """See `Part.figures`."""
        if self._publisher is None:
            return {}
        counters = self._publisher.counters
        return {
            "jobs_sent": counters.sent,
            "claims": counters.claims,
            "entries_retried": counters.retried,
            "dead_letters": counters.dead_letters,
        }

    async def _run(self) -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._wake = partial(loop.call_soon_threadsafe, stopping.set)
        if self._stopping.is_set():
            stopping.set()
        server, store = SqsServer(self._settings.sqs), S3ObjectStore(self._settings.sqs)
        try:
            name = self._settings.sqs.prefix + jobs.QUEUE
            queue = await patiently(partial(server.open, name), stopping)
            if queue is None:
                return
            self._publisher = publisher = Publisher(
                self._backend.log,
                self._backend.codec,
                self._app.topic_names,
                dict.fromkeys(self._queues, queue),
                store,
                self._settings.publisher,
            )
            try:
                while not self._stopping.is_set():
                    await publisher.step(POLL_MS)
            finally:
                publisher.close()
        finally:
            self._wake = lambda: None
            await server.close()
            await store.close()


def serve(app: App, queues: Sequence[str], settings: Settings) -> None:
    """Run until a signal.

    Raises:
        Fatal: it cannot begin or go on.
    """
    interval_ms = settings.process.progress_interval_ms
    with open_backend("kafka", settings) as backend:
        part = PublisherPart(app, queues, backend, settings)
        crew = Crew([part])
        with signals(crew):
            crew.start()
            say(f"publisher of {', '.join(queues)} of {app.name} to SQS; Ctrl-C stops")
            progress = Progress()
            while not crew.wait(interval_ms / 1_000 if interval_ms else None):
                progress.say(crew.figures())
            crew.stop()
        raise_failure(crew.failure)
        say(f"stopped; {progress.summary(crew.figures())}")
