"""Locks: at most one holder, who is told when it is one no longer, and a number that proves it.

What a lock guards shall compare `Lease.fence` with the highest it has seen and refuse a lower one:
a holder that was stopped for longer than its lease cannot know that it must not write, but what it
writes to can. Without the server no lock is given out: every method raises Retry.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.keys import Keys, Name, encoded
from cape_stream.coordination.leases import Lease, LeaseKeeper, released_quietly
from cape_stream.coordination.lock_scripts import EXCLUSIVE, LOCK, SHARED, LockKind
from cape_stream.coordination.scripts import Steps
from cape_stream.coordination.store import WAIT_SLICE_MS, Store
from cape_stream.errors import Reject, Retry

TTL_MS = 10_000
HOLD_MAX_MS = 3_600_000
TTL_MIN_MS = 50
TTL_MAX_MS = 24 * 3_600_000
SPURIOUS_PAUSE_MS = 20
"""How long who was woken for nothing waits before it asks again."""

Won = tuple[int, float]
"""Fencing number, and when the request that won it was sent."""


class LockDesk:
    """What the synchronous and the asynchronous locks have in common, as steps."""

    def __init__(self, keys: Keys, kind: LockKind, name: Name, ttl_ms: int) -> None:
        if not TTL_MIN_MS <= ttl_ms <= TTL_MAX_MS:
            raise Reject(f"a lease lasts {TTL_MIN_MS} to {TTL_MAX_MS} ms, not {ttl_ms} ms")
        self.shown = encoded(name, "name of a lock")
        self.token = secrets.token_urlsafe(16)
        self.ttl_ms = ttl_ms
        self.kind = kind
        self._acquire = kind.keys(keys, self.shown, kind.acquire_parts)
        self._renew = kind.keys(keys, self.shown, kind.renew_parts)
        self._release = kind.keys(keys, self.shown, kind.release_parts)
        self.wake_key = keys.of(self.shown, "wake")

    def acquire(self) -> Steps[Won | float]:
        """(fence, sent at) if it is ours now; else in how many milliseconds it may be free."""
        sent_ms = monotonic_ms()
        taken, answer = yield self.kind.acquire.call(self._acquire, self.token, self.ttl_ms)
        if taken:
            return int(answer), sent_ms
        return float(answer) if int(answer) > 0 else 1.0

    def renew(self, fence: int, *, urgent: bool) -> Steps[bool]:
        """True if it is still ours, and now for longer."""
        arguments = (self.token, self.ttl_ms, fence)
        return bool((yield self.kind.renew.call(self._renew, *arguments, urgent=urgent)))

    def release(self, fence: int) -> Steps[bool]:
        """True if it was ours and is free now."""
        return bool((yield self.kind.release.call(self._release, self.token, fence, urgent=True)))

    def pause_ms(self, free_in_ms: float, left_ms: float) -> float:
        """How long to wait for a wake-up before asking again: a crash wakes nobody."""
        return max(1.0, min(free_in_ms + 1, left_ms, WAIT_SLICE_MS))


class Locks:
    """All locks of a process: one thread renews them. Threads share it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys("lock")
        self._keeper = LeaseKeeper()

    def acquire(
        self, name: Name, *, wait_ms: int = 0, ttl_ms: int = TTL_MS, hold_max_ms: int = HOLD_MAX_MS
    ) -> Lease | None:
        """Try to get a lock.

        Args:
            name: of the resource, 1 to 1,024 bytes.
            wait_ms: how long to wait for it, >= 0; who waits is woken, and does not poll.
            ttl_ms: how soon it is free after its holder died, 50 ms to 24 h.
            hold_max_ms: renewals stop then, however busy the holder is, > 0.

        Returns:
            The lease, or None if somebody else has it.

        Raises:
            Reject: the name or a time is out of range, or the key holds foreign data.
            Retry: the server cannot be reached.
        """
        return self._acquire(LOCK, name, wait_ms, ttl_ms, hold_max_ms)

    def acquire_push(
        self, name: Name, *, wait_ms: int = 0, ttl_ms: int = TTL_MS, hold_max_ms: int = HOLD_MAX_MS
    ) -> Lease | None:
        """The writing half of a push-sync pair: alone, and ahead of readers that come later."""
        return self._acquire(EXCLUSIVE, name, wait_ms, ttl_ms, hold_max_ms)

    def acquire_sync(
        self, name: Name, *, wait_ms: int = 0, ttl_ms: int = TTL_MS, hold_max_ms: int = HOLD_MAX_MS
    ) -> Lease | None:
        """The reading half of a push-sync pair: beside other readers, never beside a push.

        Its fence is that of the last push; it orders reads after pushes, and guards no writes.
        """
        return self._acquire(SHARED, name, wait_ms, ttl_ms, hold_max_ms)

    @contextmanager
    def hold(
        self, name: Name, *, wait_ms: int = 0, ttl_ms: int = TTL_MS, hold_max_ms: int = HOLD_MAX_MS
    ) -> Iterator[Lease]:
        """Hold a lock for a block, which calls `Lease.check` before each thing it guards.

        Raises:
            Retry: somebody else has it.
            Fenced: it was lost within the block; what was done before the loss stands.
        """
        lease = self.acquire(name, wait_ms=wait_ms, ttl_ms=ttl_ms, hold_max_ms=hold_max_ms)
        if lease is None:
            raise Retry(f"the lock {encoded(name)} is held by somebody else")
        try:
            yield lease
        except BaseException:
            released_quietly(lease)
            raise
        if not lease.release():
            lease.check()

    @property
    def kept(self) -> int:
        """How many leases are held in memory: those in hand, and some that ended a moment ago."""
        return len(self._keeper)

    def close(self) -> None:
        """Renew nothing any more; what is held ends by itself."""
        self._keeper.close()

    def _acquire(
        self, kind: LockKind, name: Name, wait_ms: int, ttl_ms: int, hold_max_ms: int
    ) -> Lease | None:
        if wait_ms < 0 or hold_max_ms < 1:
            raise Reject(f"wait_ms {wait_ms} must be >= 0 and hold_max_ms {hold_max_ms} > 0")
        desk = LockDesk(self._keys, kind, name, ttl_ms)
        give_up_ms = monotonic_ms() + wait_ms
        woken = False
        while True:
            won = self._store.run(desk.acquire())
            if isinstance(won, tuple):
                return self._leased(desk, won, hold_max_ms)
            left_ms = give_up_ms - monotonic_ms()
            if left_ms <= 0:
                return None
            self._store.figures.add("lock_waits")
            woken = self._wait(desk, desk.pause_ms(won, left_ms), woken)

    def _wait(self, desk: LockDesk, pause_ms: float, woken: bool) -> bool:
        if not desk.kind.wakes_all:
            return self._store.wait(desk.wake_key, pause_ms)
        if woken:
            # Whoever pushed is still there to be seen: do not ask as fast as the link allows.
            return self._store.pause(min(SPURIOUS_PAUSE_MS, pause_ms))
        return self._store.wait_together(desk.wake_key, pause_ms)

    def _leased(self, desk: LockDesk, won: Won, hold_max_ms: int) -> Lease:
        fence, sent_ms = won
        store = self._store

        def renew(urgent: bool) -> bool:
            return store.run(desk.renew(fence, urgent=urgent))

        def give_back() -> bool:
            self._keeper.ended()
            return store.run(desk.release(fence))

        lease = Lease(desk.shown, fence, desk.ttl_ms, sent_ms, hold_max_ms, renew, give_back)
        lease.on_loss(lambda: store.figures.add("leases_lost"))
        store.figures.add("locks_acquired")
        self._keeper.add(lease)
        return lease
