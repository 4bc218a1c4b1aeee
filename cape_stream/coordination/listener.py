"""The listening side of events: one thread and one connection per process."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.events import channel_name, log_key
from cape_stream.coordination.failures import ANY_ERROR
from cape_stream.coordination.keys import Keys, Name, encoded
from cape_stream.coordination.leases import LOGGER
from cape_stream.coordination.store import Store
from cape_stream.errors import CapeError

PING_MS = 250
LINK_TIMEOUT_MS = 1_500
"""A link whose ping is unanswered for so long is dropped; the bound on what nobody notices."""
POLL_MS = 100
RECONNECT_MIN_MS = 50
RECONNECT_MAX_MS = 2_000
CATCH_UP_MAX = 500
STALENESS = "event_staleness_seconds"
"""The gauge that shows `Listener.staleness_ms`."""

EventId = tuple[int, int]


def event_id(text: bytes) -> EventId:
    """An id as numbers, which compare as the events follow each other."""
    time_ms, _, number = text.partition(b"-")
    return int(time_ms), int(number)


class Watch:
    """One topic that is listened to. Its callbacks run in the listener's thread.

    Args:
        keys: the layout of the service whose topic it is.
        topic: the topic.
        on_event: called with the payload of each event, in order, each once.
        on_gap: called when events may be missing, before anything that follows them.
    """

    def __init__(
        self,
        keys: Keys,
        topic: Name,
        on_event: Callable[[bytes], None],
        on_gap: Callable[[], None],
    ) -> None:
        tag = encoded(topic, "name of a topic")
        self.channel = channel_name(keys, tag)
        self.log_key = log_key(keys, tag)
        self.is_current = False
        """It is subscribed, and everything before that was applied."""
        self._on_event = on_event
        self._on_gap = on_gap
        self._newest: bytes | None = None

    def read_up(self, store: Store) -> int:
        """Apply what the stream has since the newest we know; how many events were gone."""
        if self._newest is None:
            last = store.command("XREVRANGE", self.log_key, "+", "-", "COUNT", 1)
            self._newest = _id_of(last[0]) if last else b"0-0"
            self.gap()
            return 0
        entries = store.command("XRANGE", self.log_key, self._newest, "+", "COUNT", CATCH_UP_MAX)
        # An empty stream proves nothing: an event may have come and gone with a flush.
        first_known = bool(entries) and _id_of(entries[0]) == self._newest
        if not first_known or len(entries) == CATCH_UP_MAX:
            self._newest = None
            self.read_up(store)
            return 1
        for entry in entries[1:]:
            self._apply(_id_of(entry), _payload_of(entry))
        return 0

    def take(self, message: bytes, store: Store) -> int:
        """Apply a message of pub/sub, or read what is missing before it."""
        try:
            this, before, payload = message.split(b" ", 2)
            event_id(this)
        except ValueError:
            LOGGER.warning("somebody else publishes to %s", self.channel)
            return self.read_up(store)
        newest = self._newest
        if newest is not None and event_id(this) <= event_id(newest):
            return 0
        if before == newest:
            self._apply(this, payload)
            return 0
        return self.read_up(store)

    def gap(self) -> None:
        """Say that events may be missing."""
        self._on_gap()

    def _apply(self, this: bytes, payload: bytes) -> None:
        self._newest = this
        try:
            self._on_event(payload)
        except Exception:  # noqa: BLE001  # the boundary of user code: it starts anew
            LOGGER.exception("an event of %s could not be applied", self.channel)
            self._on_gap()


class Listener:
    """Listens to topics, notices what it missed, and says how old its view may be.

    A ping goes out four times a second on the same connection. Its answer proves that everything
    published before it was sent has arrived; the age of the newest proof is the staleness. While
    the link is down there is no proof, and a near cache is bypassed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._watches: dict[bytes, Watch] = {}
        self._fresh_watches: list[Watch] = []
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._proven_ms = float("-inf")
        self._pinged_ms: list[float] = []
        self._gauge = lambda: self.staleness_ms() / 1_000

    def watch(self, watch: Watch) -> None:
        """Listen to one more topic, from now on; its first word is `on_gap`."""
        with self._lock:
            self._watches[watch.channel.encode()] = watch
            self._fresh_watches.append(watch)
            if self._thread is None:
                self._store.figures.watch(STALENESS, self._gauge)
                self._thread = threading.Thread(target=self._run, name="cape-events", daemon=True)
                self._thread.start()

    def staleness_ms(self) -> float:
        """How old the view may be: everything before that has been seen. Infinite without link."""
        return monotonic_ms() - self._proven_ms

    def proven_until_ms(self) -> float:
        """Monotonic: until then the newest proof is young enough to rely on."""
        return self._proven_ms + LINK_TIMEOUT_MS

    def close(self) -> None:
        """Stop listening."""
        was_closed, self._is_closed = self._is_closed, True
        thread = self._thread
        if thread is not None and not was_closed:
            thread.join()
            self._store.figures.unwatch(STALENESS, self._gauge)

    def _run(self) -> None:
        pause_ms = RECONNECT_MIN_MS
        while not self._is_closed:
            link = self._store.subscriber()
            try:
                self._attend(link)
            except (CapeError, ANY_ERROR, OSError) as error:
                LOGGER.info("the event link of %s is down: %s", self._store.place, error)
            finally:
                if self._proven_ms > float("-inf"):
                    pause_ms = RECONNECT_MIN_MS
                    self._store.figures.add("event_links_lost")
                self._proven_ms = float("-inf")
                for watch in list(self._watches.values()):
                    watch.is_current = False
                with suppress(Exception):
                    link.close()
            if not self._is_closed:
                time.sleep(pause_ms / 1_000)
                pause_ms = min(RECONNECT_MAX_MS, pause_ms * 2)

    def _attend(self, link: Any) -> None:
        with self._lock:
            self._fresh_watches = list(self._watches.values())
        self._pinged_ms = []
        while not self._is_closed:
            self._subscribe(link)
            self._ping(link)
            message = link.get_message(timeout=POLL_MS / 1_000)
            while message is not None:
                self._receive(message)
                message = link.get_message(timeout=0)

    def _subscribe(self, link: Any) -> None:
        with self._lock:
            fresh, self._fresh_watches = self._fresh_watches, []
        if fresh:
            link.subscribe(*(watch.channel for watch in fresh))

    def _ping(self, link: Any) -> None:
        now_ms = monotonic_ms()
        if self._pinged_ms and now_ms - self._pinged_ms[0] > LINK_TIMEOUT_MS:
            raise TimeoutError("no answer to a ping")
        if link.connection is None or (self._pinged_ms and now_ms - self._pinged_ms[-1] < PING_MS):
            return
        if not self._pinged_ms and now_ms - self._proven_ms < PING_MS:
            return
        self._pinged_ms.append(now_ms)
        link.ping()

    def _receive(self, message: dict[str, Any]) -> None:
        if message["type"] == "pong":
            if self._pinged_ms:
                sent_ms = self._pinged_ms.pop(0)
                if all(watch.is_current for watch in list(self._watches.values())):
                    self._proven_ms = sent_ms
            return
        watch = self._watches.get(message["channel"])
        if watch is None:
            return
        if message["type"] == "subscribe":
            self._missed(watch.read_up(self._store))
            watch.is_current = True
        elif message["type"] == "message":
            self._store.figures.add("events_received")
            self._missed(watch.take(message["data"], self._store))

    def _missed(self, gaps: int) -> None:
        if gaps:
            self._store.figures.add("event_gaps", gaps)


def _id_of(entry: Any) -> bytes:
    found: bytes = entry[0]
    return found


def _payload_of(entry: Any) -> bytes:
    fields = entry[1]
    if isinstance(fields, dict):  # as the client reads streams
        found: bytes = fields[b"p"]
        return found
    at = list(fields).index(b"p")
    raw: bytes = fields[at + 1]
    return raw
