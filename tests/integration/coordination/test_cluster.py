"""A cluster of three masters: every service works on it, and every script keeps to one slot."""

import asyncio
import secrets
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

import cape_stream.coordination as package
from cape_stream.coordination.async_locks import AsyncLocks
from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.audit_tail import AuditEvent, AuditTail
from cape_stream.coordination.cache import Cache, CacheSettings
from cape_stream.coordination.codecs import JsonCodec
from cape_stream.coordination.credentials import InterfaceSessions, ValkeyHookTokens
from cape_stream.coordination.doctor import examine
from cape_stream.coordination.events import Publisher
from cape_stream.coordination.fencing import FencedValues
from cape_stream.coordination.limits import AsyncLimit, Limits
from cape_stream.coordination.links import Words
from cape_stream.coordination.listener import Listener, Watch
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.migrations import Migrations, MigrationState
from cape_stream.coordination.ownership import Ownership
from cape_stream.coordination.pool import Item, PoolSettings, WarmPool
from cape_stream.coordination.scripts import Call, Script
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.errors import Reject
from cape_stream.ports.limits import CallOutcome
from tests.valkey import LocalValkey
from tests.waiting import eventually

NAMES = [f"n{number}" for number in range(12)]
"""So many that each master has some of them."""
Masters = Sequence[LocalValkey]


def url_of(masters: Masters) -> str:
    return "valkey+cluster://" + ",".join(f"127.0.0.1:{each.port}" for each in masters)


class RecordingStore(Store):
    """A store that remembers what was called with which keys."""

    def __init__(self, masters: Masters) -> None:
        super().__init__(ValkeySettings(url=url_of(masters), call_timeout_ms=20_000))
        self.calls: list[tuple[str, tuple[str, ...]]] = []

    def _called(self, call: Call, *more: Words) -> list[Any]:
        self.calls.append((call.script.name, call.keys))
        return super()._called(call, *more)


@pytest.fixture
def store(valkey_masters: Masters) -> Iterator[RecordingStore]:
    found = RecordingStore(valkey_masters)
    yield found
    found.close()


def use_locks(store: Store, name: str) -> None:
    locks = Locks(store)
    for acquire in (locks.acquire, locks.acquire_push, locks.acquire_sync):
        lease = acquire(name, ttl_ms=30_000)
        assert lease is not None
        assert lease._renew(False)
        if acquire == locks.acquire:
            Migrations(store).write(name, lease, MigrationState.RUNNING)
        assert lease.release()
    assert Migrations(store).read(name) is not None
    values = FencedValues(store)
    assert values.put(name, 1, b"v")
    assert values.get(name) == (1, b"v")
    locks.close()


