"""The outbox role: pings what outboxes tell of, and prunes them behind the slowest cursor.

Neither is needed for anything to be delivered. Several processes may run it at once: a ping that is
said twice does no harm, and what one has pruned the other does not find.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from cape_stream.errors import CapeError, Corrupt, Reject, Retry
from cape_stream.model.sequence import NO_CURSOR
from cape_stream.ports.outbox import Outbox
from cape_stream.roles.backends import Backend, StoppedError, patiently
from cape_stream.roles.outbox_cursors import slowest_cursors
from cape_stream.roles.partitions import check_counts
from cape_stream.roles.settings import Settings
from cape_stream.runtime.dense_source import DenseSource
from cape_stream.sdk.app import App
from cape_stream.sdk.pinger import Pinger

LISTEN_MS = 200
"""How long one waits for a notice; bounds how late a stop is seen."""
RETRY_MS = 1_000

logger = logging.getLogger(__name__)


def outboxes(app: App) -> Iterator[tuple[str, Outbox]]:
    """(domain, its source) where the source is an outbox."""
    for name, domain in app.domains.items():
        source = domain.source
        if isinstance(source, DenseSource):
            source = source.source
        if isinstance(source, Outbox):
            yield name, source


class OutboxPart:
    """Implements `cape_stream.roles.crew.Part`.

    Args:
        app: whose outboxes.
        backend: where the pings go, and the cursors come from; stays open.
        settings: everything in effect; none of it concerns this part.
    """

    name = "outbox"

    def __init__(self, app: App, backend: Backend, settings: Settings) -> None:
        self._app = app
        self._backend = backend
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._figures = {"outbox_pings": 0, "outbox_pruned": 0, "outbox_absences": 0}

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
        loops: list[Callable[[], None]] = []
        for domain, outbox in outboxes(app):
            loops.append(partial(self._ping_loop, domain, outbox))
            if outbox.prune_every_ms is not None:
                loops.append(partial(self._prune_loop, domain, outbox, outbox.prune_every_ms))
        if not loops:
            self._stopping.wait()
            return
        with ThreadPoolExecutor(len(loops), thread_name_prefix="cape-outbox") as pool:
            running = [pool.submit(self._until_stopped, loop) for loop in loops]
        for each in running:
            each.result()

    def _until_stopped(self, loop: Callable[[], None]) -> None:
        """Run a loop; whatever ends it ends the others."""
        try:
            loop()
        finally:
            self._stopping.set()

    def _ping_loop(self, domain: str, outbox: Outbox) -> None:
        backend = self._backend
        topic = self._app.topic_names.pings(domain)
        partitions = self._app.partitions
        with Pinger(
            backend.log, backend.codec, backend.clock, topic=topic, partitions=partitions
        ) as pinger:
            while not self._stopping.is_set():
                try:
                    news = outbox.news(LISTEN_MS)
                except Retry as error:
                    self._absent(domain, error)
                    continue
                for subject, latest in news:
                    pinger.ping(subject, latest)
                if news:
                    pinger.counters()  # collects what the log has answered
                    self._count("outbox_pings", len(news))

    def _prune_loop(self, domain: str, outbox: Outbox, every_ms: int) -> None:
        while not self._stopping.wait(every_ms / 1_000):
            try:
                self._count("outbox_pruned", self._prune(domain, outbox))
            except (Retry, Corrupt, Reject) as error:  # what cannot be read is not pruned
                self._absent(domain, error)

    def _prune(self, domain: str, outbox: Outbox) -> int:
        backend = self._backend
        cursors = slowest_cursors(backend.log, backend.codec, self._app, domain, outbox.retired)
        return outbox.prune(lambda subject: cursors.get(subject, NO_CURSOR))

    def _absent(self, domain: str, error: CapeError) -> None:
        logger.warning("outbox of %s: %s", domain, error)
        self._count("outbox_absences", 1)
        after_ms = error.after_ms if isinstance(error, Retry) else None
        self._stopping.wait((after_ms or RETRY_MS) / 1_000)

    def _count(self, name: str, more: int) -> None:
        with self._lock:
            self._figures[name] += more

    def stop(self) -> None:
        """See `Part.stop`."""
        self._stopping.set()

    def figures(self) -> Mapping[str, int]:
        """See `Part.figures`."""
        with self._lock:
            return dict(self._figures)
