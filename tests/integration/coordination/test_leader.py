"""A leader lease: one leads, and another takes over."""

import threading
from collections.abc import Callable, Iterator

import pytest

from cape_stream.coordination.leader import Candidate
from cape_stream.coordination.leases import Lease
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.migrations import Migrations, MigrationState
from cape_stream.coordination.store import Store
from cape_stream.errors import Fenced, Reject
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import World
from tests.waiting import eventually

Stand = Callable[[Callable[[Lease], None]], Candidate]


@pytest.fixture
def stand(open_store: OpenStore) -> Iterator[Stand]:
    opened: list[tuple[Candidate, Locks]] = []

    def stand_one(duty: Callable[[Lease], None]) -> Candidate:
        locks = Locks(open_store())
        candidate = Candidate(locks, "office", duty, ttl_ms=900)
        opened.append((candidate, locks))
        candidate.start()
        return candidate

    yield stand_one
    for candidate, locks in opened:
        candidate.close()
        locks.close()


def test_one_leads_and_the_next_takes_over_when_it_leaves(stand: Stand) -> None:
    fences: list[int] = []
    led = threading.Event()

    def duty(lease: Lease) -> None:
        fences.append(lease.fence)
        led.set()

    candidates = [stand(duty) for _ in range(2)]
    assert led.wait(30)
    eventually(lambda: sum(candidate.is_leading for candidate in candidates) == 1)
    (first,) = [candidate for candidate in candidates if candidate.is_leading]

    first.close()

    eventually(lambda: any(c.is_leading for c in candidates if c is not first))
    assert not first.is_leading
    eventually(lambda: len(set(fences)) == 2)
    assert fences == sorted(fences)


def test_leader_stops_its_duty_when_the_lease_is_lost(stand: Stand, valkey: World) -> None:
    leases: list[Lease] = []

    def duty(lease: Lease) -> None:
        if lease not in leases:
            leases.append(lease)
        lease.check()

    stand(duty)
    eventually(lambda: bool(leases))

    valkey.server.ask("DEL", f"{valkey.prefix}:lock:{{office}}:held")

    eventually(lambda: len(leases) == 2)
    assert leases[0].lost.is_set()
    assert leases[1].fence > leases[0].fence


def test_leader_goes_on_when_its_duty_fails(stand: Stand) -> None:
    calls: list[int] = []

    def duty(lease: Lease) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("a defect of the duty")

    stand(duty)

    eventually(lambda: len(calls) >= 2)


def test_migration_status_is_written_by_the_newest_holder_only(store: Store, valkey: World) -> None:
    migrations, locks = Migrations(store), Locks(store)
    assert migrations.read("m1") is None
    old = locks.acquire("m1", ttl_ms=60_000)
    assert old is not None
    migrations.write("m1", old, MigrationState.RUNNING, "step 1", 1, 3)
    valkey.server.ask("DEL", f"{valkey.prefix}:lock:{{m1}}:held")
    new = locks.acquire("m1", ttl_ms=60_000)
    assert new is not None
    migrations.write("m1", new, MigrationState.RUNNING, "step 2", 2, 3)

    with pytest.raises(Fenced, match="later holder"):
        migrations.write("m1", old, MigrationState.DONE)

    status = migrations.read("m1")
    assert status is not None
    assert (status.state, status.detail, status.done, status.total, status.fence) == (
        MigrationState.RUNNING,
        "step 2",
        2,
        3,
        new.fence,
    )
    locks.close()


def test_migration_status_refuses_novels_and_survives_foreign_text(
    store: Store, valkey: World
) -> None:
    migrations, locks = Migrations(store), Locks(store)
    lease = locks.acquire("m1")
    assert lease is not None

    with pytest.raises(Reject, match="4096"):
        migrations.write("m1", lease, MigrationState.FAILED, "x" * 5_000)

    valkey.server.ask("HSET", f"{valkey.prefix}:migration:{{m1}}:status", "status", "{}")
    assert migrations.read("m1") is None
    locks.close()