def use_cache(store: Store, name: str) -> None:
    cache: Cache[int] = Cache(store, CacheSettings(name, 1, 60_000), JsonCodec())
    assert cache.get("k", lambda: 1, ("t",)) == 1
    cache.invalidate("t")
    assert cache.get("k", lambda: 2, ("t",)) == 2
    with pytest.raises(ZeroDivisionError):
        cache.get("other", lambda: 1 // 0)


def use_events(store: Store, name: str) -> None:
    Publisher(store).publish(name, b"hello")


def use_ownership(store: Store, name: str) -> None:
    records = Ownership(store, name)
    fence = records.claim("r", "node").fence
    assert records.beat("node", {"r": fence}) == set()
    assert records.owners(["r"])[0] is not None
    assert records.of_node("node") == {"r": fence}
    assert records.release("r", "node", fence)
    records.forget(0)


def use_pool(store: Store, name: str) -> None:
    pool = WarmPool(store, name, PoolSettings())
    pool.add(Item("a", b""))
    taken = pool.take(None)
    assert taken is not None
    assert taken.renew()
    assert taken.give_back()
    assert pool.take(lambda: Item("cold", b"")) is not None
    assert pool.take(lambda: Item("cold", b"")) is not None
    assert pool.doomed() == []
    assert pool.look().counts["cold"] == 1
    assert pool.bury("a")


def use_tokens(store: Store, name: str) -> None:
    tokens = ValkeyHookTokens(store)
    token = tokens.mint("live", "shop", name, "S", 60_000)
    assert tokens.check(token) is not None
    assert tokens.revoke(token)
    assert tokens.end_execution("live", "shop", name) == 0
    sessions = InterfaceSessions(store)
    session = sessions.open("live", "shop", name, 60_000, sliding_cap_ms=600_000)
    assert sessions.check(session) is not None


def use_limits(store: Store, name: str) -> None:
    limits = Limits(store)
    with limits(name) as call:
        call.refused()
    assert limits.look(name).open == 0


def use_tail(store: Store, name: str) -> None:
    tail = AuditTail(store)
    tail.append(name, {"n": 1})
    (event,) = tail.recent(name)
    assert tail.since(name, event.id) == []
    following = tail.follow(name)
    tail.append(name, {"n": 2})
    assert isinstance(next(following), AuditEvent | None)


USES = [
    *(use_locks, use_cache, use_events, use_ownership),
    *(use_pool, use_tokens, use_limits, use_tail),
]


def all_scripts() -> set[str]:
    """Names of all scripts of the coordination layer."""
    modules = [
        import_module(f"{package.__name__}.{each.name}") for each in iter_modules(package.__path__)
    ]
    return {
        value.name for each in modules for value in vars(each).values() if isinstance(value, Script)
    }


@pytest.mark.timeout(180)
def test_every_script_works_on_three_masters_and_keeps_to_one_slot(
    store: RecordingStore, valkey_masters: Masters
) -> None:
    for name in NAMES:
        for use in USES:
            use(store, name)
    asyncio.run(in_a_loop(valkey_masters))
    sessions = InterfaceSessions(store)
    session = sessions.open("live", "shop", "late", 16_000, sliding_cap_ms=600_000)
    eventually(lambda: sessions.check(session) is None or "extend a session" in used(store))

    with valkey_masters[0].client() as client:
        for script, keys in store.calls:
            slots = {client.execute_command("CLUSTER", "KEYSLOT", key) for key in keys}
            assert len(slots) == 1, f"{script} uses {keys}"
    only_async = {"shrink a limit", "pause or resume a limit"}
    assert all_scripts() - used(store) == only_async
    assert all(each.ask("DBSIZE") > len(NAMES) for each in valkey_masters)


def used(store: RecordingStore) -> set[str]:
    return {script for script, _ in store.calls}


async def in_a_loop(masters: Masters) -> None:
    store = AsyncStore(ValkeySettings(url=url_of(masters), call_timeout_ms=20_000))
    for name in NAMES:
        async with AsyncLocks(store).hold(f"async {name}") as lease:
            lease.check()
        limit = AsyncLimit(store, name)
        await limit.shrink()
        await limit.pause("a test")
        await limit.resume()
        permit = await limit.acquire(30_000)
        assert permit is not None
        await limit.release(permit, CallOutcome.SUCCESS)
    await store.close()


def test_script_that_crosses_slots_is_refused(store: Store) -> None:
    """So the test above can fail."""
    crossing = Script("cross slots", "return redis.call('DEL', KEYS[1], KEYS[2])")

    with pytest.raises(Reject):
        store.call(crossing.call(["cape:1:lock:{a}:held", "cape:1:lock:{b}:held"]))


def test_doctor_finds_the_cluster_healthy(store: Store) -> None:
    findings = list(examine(store))

    assert [each for each in findings if each.verdict == "fail"] == []


def test_near_cache_hears_of_invalidations_through_any_master(
    store: Store, valkey_masters: Masters
) -> None:
    other = RecordingStore(valkey_masters)
    listener = Listener(store)
    near = [
        Cache[str](store, CacheSettings(name, 1, 60_000), JsonCodec(), listener)
        for name in NAMES[:6]
    ]
    far = [Cache[str](other, CacheSettings(name, 1, 60_000), JsonCodec()) for name in NAMES[:6]]
    eventually(lambda: listener.staleness_ms() < 1_000)
    assert [each.get("k", lambda: "old") for each in near] == ["old"] * 6

    for each in far:
        each.invalidate_keys("k")

    eventually(lambda: [each.get("k", lambda: "new") for each in near] == ["new"] * 6)
    listener.close()
    other.close()


def test_events_reach_who_listens_and_who_waits(store: Store) -> None:
    heard: list[bytes] = []
    listener = Listener(store)
    listener.watch(Watch(store.keys("event"), "news", heard.append, lambda: None))
    eventually(lambda: listener.staleness_ms() < 1_000)
    locks = Locks(store)
    lease = locks.acquire("job", ttl_ms=60_000)
    assert lease is not None
    won: list[object] = []
    waiter = threading.Thread(target=lambda: won.append(locks.acquire("job", wait_ms=40_000)))
    waiter.start()

    Publisher(store).publish("news", b"hello")
    eventually(lambda: heard == [b"hello"])
    assert lease.release()
    waiter.join()

    assert won != [None]
    listener.close()
    locks.close()


def test_lock_is_kept_while_its_slot_moves_to_another_master(
    store: Store, valkey_masters: Masters
) -> None:
    locks = Locks(store)
    name = f"job-{secrets.token_hex(4)}"
    lease = locks.acquire(name, ttl_ms=60_000)
    assert lease is not None

    move_slot(valkey_masters, f"cape:1:lock:{{{name}}}:held")

    assert locks.acquire(name) is None
    assert lease._renew(False)
    assert lease.release()
    assert locks.acquire(name) is not None
    locks.close()


def move_slot(masters: Masters, key: str) -> None:
    """Move the slot of a key, with all that is in it, to the next master."""
    slot = masters[0].ask("CLUSTER", "KEYSLOT", key)
    at = next(n for n, each in enumerate(masters) if each.ask("CLUSTER", "COUNTKEYSINSLOT", slot))
    source, target = masters[at], masters[(at + 1) % len(masters)]
    ids = [each.ask("CLUSTER", "MYID") for each in (source, target)]
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
    keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100)
    source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
    for each in (target, source):
        each.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
