"""The keeper of leases: it forgets what was given back, and renews what was not."""

from cape_stream.coordination.leases import ENDED_MIN
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.store import Store
from tests.waiting import eventually

HOUR_MS = 3_600_000


def test_leases_that_were_given_back_are_not_kept_until_they_are_due(store: Store) -> None:
    locks = Locks(store)
    for _ in range(5 * ENDED_MIN):
        lease = locks.acquire("busy", ttl_ms=HOUR_MS)
        assert lease is not None
        assert lease.release()

    assert locks.kept <= 2 * ENDED_MIN
    locks.close()


def test_lease_is_renewed_while_others_come_and_go(store: Store) -> None:
    locks = Locks(store)
    held = locks.acquire("held", ttl_ms=6_000)
    assert held is not None
    first_ms = held.deadline_ms
    for _ in range(3 * ENDED_MIN):
        lease = locks.acquire("busy")
        assert lease is not None
        assert lease.release()

    eventually(lambda: held.deadline_ms > first_ms)

    assert held.release()
    locks.close()
