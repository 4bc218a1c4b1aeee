"""Warm pools: things that take long to make, made before they are asked for.

An item is handed out and leased in one step, so one that is taken by a process which dies before it
uses it is not lost: when the lease ends it is doomed, and whoever keeps the pool takes it apart. It
is never handed out twice, for nobody knows what was done to it.

Without the server everybody makes a cold one; the pool is for speed.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.keys import Name, decoded, encoded
from cape_stream.coordination.leases import LOGGER, Lease
from cape_stream.coordination.pool_scripts import (
    ADD,
    BURY,
    COUNT,
    END,
    LOOK,
    REAP,
    RENEW,
    TAKE,
)
from cape_stream.coordination.store import WAIT_SLICE_MS, Store
from cape_stream.errors import Reject, Retry

PARTS = ("ready", "items", "out", "leases", "doomed", "demand", "counts", "wake", "want")
WHAT_BYTES_MAX = 4_096
DOOMED_BATCH = 50


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a pool is like."""

    least: int = 1
    """Ready items wanted at any time, >= 0."""
    most: int = 50
    """Items wanted at most, ready and handed out, >= ``least``."""
    lease_ms: int = 60_000
    """How long an item may be out without a renewal, 100 ms to 24 h."""
    refill_s: int = 5
    """About how long it takes to make one: so much demand is kept ready, 1 to 300."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or not 1 <= self.refill_s <= 300:
            raise Reject(
                f"a pool wants 0 to `most` at least, not {self.least} of {self.most}; and"
                f" refill_s is 1 to 300, not {self.refill_s}"
            )
        if not 100 <= self.lease_ms <= 24 * 3_600_000:
            raise Reject(f"a pool's lease is 100 ms to 24 h, not {self.lease_ms} ms")


@dataclass(frozen=True, slots=True)
class Item:
    """What a pool holds."""

    name: str
    """Unique in the pool, for ever."""
    what: bytes
    """How to reach it, as whoever made it wrote."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How a pool stands."""

    ready: int
    out: int
    doomed: int
    items: int
    """All that the pool knows of: ready, out and doomed."""
    counts: Mapping[str, int]
    """`added`, `handed_out`, `misses`, `returned`, `used_up`, `reaped`, `cold`; each grows only."""
    target: int
    """Ready items that recent demand asks for."""


class Taken:
    """An item in hand. Renew it while it is used; end it in one of two ways."""

    def __init__(self, pool: "WarmPool", item: Item, lease: str, is_cold: bool) -> None:
        self.item = item
        self.is_cold = is_cold
        """It was made on the spot, and the pool knows nothing of it."""
        self._pool = pool
        self._lease = lease

    def renew(self) -> bool:
        """Keep it for one more lease; False if it is doomed: stop using it."""
        return self.is_cold or self._pool.renew(self._lease)

    def used_up(self) -> bool:
        """It is gone; False if its lease had ended, so that somebody else takes it apart."""
        return self.is_cold or self._pool.end(self._lease, returns=False)

    def give_back(self) -> bool:
        """It was not touched and may be handed out again; False if its lease had ended.

        A cold one cannot be given back: it is for whoever made it to end.
        """
        return not self.is_cold and self._pool.end(self._lease, returns=True)


