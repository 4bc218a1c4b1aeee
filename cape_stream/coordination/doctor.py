"""The doctor: asks a server whether the coordination layer can rely on it, and says what to change.

It reads, and exercises every service once under names of its own, which expire by themselves.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cape_stream.coordination.audit_tail import AuditTail, TailSettings
from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.cache import Cache, CacheSettings
from cape_stream.coordination.codecs import JsonCodec
from cape_stream.coordination.credentials import ValkeyHookTokens
from cape_stream.coordination.events import Publisher
from cape_stream.coordination.fencing import FencedValues
from cape_stream.coordination.limits import Limits
from cape_stream.coordination.listener import Listener, Watch
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.ownership import Ownership
from cape_stream.coordination.pool import Item, PoolSettings, WarmPool
from cape_stream.coordination.store import Store
from cape_stream.errors import CapeError, Retry

VERSION_MIN = (7, 0)
SKEW_MAX_MS = 1_000
SCAN_MAX = 20_000
MEASURED_PER_SERVICE = 20
FULL_PART = 0.9
LINK_WAIT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    verdict: str
    """`ok`, `warn` (it works, but) or `fail` (it does not work)."""
    detail: str
    """What was seen, and what to do about it."""


def examine(store: Store) -> Iterator[Finding]:
    """Look at everything, one finding after the other; ends early if the server is not there."""
    began_ms = monotonic_ms()
    try:
        clock = store.command("TIME")
    except CapeError as error:
        yield Finding("reach", "fail", str(error))
        return
    took_ms = monotonic_ms() - began_ms
    yield Finding("reach", "ok", f"{store.place} answers, the first time in {took_ms:.1f} ms")
    yield _clock(clock)
    yield from _server(store)
    for name, exercise in EXERCISES.items():
        yield _exercised(store, name, exercise)
    yield from _contents(store)


def _clock(clock: Any) -> Finding:
    seconds, micros = (int(part) for part in clock)
    skew_ms = round(seconds * 1_000 + micros / 1_000 - time.time() * 1_000)
    verdict = "ok" if abs(skew_ms) <= SKEW_MAX_MS else "warn"
    return Finding(
        "clock", verdict, f"the server's clock is {skew_ms:+d} ms from ours; leases use only its"
    )


def _server(store: Store) -> Iterator[Finding]:
    try:
        info = store.command("INFO")
    except CapeError as error:
        yield Finding("server", "warn", f"it does not tell about itself: {error}")
        return
    found = info if "redis_version" in info else next(iter(info.values()))
    text = str(found.get("valkey_version") or found.get("redis_version") or "0")
    parts = [int(part) if part.isdigit() else 0 for part in text.split(".")[:2]]
    is_new = tuple(parts) >= VERSION_MIN
    yield Finding("version", "ok" if is_new else "fail", f"{text}, at least 7.0 is needed")
    is_primary = found.get("role") == "master"
    detail = f"it is a {found.get('role')} with {found.get('connected_slaves', 0)} replicas"
    yield Finding("role", "ok" if is_primary else "fail", detail)
    yield _memory(found)
    yield Finding(
        "persistence",
        "ok",
        "append-only file" if found.get("aof_enabled") else "none needed, and no append-only file",
    )


def _memory(info: Any) -> Finding:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    policy = str(info.get("maxmemory_policy", "?"))
    detail = f"{used >> 20} MiB used of {f'{most >> 20} MiB' if most else 'no limit'}, {policy}"
    if not most:
        return Finding("memory", "warn", f"{detail}; set maxmemory, so that it is not killed")
    if policy.startswith("allkeys"):
        return Finding(
            "memory", "warn", f"{detail}; it may evict locks: use volatile-ttl or noeviction"
        )
    if used > most * FULL_PART:
        return Finding("memory", "warn", f"{detail}; soon it refuses writes")
    return Finding("memory", "ok", detail)


def _exercised(store: Store, name: str, exercise: Callable[[Store, str], None]) -> Finding:
    began_ms = monotonic_ms()
    try:
        exercise(store, f"doctor-{secrets.token_hex(4)}")
    except CapeError as error:
        return Finding(name, "fail", str(error))
    return Finding(name, "ok", f"works, in {monotonic_ms() - began_ms:.1f} ms")


def _try_locks(store: Store, name: str) -> None:
    locks = Locks(store)
    try:
        for acquire in (locks.acquire, locks.acquire_push, locks.acquire_sync):
            lease = acquire(name, ttl_ms=5_000)
            if lease is None or not lease.release():
                raise Retry(f"the lock {name} could not be had or given back")
        locks.acquire(name, ttl_ms=1_000)
        locks.acquire(name, ttl_ms=1_000, wait_ms=1)
        FencedValues(store).put(name, 1, b"")
    finally:
        locks.close()


def _try_cache(store: Store, name: str) -> None:
    cache: Cache[str] = Cache(store, CacheSettings(name, 1, 1_000), JsonCodec())
    cache.get("k", lambda: "value", ("t",))
    cache.invalidate("t")
    if cache.get("k", lambda: "new", ("t",)) != "new":
        raise Retry(f"the cache {name} did not see its invalidation")


def _try_events(store: Store, name: str) -> None:
    listener, heard = Listener(store), list[bytes]()
    try:
        listener.watch(Watch(store.keys("event"), name, heard.append, lambda: None))
        give_up_ms = monotonic_ms() + LINK_WAIT_MS
        while listener.staleness_ms() > LINK_WAIT_MS:
            if monotonic_ms() > give_up_ms:
                raise Retry("no subscription came about; is the channel allowed to the user (&*)?")
            store.pause(10)
        Publisher(store).publish(name, b"hello")
        while not heard:
            if monotonic_ms() > give_up_ms + LINK_WAIT_MS:
                raise Retry("an event was published and did not arrive")
            store.pause(10)
    finally:
        listener.close()


def _try_tokens(store: Store, name: str) -> None:
    tokens = ValkeyHookTokens(store)
    token = tokens.mint("doctor", "doctor", name, "", 5_000)
    if tokens.check(token) is None or tokens.end_execution("doctor", "doctor", name) != 1:
        raise Retry("a token was minted and is not known")


def _try_pool(store: Store, name: str) -> None:
    pool = WarmPool(store, name, PoolSettings(lease_ms=1_000))
    pool.add(Item(name, b""))
    taken = pool.take(None)
    if taken is None or not taken.used_up():
        raise Retry("an item was added and could not be taken")
    pool.take(None, wait_ms=1)


def _try_rest(store: Store, name: str) -> None:
    with Limits(store)(name, 1_000):
        pass
    records = Ownership(store, name, 1_000)
    records.release("r", "n", records.claim("r", "n").fence)
    records.forget(0)
    AuditTail(store, TailSettings(kept_ms=1_000)).append(name, {"by": "doctor"})
    AuditTail(store).recent(name)


EXERCISES: dict[str, Callable[[Store, str], None]] = {
    "locks": _try_locks,
    "cache": _try_cache,
    "events": _try_events,
    "tokens": _try_tokens,
    "pool": _try_pool,
    "limits, ownership, audit": _try_rest,
}


def _contents(store: Store) -> Iterator[Finding]:
    """How many keys each service has, and about how much memory they take."""
    if store.settings.url.split(":", 1)[0].endswith("cluster"):
        return
    counts, sizes = Counter[str](), dict[str, list[int]]()
    cursor: Any = 0
    seen = 0
    try:
        while True:
            words = ("MATCH", f"{store.settings.prefix}:*", "COUNT", 500)
            cursor, keys = store.command("SCAN", int(cursor), *words)
            for key in keys:
                service = key.decode(errors="replace").removeprefix(f"{store.settings.prefix}:")
                service = service.split(":", 1)[0]
                counts[service] += 1
                measured = sizes.setdefault(service, [])
                if len(measured) < MEASURED_PER_SERVICE:
                    measured.append(int(store.command("MEMORY", "USAGE", key) or 0))
            seen += len(keys)
            if int(cursor) == 0 or seen >= SCAN_MAX:
                break
    except CapeError:
        yield Finding("contents", "ok", "not told: the user may not use SCAN and MEMORY USAGE")
        return
    for service, count in sorted(counts.items()):
        measured = sizes[service]
        mean = sum(measured) // max(1, len(measured))
        detail = f"{count:,} keys, about {mean * count >> 10:,} KiB"
        yield Finding(f"contents of {service}", "ok", detail)
