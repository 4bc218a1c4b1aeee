"""Warm pools: B60, and what keeps them filled."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from cape_stream.coordination.leader import Candidate
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.pool import Item, PoolSettings, Refiller, WarmPool, target
from cape_stream.coordination.store import Store
from cape_stream.errors import Reject, Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey, World
from tests.waiting import eventually

SETTINGS = PoolSettings(least=1, most=10, lease_ms=60_000, refill_s=1)


@pytest.fixture
def pool(store: Store) -> WarmPool:
    return WarmPool(store, "sandboxes", SETTINGS)


def fill(pool: WarmPool, count: int) -> None:
    for number in range(count):
        assert pool.add(Item(f"s{number}", f"127.0.0.1:{number}".encode()))


def cold() -> Item:
    return Item("cold", b"made on the spot")


def test_items_are_handed_out_once_each_oldest_first(pool: WarmPool) -> None:
    fill(pool, 2)

    taken = [pool.take(cold) for _ in range(3)]

    assert [each.item.name for each in taken if each] == ["s0", "s1", "cold"]
    assert [each.is_cold for each in taken if each] == [False, False, True]
    status = pool.look()
    assert (status.ready, status.out, status.items) == (0, 2, 2)
    assert status.counts == {"added": 2, "handed_out": 2, "misses": 1, "cold": 1}


TAKER = """
import sys, time
from cape_stream.coordination.pool import PoolSettings, WarmPool
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
store = Store(ValkeySettings(url=sys.argv[1], prefix=sys.argv[2], call_timeout_ms=20000))
taken = WarmPool(store, "sandboxes", PoolSettings(lease_ms=400)).take(None)
print(taken.item.name, flush=True)
time.sleep(60)
"""


def test_item_of_a_killed_taker_is_doomed_and_reaped(pool: WarmPool, valkey: World) -> None:
    """B60.1: killed right after the reply."""
    fill(pool, 3)
    words = [sys.executable, "-c", TAKER, valkey.url, valkey.prefix]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as taker:
        assert taker.stdout is not None
        assert taker.stdout.readline().strip() == "s0"
        taker.kill()

    eventually(lambda: [item.name for item in pool.doomed()] == ["s0"])

    assert pool.bury("s0")
    assert not pool.bury("s0")
    status = pool.look()
    assert (status.ready, status.out, status.doomed, status.items) == (2, 0, 0, 2)
    assert [taken.item.name for _ in range(2) if (taken := pool.take(None))] == ["s1", "s2"]


def test_waiting_taker_survives_a_silent_link(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    """B60.1: another waits in a blocking pop while its connection is silently dropped."""
    maker = WarmPool(open_store(valkey_server.url), "sandboxes", SETTINGS)
    with FaultProxy(valkey_server.port) as proxy:
        pool = WarmPool(open_store(proxy.url, call_timeout_ms=2_000), "sandboxes", SETTINGS)
        found: list[object] = []
        waiter = threading.Thread(
            target=lambda: found.append(pool.take(cold, wait_ms=40_000)), daemon=True
        )
        waiter.start()
        eventually(lambda: maker.look().counts.get("misses", 0) >= 1)

        proxy.freeze()
        waiter.join(30)

        assert not waiter.is_alive(), "it goes on with a cold one"
        assert len(found) == 1


def test_taker_that_waits_gets_what_is_added(open_store: OpenStore) -> None:
    pools = [WarmPool(open_store(), "sandboxes", SETTINGS) for _ in range(2)]
    found: list[str] = []

    def wait() -> None:
        taken = pools[1].take(None, wait_ms=40_000)
        assert taken is not None
        found.append(taken.item.name)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: pools[0].look().counts.get("misses", 0) >= 1)
    fill(pools[0], 1)
    waiter.join()

    assert found == ["s0"]


def test_item_is_taken_once_when_the_reply_is_lost(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    pool = WarmPool(open_store(fault_proxy.url), "sandboxes", SETTINGS)
    fill(pool, 3)

    fault_proxy.lose_replies(1)
    taken = pool.take(None)

    assert taken is not None
    assert taken.item.name == "s0"
    assert (pool.look().ready, pool.look().out) == (2, 1)
    fault_proxy.lose_replies(1)
    taken.used_up()
    assert pool.look().items == 2


def test_scripts_are_reloaded_between_takes(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    """B58."""
    pool = WarmPool(open_store(valkey_server.url), "sandboxes", SETTINGS)
    fill(pool, 2)
    first = pool.take(None)
    valkey_server.ask("SCRIPT", "FLUSH")

    second = pool.take(None)

    assert first is not None
    assert second is not None
    assert (first.item.name, second.item.name) == ("s0", "s1")


def test_untouched_item_goes_back_and_used_one_does_not(pool: WarmPool) -> None:
    fill(pool, 2)
    first, second = pool.take(None), pool.take(None)
    assert first is not None
    assert second is not None

    assert first.give_back()
    assert second.used_up()

    assert not first.give_back(), "only once"
    status = pool.look()
    assert (status.ready, status.out, status.items) == (1, 0, 1)
    assert pool.add(second.item), "its name is free again"


def test_renewed_item_stays_out(store: Store) -> None:
    pool = WarmPool(store, "sandboxes", PoolSettings(lease_ms=2_000))
    fill(pool, 1)
    taken = pool.take(None)
    assert taken is not None

    assert taken.renew()
    assert pool.doomed() == []
    eventually(lambda: bool(pool.doomed()))
    assert not taken.renew()
    assert not taken.used_up()


def test_cold_path_is_taken_when_the_server_is_away(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    pool = WarmPool(open_store(fault_proxy.url), "sandboxes", SETTINGS)
    fill(pool, 1)
    fault_proxy.refuse()

    taken = pool.take(cold, wait_ms=100)

    assert taken is not None
    assert taken.is_cold
    with pytest.raises(Retry):
        pool.look()


def test_many_takers_share_the_items_without_a_double(open_store: OpenStore) -> None:
    pools = [WarmPool(open_store(), "sandboxes", SETTINGS) for _ in range(4)]
    fill(pools[0], 20)
    found: list[str] = []

    def work(pool: WarmPool) -> None:
        while (taken := pool.take(None)) is not None:
            found.append(taken.item.name)

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == sorted(f"s{number}" for number in range(20))


@pytest.mark.parametrize(
    ("claims", "wanted"),
    [
        ({}, 1),
        ({100: 3}, 3),
        ({100: 3, 101: 4, 103: 9}, 9),
        ({100: 3, 101: 4, 102: 4}, 8),
        ({100: 500}, 10),
        ({-1_000: 9}, 1),
        ({900: 9}, 1),
    ],
)
def test_demand_sizes_the_pool(claims: dict[int, int], wanted: int) -> None:
    """The most claims within the two seconds that making one takes."""
    settings = PoolSettings(least=1, most=10, refill_s=2)

    assert target(claims, 110, settings) == wanted


@pytest.fixture
def keep_filled(open_store: OpenStore) -> Iterator[Callable[[WarmPool], list[str]]]:
    opened: list[tuple[Candidate, Locks]] = []

    def keep(pool: WarmPool) -> list[str]:
        destroyed: list[str] = []
        numbers = iter(range(1_000))
        refiller = Refiller(
            pool,
            lambda: Item(f"made {next(numbers)}", b""),
            lambda item: destroyed.append(item.name),
        )
        locks = Locks(open_store())
        candidate = Candidate(locks, "refill sandboxes", refiller)
        opened.append((candidate, locks))
        candidate.start()
        return destroyed

    yield keep
    for candidate, locks in opened:
        candidate.close()
        locks.close()


def test_leader_refills_after_a_burst(
    pool: WarmPool, keep_filled: Callable[[WarmPool], list[str]]
) -> None:
    """elizaOS PR 15420: never refilled after claims."""
    keep_filled(pool)
    eventually(lambda: pool.look().ready >= 1)

    for _ in range(4):
        taken = pool.take(cold)
        assert taken is not None
        taken.used_up()

    eventually(lambda: pool.look().ready >= 2)


def test_leader_takes_the_doomed_apart(
    store: Store, keep_filled: Callable[[WarmPool], list[str]]
) -> None:
    pool = WarmPool(store, "sandboxes", PoolSettings(least=1, lease_ms=100))
    fill(pool, 1)
    assert pool.take(None) is not None

    destroyed = keep_filled(pool)

    eventually(lambda: destroyed == ["s0"])
    eventually(lambda: pool.look().doomed == 0)


def test_odd_names_and_foreign_data_are_told_apart(pool: WarmPool, valkey: World) -> None:
    assert pool.add(Item("s {1}\n", b"\x00\xff"))
    taken = pool.take(None)
    assert taken is not None
    assert taken.item == Item("s {1}\n", b"\x00\xff")
    with pytest.raises(Reject):
        pool.add(Item("", b""))
    with pytest.raises(Reject):
        pool.add(Item("s", bytes(5_000)))

    valkey.server.ask("SET", f"{valkey.prefix}:pool:{{sandboxes}}:items", "hello")
    with pytest.raises(Reject, match="another program"):
        pool.add(Item("s", b""))


@pytest.mark.parametrize("lease_ms", [0, -1, 2**63])
def test_impossible_leases_are_refused(lease_ms: int) -> None:
    with pytest.raises(Reject, match=str(lease_ms)):
        PoolSettings(lease_ms=lease_ms)


def test_pool_stays_in_one_slot(open_store: OpenStore, valkey_cluster: LocalValkey) -> None:
    pool = WarmPool(open_store(valkey_cluster.url), "sandboxes", SETTINGS)
    fill(pool, 1)
    taken = pool.take(None)

    assert taken is not None
    assert taken.renew()
    assert taken.used_up()
    assert pool.doomed() == []
