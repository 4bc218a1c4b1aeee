"""Shows on Valkey, for a dashboard to follow, what operators order and what a dispatcher does.

The durable record is the audit topic, which has every answer already. So what is shown here may be
lost: it waits in memory for a thread that sends it, at most `WAITING_MAX` of it, and nobody who
gives an order waits for that thread, whether the server answers, hangs or is gone.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from cape_stream.errors import CapeError
from cape_stream.roles.valkey import URL_VARIABLE, open_store

if TYPE_CHECKING:
    from cape_stream.coordination.audit_tail import AuditTail

WAITING_MAX = 1_000
"""Events in memory while the server is slow or away; beyond that the oldest are dropped."""
LEAVE_S = 0.5
"""How long what still waits may take to be sent when a process ends."""

logger = logging.getLogger(__name__)


class LiveTail(Protocol):
    """Where events of an App are shown."""

    def show(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Show events, soon; never waits and never raises."""
        ...

    def close(self) -> None:
        """Show what still waits, if that can be done within half a second."""
        ...


class NoTail:
    """Implements `LiveTail` where there is no server: nobody looks on."""

    def show(self, events: Iterable[Mapping[str, Any]]) -> None:
        """See `LiveTail.show`."""

    def close(self) -> None:
        """See `LiveTail.close`."""


class ValkeyTail:
    """Implements `LiveTail` in the workspace of an App.

    Args:
        tail: where to.
        app: the App's name, which is its workspace.
        close_store: called at the end.
    """

    def __init__(self, tail: "AuditTail", app: str, close_store: Callable[[], None]) -> None:
        self._tail = tail
        self._app = app
        self._close_store = close_store
        self._waiting: deque[Mapping[str, Any]] = deque(maxlen=WAITING_MAX)
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="cape-tail", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Events that have not been sent yet."""
        return len(self._waiting)

    def show(self, events: Iterable[Mapping[str, Any]]) -> None:
        """See `LiveTail.show`."""
        self._waiting.extend(events)
        self._wake.set()

    def close(self) -> None:
        """See `LiveTail.close`."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(LEAVE_S)
        self._close_store()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                self._send(self._waiting.popleft())
            if self._is_closing:
                return

    def _send(self, event: Mapping[str, Any]) -> None:
        try:
            self._tail.append(self._app, event)
        except CapeError as error:
            logger.info("an event is not shown in the live audit tail: %s", error)


def open_tail(app: str, environ: Mapping[str, str] = os.environ) -> LiveTail:
    """The tail of an App on the server that ``CAPE_VALKEY_URL`` names; else none.

    Raises:
        Fatal: the URL cannot be understood, or its client is not installed.
    """
    url = environ.get(URL_VARIABLE)
    if not url:
        return NoTail()
    store = open_store(url)
    from cape_stream.coordination.audit_tail import AuditTail

    return ValkeyTail(AuditTail(store), app, store.close)
