"""Locks: B52, B58, and what was reported of others' locks."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from cape_stream.coordination.fencing import FencedValues
from cape_stream.coordination.leases import Lease
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.errors import Fenced, Reject, Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey, World
from tests.waiting import eventually

LONG_MS = 60_000
OpenLocks = Callable[..., Locks]


@pytest.fixture
def open_locks(open_store: OpenStore) -> Iterator[OpenLocks]:
    opened: list[Locks] = []

    def open_one(url: str = "", **more: object) -> Locks:
        locks = Locks(open_store(url, **more))
        opened.append(locks)
        return locks

    yield open_one
    for locks in opened:
        locks.close()


@pytest.fixture
def locks(open_locks: OpenLocks) -> Locks:
    return open_locks()


def taken(lease: Lease | None) -> Lease:
    assert lease is not None, "the lock was free"
    return lease


def stop_renewing(locks: Locks) -> None:
    """As a process does that is stopped for longer than its lease."""
    locks.close()


def test_release_frees_nobody_elses_lock_when_the_lease_has_expired(
    open_locks: OpenLocks, open_store: OpenStore
) -> None:
    """B52, with every guarded write carrying its fence."""
    a, b, c = open_locks(), open_locks(), open_locks()
    guarded = FencedValues(open_store())
    of_a = taken(a.acquire("repo:42", ttl_ms=200))
    stop_renewing(a)

    of_b = taken(b.acquire("repo:42", ttl_ms=LONG_MS, wait_ms=30_000))
    assert guarded.put("repo:42", of_b.fence, b"by b")

    assert of_b.fence > of_a.fence
    with pytest.raises(Fenced, match="is lost"):
        of_a.check()
    assert not of_a.release()
    assert c.acquire("repo:42") is None
    assert not guarded.put("repo:42", of_a.fence, b"late, by a")
    assert guarded.get("repo:42") == (of_b.fence, b"by b")
    assert of_b.release()
    assert c.acquire("repo:42") is not None


def test_lease_is_renewed_for_as_long_as_it_is_held(locks: Locks, open_locks: OpenLocks) -> None:
    with locks.hold("job", ttl_ms=1_500) as lease:
        first_ms = lease.deadline_ms
        eventually(lambda: lease.deadline_ms > first_ms + 600)
        assert open_locks().acquire("job") is None
        lease.check()


def test_renewals_stop_at_the_maximum_hold(locks: Locks, open_locks: OpenLocks) -> None:
    """A hung holder does not keep its lock for ever (python-redis-lock#106)."""
    lease = taken(locks.acquire("job", ttl_ms=200, hold_max_ms=300))

    assert lease.lost.wait(30)
    assert open_locks().acquire("job", wait_ms=30_000) is not None
    with pytest.raises(Fenced, match="held for its maximum"):
        lease.check()


def test_holder_is_told_when_somebody_else_deletes_its_lock(
    locks: Locks, store: Store, valkey: World
) -> None:
    told = threading.Event()
    lease = taken(locks.acquire("job", ttl_ms=600))
    lease.on_loss(told.set)

    valkey.server.ask("DEL", f"{valkey.prefix}:lock:{{job}}:held")

    assert told.wait(30)
    assert lease.remaining_ms() == 0
    assert not lease.release()


def test_holder_is_told_when_the_server_has_lost_its_data(
    open_locks: OpenLocks, valkey_server: LocalValkey
) -> None:
    locks = open_locks(valkey_server.url)
    lease = taken(locks.acquire("job", ttl_ms=600))

    valkey_server.ask("FLUSHALL")

    assert lease.lost.wait(30)
    again = taken(locks.acquire("job"))
    assert again.fence > lease.fence, "numbers grow even when the counter is gone"


def test_holder_is_told_at_its_deadline_when_the_server_is_gone(
    open_locks: OpenLocks, fault_proxy: FaultProxy
) -> None:
    locks = open_locks(fault_proxy.url, call_timeout_ms=100)
    lease = taken(locks.acquire("job", ttl_ms=700))

    fault_proxy.refuse()

    assert lease.lost.wait(30)
    assert time.monotonic() * 1_000 >= lease.deadline_ms
    with pytest.raises(Fenced, match="could not be renewed in time"):
        lease.check()


def test_every_holder_is_told_when_the_server_is_frozen(
    open_locks: OpenLocks, fault_proxy: FaultProxy
) -> None:
    locks = open_locks(fault_proxy.url, call_timeout_ms=300)
    leases = [taken(locks.acquire(f"job {number}", ttl_ms=1_500)) for number in range(12)]

    fault_proxy.freeze()

    assert all(lease.lost.wait(30) for lease in leases)


def test_waiting_does_not_spin_on_old_wake_ups(locks: Locks, open_store: OpenStore) -> None:
    store = open_store()
    waiting = Locks(store)
    for _ in range(5):
        taken(locks.acquire("job")).release()
    lease = taken(locks.acquire("job", ttl_ms=LONG_MS))

    assert waiting.acquire("job", wait_ms=300) is None

    assert store.figures["lock_waits"] <= 3
    lease.release()
    waiting.close()


def test_lease_outlives_a_short_outage(open_locks: OpenLocks, fault_proxy: FaultProxy) -> None:
    """One transient error is no reason to give up (PasarGuard PR 746)."""
    locks = open_locks(fault_proxy.url)
    lease = taken(locks.acquire("job", ttl_ms=6_000))
    fault_proxy.refuse()
    with pytest.raises(Retry):
        locks.acquire("other")

    fault_proxy.heal()
    first_ms = lease.deadline_ms

    eventually(lambda: lease.deadline_ms > first_ms or lease.lost.is_set())
    assert not lease.lost.is_set()
    assert lease.release()


def test_deadline_counts_from_the_sending_of_the_request(
    open_locks: OpenLocks, fault_proxy: FaultProxy
) -> None:
    locks = open_locks(fault_proxy.url, call_timeout_ms=10_000)
    fault_proxy.delay(200)
    before_ms = time.monotonic() * 1_000

    lease = taken(locks.acquire("job", ttl_ms=LONG_MS))

    # Two delays were spent under way, and all of them are the holder's loss.
    assert time.monotonic() * 1_000 - before_ms >= 400
    assert lease.deadline_ms <= before_ms + LONG_MS + 150


def test_all_goes_on_when_the_server_forgets_its_scripts(
    open_locks: OpenLocks, valkey_server: LocalValkey
) -> None:
    """B58: between acquire, renewal and release."""
    locks = open_locks(valkey_server.url)
    lease = taken(locks.acquire("job", ttl_ms=1_500))

    valkey_server.ask("SCRIPT", "FLUSH")
    first_ms = lease.deadline_ms
    eventually(lambda: lease.deadline_ms > first_ms)
    valkey_server.ask("SCRIPT", "FLUSH")

    assert lease.release()
    assert locks.acquire("job") is not None


def test_all_goes_on_when_the_server_restarts_with_its_data(
    open_locks: OpenLocks, valkey_server: LocalValkey
) -> None:
    locks = open_locks(valkey_server.url)
    lease = taken(locks.acquire("job", ttl_ms=LONG_MS))

    valkey_server.stop()
    valkey_server.start()

    assert locks.acquire("job") is None
    assert lease.release()
    assert locks.acquire("job") is not None


@pytest.mark.parametrize("verb", ["acquire", "acquire_push", "acquire_sync"])
def test_lost_replies_change_nothing(
    open_locks: OpenLocks, fault_proxy: FaultProxy, verb: str
) -> None:
    """The request was carried out, its reply was lost, and it is sent again."""
    locks = open_locks(fault_proxy.url)

    fault_proxy.lose_replies(1)
    lease = taken(getattr(locks, verb)("job"))
    fault_proxy.lose_replies(1)

    assert lease.release()
    assert locks.acquire_push("job") is not None


def test_who_waits_is_woken_by_the_release(locks: Locks, open_locks: OpenLocks) -> None:
    other = open_locks()
    lease = taken(locks.acquire("job", ttl_ms=LONG_MS))
    found: list[Lease | None] = []
    waiter = threading.Thread(target=lambda: found.append(other.acquire("job", wait_ms=45_000)))
    waiter.start()

    lease.release()
    waiter.join()

    assert found[0] is not None


def test_many_who_wait_get_it_one_after_the_other(open_locks: OpenLocks) -> None:
    inside, most, fences = 0, 0, []
    guard = threading.Lock()

    def work(locks: Locks) -> None:
        nonlocal inside, most
        for _ in range(5):
            with locks.hold("job", wait_ms=45_000, ttl_ms=LONG_MS) as lease:
                with guard:
                    inside += 1
                    most = max(most, inside)
                    fences.append(lease.fence)
                time.sleep(0.002)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work, args=(open_locks(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1
    assert len(fences) == 20
    assert fences == sorted(set(fences))


def test_lock_of_a_killed_process_is_free_after_its_lease(open_locks: OpenLocks) -> None:
    locks = open_locks()
    lease = taken(locks.acquire("job", ttl_ms=300))
    stop_renewing(locks)  # nobody renews, nobody releases

    again = taken(open_locks().acquire("job", wait_ms=30_000))

    assert again.fence > lease.fence


HOLDER = """
import sys
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.errors import Fenced
store = Store(ValkeySettings(url=sys.argv[1], prefix=sys.argv[2], call_timeout_ms=20000))
lease = Locks(store).acquire("job", ttl_ms=1500)
print(lease.fence, flush=True)
sys.stdin.readline()
try:
    lease.check()
    print("works on", flush=True)
except Fenced:
    print("fenced", flush=True)
print(lease.release(), flush=True)
"""


def test_stopped_holder_knows_on_waking_that_it_lost(valkey: World, open_locks: OpenLocks) -> None:
    """SIGSTOP past the lease, another takes over, SIGCONT: the very next check is refused."""
    words = [sys.executable, "-c", HOLDER, valkey.url, valkey.prefix]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        fence = int(holder.stdout.readline())
        os.kill(holder.pid, signal.SIGSTOP)

        ours = taken(open_locks().acquire("job", wait_ms=40_000, ttl_ms=LONG_MS))
        os.kill(holder.pid, signal.SIGCONT)
        holder.stdin.write("\n")
        holder.stdin.flush()

        assert holder.stdout.readline().strip() == "fenced"
        assert holder.stdout.readline().strip() == "False"
        assert ours.fence > fence
        assert ours.is_held()


def test_locks_are_refused_and_not_invented_when_the_server_is_away(
    open_locks: OpenLocks, fault_proxy: FaultProxy
) -> None:
    """cashews fails open here: two holders."""
    locks = open_locks(fault_proxy.url)
    fault_proxy.refuse()

    with pytest.raises(Retry):
        locks.acquire("job", wait_ms=100)


def test_hold_raises_retry_when_somebody_else_has_it(locks: Locks, open_locks: OpenLocks) -> None:
    with (
        locks.hold("job"),
        pytest.raises(Retry, match="held by somebody else"),
        open_locks().hold("job"),
    ):
        pytest.fail("two holders")


def test_hold_frees_the_lock_when_its_block_fails(locks: Locks, open_locks: OpenLocks) -> None:
    with pytest.raises(ZeroDivisionError), locks.hold("job"):
        _ = 1 // 0

    assert open_locks().acquire("job") is not None


def test_hold_raises_fenced_when_it_was_lost_within_the_block(locks: Locks, valkey: World) -> None:
    def work() -> None:
        with locks.hold("job", ttl_ms=LONG_MS):
            valkey.server.ask("SET", f"{valkey.prefix}:lock:{{job}}:held", "other 1")

    with pytest.raises(Fenced):
        work()


def test_syncs_share_and_pushes_do_not(locks: Locks, open_locks: OpenLocks) -> None:
    other = open_locks()
    first = taken(locks.acquire_sync("repo"))
    second = taken(other.acquire_sync("repo"))

    assert other.acquire_push("repo") is None
    assert first.release()
    assert other.acquire_push("repo") is None
    assert second.release()
    push = taken(other.acquire_push("repo", wait_ms=30_000))
    assert locks.acquire_sync("repo") is None
    assert locks.acquire_push("repo") is None
    assert push.release()
    assert taken(locks.acquire_sync("repo", wait_ms=30_000)).fence == push.fence


def test_push_that_waits_goes_before_syncs_that_come_later(
    locks: Locks, open_locks: OpenLocks
) -> None:
    other = open_locks()
    sync = taken(locks.acquire_sync("repo", ttl_ms=LONG_MS))
    found: list[Lease | None] = []
    pusher = threading.Thread(
        target=lambda: found.append(other.acquire_push("repo", wait_ms=45_000, ttl_ms=LONG_MS))
    )
    pusher.start()
    eventually(lambda: refused_and_released(locks, "repo"))

    sync.release()
    pusher.join()

    assert found[0] is not None


def refused_and_released(locks: Locks, name: str) -> bool:
    lease = locks.acquire_sync(name)
    if lease is not None:
        lease.release()
    return lease is None


def test_sync_of_a_dead_reader_does_not_keep_pushes_out_for_ever(open_locks: OpenLocks) -> None:
    dead = open_locks()
    taken(dead.acquire_sync("repo", ttl_ms=300))
    stop_renewing(dead)

    assert open_locks().acquire_push("repo", wait_ms=30_000) is not None


@pytest.mark.parametrize(
    "name", ["a{b}c", "{}", "x:y}", "%41", "A", b"\xff\x00 \n", "é", "k" * 1_024]
)
def test_odd_names_are_locks_of_their_own(locks: Locks, name: str | bytes) -> None:
    assert locks.acquire(name) is not None
    assert locks.acquire(name) is None


@pytest.mark.parametrize("name", ["", b"", "k" * 1_025, "\ud800"])
def test_names_that_cannot_be_ones_are_refused(locks: Locks, name: str | bytes) -> None:
    with pytest.raises(Reject, match="name of a lock"):
        locks.acquire(name)


@pytest.mark.parametrize("ttl_ms", [0, -1, 49, 2**63])
def test_leases_out_of_range_are_refused(locks: Locks, ttl_ms: int) -> None:
    with pytest.raises(Reject, match=str(ttl_ms)):
        locks.acquire("job", ttl_ms=ttl_ms)


@pytest.mark.parametrize("words", [("SET", "hello"), ("LPUSH", "x"), ("SET", "a b c")])
def test_foreign_values_are_named_and_kept(
    locks: Locks, valkey: World, words: tuple[str, str]
) -> None:
    key = f"{valkey.prefix}:lock:{{job}}:held"
    valkey.server.ask(words[0], key, words[1])

    with pytest.raises(Reject, match="another program"):
        locks.acquire("job")

    assert valkey.server.ask("EXISTS", key) == 1


def test_release_works_when_the_server_is_full(
    open_locks: OpenLocks, valkey_server: LocalValkey
) -> None:
    locks = open_locks(valkey_server.url)
    lease = taken(locks.acquire("job", ttl_ms=LONG_MS))
    valkey_server.ask("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(Retry, match="full"):
        locks.acquire("other")
    assert lease.release()

    valkey_server.ask("CONFIG", "SET", "maxmemory", "0")
    assert locks.acquire("job") is not None


def test_scripts_stay_in_one_slot(valkey_cluster: LocalValkey, open_store: OpenStore) -> None:
    store = Store(ValkeySettings(url=valkey_cluster.url.replace("valkey:", "valkey+cluster:")))
    locks = Locks(store)

    assert taken(locks.acquire("job")).release()
    assert taken(locks.acquire_push("job")).release()
    assert taken(locks.acquire_sync("job")).release()

    locks.close()
    store.close()