class WarmPool:
    """One pool. Threads share it.

    Raises:
        Retry: (any method but `take`) the server cannot be reached.
        Reject: a name cannot be one, or the keys hold foreign data.
    """

    def __init__(self, store: Store, name: Name, settings: PoolSettings) -> None:
        tag, keys = encoded(name, "name of a pool"), store.keys("pool")
        self.settings = settings
        self._store = store
        self._nine = [keys.of(tag, part) for part in PARTS]
        self._wake_key, self._want_key = self._nine[7], self._nine[8]

    def add(self, item: Item) -> bool:
        """Put a new item in; False if the pool knows it already, in whatever state."""
        if len(item.what) > WHAT_BYTES_MAX:
            raise Reject(f"{item.name!r} is described by more than {WHAT_BYTES_MAX} bytes")
        return bool(self._store.call(ADD.call(self._nine, encoded(item.name, "item"), item.what)))

    def take(self, make_cold: Callable[[], Item] | None, wait_ms: int = 0) -> Taken | None:
        """A warm item; a cold one if there is none in time; None if none can be made.

        Args:
            make_cold: makes one on the spot; None: do without.
            wait_ms: how long to wait for a warm one, >= 0.

        Raises:
            Exception: whatever ``make_cold`` raises.
        """
        lease, give_up_ms = secrets.token_urlsafe(12), monotonic_ms() + wait_ms
        try:
            is_first = 1
            while True:
                arguments = (lease, self.settings.lease_ms, is_first)
                reply = self._store.call(TAKE.call(self._nine, *arguments))
                if reply is not None:
                    self._store.figures.add("pool_warm")
                    return Taken(self, _item(reply), lease, is_cold=False)
                is_first = 0
                left_ms = give_up_ms - monotonic_ms()
                if left_ms <= 0:
                    break
                self._store.wait(self._wake_key, min(left_ms, WAIT_SLICE_MS))
        except Retry:
            self._store.figures.add("pool_bypasses")
        return self._cold(make_cold)

    def renew(self, lease: str) -> bool:
        """See `Taken.renew`."""
        return bool(self._store.call(RENEW.call(self._nine, lease, self.settings.lease_ms)))

    def end(self, lease: str, *, returns: bool) -> bool:
        """See `Taken.used_up` and `Taken.give_back`."""
        return bool(self._store.call(END.call(self._nine, lease, int(returns), urgent=True)))

    def doomed(self) -> list[Item]:
        """Items to be taken apart, at most 50; `bury` each when it is done. May come again."""
        reply = self._store.call(REAP.call(self._nine, DOOMED_BATCH))
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [Item(decoded(name), what) for name, what in pairs]

    def bury(self, name: str) -> bool:
        """The item does not exist any more; False if the pool knew nothing of it."""
        return bool(self._store.call(BURY.call(self._nine, encoded(name, "item"))))

    def look(self) -> PoolStatus:
        """How the pool stands."""
        reply = self._store.call(LOOK.call(self._nine))
        ready, out, doomed, items, counts, demand, now_ms = reply
        pairs = zip(counts[::2], counts[1::2], strict=True)
        claims = zip(demand[::2], demand[1::2], strict=True)
        by_second = {int(second): int(claimed) for second, claimed in claims}
        return PoolStatus(
            ready=ready,
            out=out,
            doomed=doomed,
            items=items,
            counts={name.decode(): int(value) for name, value in pairs},
            target=target(by_second, int(now_ms) // 1_000, self.settings),
        )

    def wait_for_demand(self, wait_ms: float) -> bool:
        """Wait until something is taken, at most a second."""
        return self._store.wait(self._want_key, wait_ms)

    def _cold(self, make_cold: Callable[[], Item] | None) -> Taken | None:
        if make_cold is None:
            return None
        self._store.figures.add("pool_cold")
        try:
            self._store.call(COUNT.call(self._nine, "cold"))
        except Retry:
            self._store.figures.add("pool_bypasses")
        return Taken(self, make_cold(), "", is_cold=True)


def target(by_second: Mapping[int, int], now_s: int, settings: PoolSettings) -> int:
    """Ready items that demand asks for: the most that were claimed within the time it takes to
    make one, in the last ten minutes.

    Args:
        by_second: claims in each second that had any.
        now_s: Unix seconds.
        settings: of the pool.
    """
    recent = [second for second in by_second if now_s - 600 <= second <= now_s]
    busiest = max(
        (
            sum(by_second.get(start + more, 0) for more in range(settings.refill_s))
            for start in recent
        ),
        default=0,
    )
    return max(settings.least, min(settings.most, busiest))


class Refiller:
    """The duty of a pool's leader: see `Candidate`. It makes what is missing and buries the dead.

    Args:
        pool: the pool.
        make: makes one item; takes as long as it takes.
        destroy: takes a doomed item apart; must bear being called twice for one.
    """

    def __init__(
        self, pool: WarmPool, make: Callable[[], Item], destroy: Callable[[Item], None]
    ) -> None:
        self._pool = pool
        self._make = make
        self._destroy = destroy

    def __call__(self, lease: Lease) -> None:
        """One round: bury the doomed, make one item if there are too few, else wait for demand."""
        for item in self._pool.doomed():
            lease.check()
            self._destroy(item)
            self._pool.bury(item.name)
        status = self._pool.look()
        room = self._pool.settings.most - status.items
        if status.ready >= status.target or room <= 0:
            self._pool.wait_for_demand(WAIT_SLICE_MS)
            return
        lease.check()
        item = self._make()
        try:
            self._pool.add(item)
        except Exception:
            LOGGER.warning("item %s was made and could not be added", item.name)
            self._destroy(item)
            raise


def _item(reply: Any) -> Item:
    name, what = reply
    return Item(decoded(name), what or b"")
