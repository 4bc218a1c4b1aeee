"""A lease: the right to do something until a deadline, and the one thread that keeps leases alive.

The deadline is monotonic and counts from the moment the request was *sent*, so it is never later
than the server's. A process that was stopped and woken therefore knows before its next line of
guarded work that it is too late, whatever the server says by then.
"""

import heapq
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.store import retry_after_ms
from cape_stream.errors import CapeError, Fenced, Retry

LOGGER = logging.getLogger("cape_stream.coordination")

RENEWALS_PER_TTL = 3
RETRY_MS = 100
SLOW_MS = 50
MARGIN_MIN_MS = 5
ENDED_MIN = 64
"""Leases that were given back are forgotten when there are more than so many of them."""
MARGIN_PART = 50
"""The deadline is a fiftieth of the lease before the server's: clocks run at different speed."""


class Lease:
    """What a holder has in hand. Threads may share it.

    Args:
        name: of the resource, for errors.
        fence: the fencing number; whatever the lease guards refuses writes with a lower one.
        ttl_ms: how long the server holds it for us from each renewal.
        sent_ms: monotonic; when the request that won it was sent.
        hold_max_ms: it is not renewed any more so long after it was won.
        renew: asks the server; False if somebody else has it, or nobody.
        give_back: asks the server to free it; False if it was no longer ours.
    """

    def __init__(
        self,
        name: str,
        fence: int,
        ttl_ms: int,
        sent_ms: float,
        hold_max_ms: int,
        renew: Callable[[bool], bool],
        give_back: Callable[[], bool],
    ) -> None:
        self.name = name
        self.fence = fence
        self.ttl_ms = ttl_ms
        self.ends_ms = sent_ms + hold_max_ms
        """Monotonic; renewals stop then, so that a hung holder does not keep it for ever."""
        self.lost = threading.Event()
        """Set when it is lost; waiting for it is a way to be told."""
        self._renew = renew
        self._give_back = give_back
        self._lock = threading.Lock()
        self._deadline_ms = self._deadline_after(sent_ms)
        self._listeners: list[Callable[[], None]] = []
        self._released: bool | None = None
        self._reason = ""

    @property
    def has_ended(self) -> bool:
        """It was lost or given back: nobody needs to renew it any more."""
        return self._released is not None or self.lost.is_set()

    @property
    def deadline_ms(self) -> float:
        """Monotonic milliseconds until which guarded work may go on, as of now."""
        return self._deadline_ms

    def remaining_ms(self) -> float:
        """What is left until the deadline; 0 when it is lost or given back."""
        if self.has_ended:
            return 0.0
        return max(0.0, self._deadline_ms - monotonic_ms())

    def is_held(self, margin_ms: float = 0.0) -> bool:
        """True while at least ``margin_ms`` of it are left."""
        return self.remaining_ms() > margin_ms

    def check(self, margin_ms: float = 0.0) -> None:
        """Call it before each step of guarded work.

        Raises:
            Fenced: it is lost, or less than ``margin_ms`` is left: stop, write nothing more.
        """
        if not self.is_held(margin_ms):
            why = self._reason or "its time is up"
            raise Fenced(f"the lease of {self.name} (fence {self.fence}) is lost: {why}")

    def on_loss(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called once when it is lost, or at once if it is; not after a release.

        It is called from the thread that keeps leases, so it shall be short.
        """
        with self._lock:
            if not self.lost.is_set():
                self._listeners.append(tell)
                return
        tell()

    def release(self) -> bool:
        """Give it back. False: it was lost before, and nobody else's was touched.

        When the server cannot be reached it frees itself at its end.
        """
        with self._lock:
            if self._released is not None:
                return self._released
            self._released = not self.lost.is_set() and self._deadline_ms > monotonic_ms()
        was_held = self._released
        try:
            was_ours = self._give_back()
        except Retry:
            return was_held
        self._released = was_held and was_ours
        return self._released

    def lose(self, reason: str) -> None:
        """Take note that it is lost, and tell everybody who wanted to know."""
        with self._lock:
            if self._released is not None or self.lost.is_set():
                return
            self._reason = reason
            self.lost.set()
            listeners, self._listeners = self._listeners, []
        for tell in listeners:
            try:
                tell()
            except Exception:
                LOGGER.exception("a listener to the loss of %s failed", self.name)

    def keep(self) -> float | None:
        """Renew it if it is time; when to call again (monotonic), or None when it is over."""
        now_ms = monotonic_ms()
        if self.has_ended:
            return None
        if self.is_over(now_ms):
            return None
        if now_ms >= self.ends_ms:
            return self._deadline_ms
        return self._renewed(now_ms)

    def is_over(self, now_ms: float) -> bool:
        """True if its deadline has passed, which is told to everybody who wanted to know."""
        if now_ms < self._deadline_ms:
            return False
        over = now_ms >= self.ends_ms
        self.lose("it was held for its maximum" if over else "it could not be renewed in time")
        return True

    def _renewed(self, sent_ms: float) -> float | None:
        in_danger = self._deadline_ms - sent_ms < self.ttl_ms / RENEWALS_PER_TTL
        try:
            is_ours = self._renew(in_danger)
        except Retry as error:
            again_ms = monotonic_ms() + min(retry_after_ms(error, RETRY_MS), RETRY_MS)
            return min(again_ms, self._deadline_ms)
        except CapeError as error:
            self.lose(str(error))
            return None
        if not is_ours:
            self.lose("somebody else has it, or the server forgot it")
            return None
        self._deadline_ms = self._deadline_after(sent_ms)
        return min(sent_ms + self.ttl_ms / RENEWALS_PER_TTL, self._deadline_ms)

    def _deadline_after(self, sent_ms: float) -> float:
        return sent_ms + self.ttl_ms - max(MARGIN_MIN_MS, self.ttl_ms / MARGIN_PART)


class LeaseKeeper:
    """One thread that renews the leases of a process; it starts with the first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Lease]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._ended = 0
        """How many in ``_due`` may have been given back."""

    def add(self, lease: Lease) -> None:
        """Keep it alive until it is released or lost."""
        with self._changed:
            due_ms = monotonic_ms() + lease.ttl_ms / RENEWALS_PER_TTL
            heapq.heappush(self._due, (due_ms, next(self._numbers), lease))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cape-leases", daemon=True)
                self._thread.start()
            if self._due[0][2] is lease:  # else the thread wakes early enough by itself
                self._changed.notify()

    def __len__(self) -> int:
        """How many it knows of."""
        return len(self._due)

    def ended(self) -> None:
        """One that was added is given back: so that they do not pile up until they are due."""
        with self._changed:
            self._ended += 1
            if self._ended > ENDED_MIN and 2 * self._ended > len(self._due):
                self._due = [each for each in self._due if not each[2].has_ended]
                heapq.heapify(self._due)
                self._ended = 0

    def close(self) -> None:
        """Renew no more. Leases that are still held end by themselves."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        for lease in self._ripe():
            began_ms = monotonic_ms()
            again_ms = lease.keep()
            with self._changed:
                if again_ms is not None:
                    heapq.heappush(self._due, (again_ms, next(self._numbers), lease))
            if monotonic_ms() - began_ms > SLOW_MS:
                # The server is slow. Nobody shall learn of a loss later because of that.
                self._notice_ends()

    def _notice_ends(self) -> None:
        now_ms = monotonic_ms()
        with self._changed:
            kept = [lease for _, _, lease in self._due]
        for lease in kept:
            lease.is_over(now_ms)

    def _ripe(self) -> Iterator[Lease]:
        while True:
            with self._changed:
                while not self._is_closed and not self._is_due():
                    left_ms = self._due[0][0] - monotonic_ms() if self._due else None
                    self._changed.wait(None if left_ms is None else max(0.001, left_ms / 1_000))
                if self._is_closed:
                    return
                lease = heapq.heappop(self._due)[2]
            yield lease

    def _is_due(self) -> bool:
        return bool(self._due) and self._due[0][0] <= monotonic_ms()


def released_quietly(lease: Lease) -> None:
    """Give back a lease that nobody will miss."""
    with suppress(CapeError):
        lease.release()
