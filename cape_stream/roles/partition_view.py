"""Shows on Valkey which dispatcher owns which partitions: a view for people, never the truth.

The truth is the log's group, so what the group gave us is claimed by force, and whoever had it
before learns it by its next heartbeat. Each change is shown in the App's live audit tail. When the
server is away the view grows old and ends by its time; the dispatcher does not notice.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from cape_stream.errors import CapeError
from cape_stream.roles.valkey import URL_VARIABLE, open_store

if TYPE_CHECKING:
    from cape_stream.coordination.audit_tail import AuditTail
    from cape_stream.coordination.keys import Name
    from cape_stream.coordination.ownership import Ownership

BEAT_MS = 3_000
RECORD_TTL_MS = 10_000

logger = logging.getLogger(__name__)


class PartitionView:
    """What one dispatcher owns, as others see it.

    Args:
        records: where it is shown.
        tail: where changes are shown.
        app: the App's name; the workspace of the tail.
        node: this process.
        names: what it owns now; called from the thread that calls `turn`.
    """

    def __init__(
        self,
        records: "Ownership",
        tail: "AuditTail",
        app: str,
        node: str,
        names: Callable[[], Iterable[str]],
    ) -> None:
        self._records = records
        self._tail = tail
        self._app = app
        self._node = node
        self._names = names
        self._held: dict[Name, int] = {}

    def turn(self) -> None:
        """Show what has changed, and that we live.

        Raises:
            Retry: the server cannot be reached; the next turn shows it.
        """
        self._show(set(self._names()))

    def close(self) -> None:
        """Show that we own nothing any more."""
        self._show(set())

    def _show(self, owned: set[str]) -> None:
        for name in [name for name in self._held if name not in owned]:
            if self._records.release(name, self._node, self._held[name]):
                self._tell("partition released", name, self._held[name])
            del self._held[name]
        for name in self._records.beat(self._node, self._held):
            # Lost to whom the group gave it since, or forgotten with the server's data.
            del self._held[name]
        for name in owned - set(self._held):
            self._held[name] = self._records.claim(name, self._node, by_force=True).fence
            self._tell("partition taken", name, self._held[name])

    def _tell(self, what: str, name: "Name", fence: int) -> None:
        body = {"event": what, "partition": name, "node": self._node, "fence": fence}
        self._tail.append(self._app, body)


class ViewThread:
    """Keeps a view up to date in the background.

    Args:
        view: the view.
        close_store: called at the end.
    """

    def __init__(self, view: PartitionView, close_store: Callable[[], None]) -> None:
        self._view = view
        self._close_store = close_store
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cape-view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and show that we own nothing any more."""
        self._stopping.set()
        self._thread.join()
        self._quietly(self._view.close)
        self._close_store()

    def _run(self) -> None:
        while True:
            self._quietly(self._view.turn)
            if self._stopping.wait(BEAT_MS / 1_000):
                return

    def _quietly(self, act: Callable[[], None]) -> None:
        try:
            act()
        except CapeError as error:
            logger.info("the view of our partitions grows old: %s", error)


def open_view(
    app: str,
    node: str,
    names: Callable[[], Iterable[str]],
    environ: Mapping[str, str] = os.environ,
) -> ViewThread | None:
    """Show what ``node`` owns, if ``CAPE_VALKEY_URL`` names a server; else None.

    Raises:
        Fatal: the URL cannot be understood, or its client is not installed.
    """
    url = environ.get(URL_VARIABLE)
    if not url:
        return None
    store = open_store(url)
    from cape_stream.coordination.audit_tail import AuditTail
    from cape_stream.coordination.ownership import Ownership

    records = Ownership(store, f"partitions of {app}", RECORD_TTL_MS)
    return ViewThread(PartitionView(records, AuditTail(store), app, node, names), store.close)
