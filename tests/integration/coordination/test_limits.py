"""Adaptive limits: B62, and what a fleet needs of them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.limits import AsyncLimit, Limits, LimitSettings, LimitStatus
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.errors import Reject, Retry
from cape_stream.ports.limits import AdaptiveLimit, CallOutcome
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey, World
from tests.waiting import eventually

WAIT_MS = 40_000
SETTINGS = LimitSettings(start=32, most=64, lease_ms=WAIT_MS)


class Fleet:
    """Some processes that call one counterparty, and a hand on the server's clock."""

    def __init__(self, open_store: OpenStore, world: World, **settings: Any) -> None:
        given: dict[str, Any] = {"start": 32, "most": 64, "lease_ms": WAIT_MS} | settings
        self.pods = [Limits(open_store(), LimitSettings(**given)) for _ in range(2)]
        self._world = world
        self._state = f"{world.prefix}:limit:{{ses}}:state"

    def look(self) -> LimitStatus:
        return self.pods[1].look("ses")

    def call(self, *, refused: bool = False, retry_after_ms: int | None = None) -> None:
        with self.pods[0]("ses", WAIT_MS) as call:
            if refused:
                call.refused(retry_after_ms)

    def together(self, count: int, *, refused: bool = False) -> None:
        """So many calls that are all open at once."""
        barrier = threading.Barrier(count)

        def one(pod: Limits) -> None:
            with pod("ses", WAIT_MS) as call:
                barrier.wait(30)
                if refused:
                    call.refused()

        threads = [threading.Thread(target=one, args=(self.pods[n % 2],)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def let_pass(self, by_ms: int) -> None:
        """As if so much time had passed since the limit last changed."""
        for field in ("changed_ms", "grown_ms", "held_ms"):
            if self._world.server.ask("HEXISTS", self._state, field):
                self._world.server.ask("HINCRBY", self._state, field, -by_ms)

    def refuse_until_one_is_left(self) -> None:
        while self.look().ceiling > 1:
            self.call(refused=True)
            self.let_pass(1_000)


@pytest.fixture
def fleet(open_store: OpenStore, valkey: World) -> Fleet:
    return Fleet(open_store, valkey)


def test_burst_of_refusals_shrinks_once(fleet: Fleet) -> None:
    fleet.together(10, refused=True)

    assert fleet.look().ceiling == 16


def test_limit_never_falls_below_one(fleet: Fleet) -> None:
    for _ in range(12):
        fleet.call(refused=True)
        fleet.let_pass(1_000)

    assert fleet.look().ceiling == 1
    fleet.call()


def test_limit_comes_back_to_half_within_ten_seconds(fleet: Fleet) -> None:
    """B62.1: a vendor refuses everything for a while, then accepts; few calls at a time."""
    fleet.refuse_until_one_is_left()

    for _ in range(10):
        fleet.let_pass(1_000)
        fleet.call()

    assert fleet.look().ceiling >= 16


def test_limit_comes_back_with_each_success_that_needed_all_of_it(fleet: Fleet) -> None:
    """vector #3255: slow climb back from 1. No second passes here."""
    fleet.refuse_until_one_is_left()

    for _ in range(15):
        fleet.together(fleet.look().ceiling)

    assert fleet.look().ceiling >= 16


def test_limit_grows_only_when_it_was_reached(fleet: Fleet) -> None:
    for _ in range(50):
        fleet.call()

    assert fleet.look().ceiling == 32


def test_limit_does_not_halve_at_its_maximum(open_store: OpenStore, valkey: World) -> None:
    """B62.1, Netflix/concurrency-limits#155: steady success at the ceiling."""
    fleet = Fleet(open_store, valkey, start=4, most=5)
    for _ in range(8):
        fleet.together(fleet.look().ceiling)
        assert fleet.look().ceiling in {4, 5}

    assert fleet.look().ceiling == 5


def test_failures_say_nothing_about_the_limit(fleet: Fleet) -> None:
    with pytest.raises(ZeroDivisionError), fleet.pods[0]("ses"):
        _ = 1 // 0
    with fleet.pods[0]("ses") as call:
        call.failed()

    assert fleet.look() == LimitStatus(ceiling=32, goal=0, open=0, held_ms=0, paused="")


def test_two_pods_obey_one_ceiling(open_store: OpenStore, valkey: World) -> None:
    """B62.2."""
    fleet = Fleet(open_store, valkey, start=2, most=2)
    guard, inside, most = threading.Lock(), 0, 0

    def work(pod: Limits) -> None:
        nonlocal inside, most
        for _ in range(5):
            with pod("ses", WAIT_MS):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work, args=(fleet.pods[n % 2],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 1 <= most <= 2
    assert fleet.look().open == 0


def test_slots_of_a_dead_pod_come_back(open_store: OpenStore, valkey: World) -> None:
    """B62.2: it took the only slot and was killed."""
    settings = LimitSettings(start=1, most=1, lease_ms=300)
    taken = Limits(open_store(), settings)("ses")
    taken.__enter__()

    with Limits(open_store(), settings)("ses", WAIT_MS):
        pass

    taken.__exit__(None, None, None)


def test_retry_after_holds_everybody_off_and_then_one_probes(fleet: Fleet) -> None:
    fleet.call(refused=True, retry_after_ms=60_000)

    status = fleet.look()
    assert (status.ceiling, status.goal) == (1, 16)
    assert 50_000 < status.held_ms <= 60_000
    with pytest.raises(Retry, match="asked for a rest"), fleet.pods[1]("ses", 0):
        pytest.fail("nobody may call")

    fleet.let_pass(60_000)
    with fleet.pods[0]("ses", 0), pytest.raises(Retry), fleet.pods[1]("ses", 0):
        pytest.fail("one probes")
    assert fleet.look().ceiling == 2


def test_refusals_of_calls_that_began_before_the_hold_change_nothing(fleet: Fleet) -> None:
    with fleet.pods[1]("ses") as late:
        fleet.call(refused=True, retry_after_ms=10)
        fleet.let_pass(5_000)
        eventually(lambda: fleet.look().held_ms == 0)
        late.refused()
        before = fleet.look().ceiling

    assert fleet.look().ceiling == before


def test_absurd_retry_after_is_cut_to_an_hour(fleet: Fleet) -> None:
    fleet.call(refused=True, retry_after_ms=2**53)

    assert fleet.look().held_ms <= 3_600_000


def test_waiting_call_is_let_in_by_a_release(open_store: OpenStore, valkey: World) -> None:
    fleet = Fleet(open_store, valkey, start=1, most=1)
    entered = threading.Event()

    def wait() -> None:
        with fleet.pods[1]("ses", WAIT_MS):
            entered.set()

    with fleet.pods[0]("ses"):
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not entered.is_set()

    assert entered.wait(30)
    waiter.join()


def test_calls_go_on_one_at_a_time_when_the_server_is_away(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    limits = Limits(open_store(fault_proxy.url), SETTINGS)
    fault_proxy.refuse()

    with limits("ses") as call:
        with pytest.raises(Retry), limits("ses", 100):
            pytest.fail("two at a time")
        call.refused(60_000)
    with pytest.raises(Retry), limits("ses", 100):
        pytest.fail("a hold is kept without the server too")


def test_release_is_carried_out_once_when_its_reply_is_lost(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    limits = Limits(open_store(fault_proxy.url), SETTINGS)
    with limits("ses") as call:
        call.refused()
        fault_proxy.lose_replies(1)

    assert (limits.look("ses").ceiling, limits.look("ses").open) == (16, 0)


def test_permit_is_given_once_when_its_reply_is_lost(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    limits = Limits(open_store(fault_proxy.url), SETTINGS)
    limits.look("ses")

    fault_proxy.lose_replies(1)
    with limits("ses"):
        assert limits.look("ses").open == 1


@pytest.mark.parametrize(
    "settings", [{"start": 0}, {"most": 1}, {"lease_ms": 0}, {"fallback_slots": 0}]
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(Reject):
        LimitSettings(**settings)


def test_foreign_state_is_named(open_store: OpenStore, valkey: World) -> None:
    valkey.server.ask("SET", f"{valkey.prefix}:limit:{{ses}}:state", "hello")

    with pytest.raises(Reject, match="another program"), Limits(open_store(), SETTINGS)("ses"):
        pytest.fail("no limit")


def test_limits_stay_in_one_slot(open_store: OpenStore, valkey_cluster: LocalValkey) -> None:
    limits = Limits(open_store(valkey_cluster.url), SETTINGS)
    with limits("ses") as call:
        call.refused()

    assert limits.look("ses").ceiling == 16


# ---- the asynchronous face -----------------------------------------------------------------------


def in_loop(world: World, work: Callable[[AsyncLimit], Any], start: int = 2) -> None:
    async def main() -> None:
        settings = ValkeySettings(url=world.url, prefix=world.prefix, call_timeout_ms=5_000)
        store = AsyncStore(settings)
        try:
            limit = AsyncLimit(store, "ses", LimitSettings(start=start, most=64, lease_ms=WAIT_MS))
            await asyncio.wait_for(work(limit), 45)
        finally:
            await store.close()

    asyncio.run(main())


def test_tasks_obey_the_ceiling(valkey: World) -> None:
    async def work(limit: AsyncLimit) -> None:
        inside = most = 0

        async def one() -> None:
            nonlocal inside, most
            async with limit(WAIT_MS):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.002)
                inside -= 1

        await asyncio.gather(*(one() for _ in range(12)))
        status = await limit.look()
        assert 1 <= most <= status.ceiling
        assert status.open == 0

    in_loop(valkey, work)


def test_port_is_carried_out(valkey: World) -> None:
    async def work(limit: AsyncLimit) -> None:
        port: AdaptiveLimit = limit
        permit = await port.acquire(0)
        assert permit is not None
        await port.release(permit, CallOutcome.REFUSED)
        assert (await limit.look()).ceiling == 16

        await limit.pause("reputation")
        assert await limit.acquire(0) is None
        assert (await limit.look()).paused == "reputation"
        await limit.resume()
        again = await limit.acquire(0)
        assert again is not None
        await limit.release(again, CallOutcome.SUCCESS)

    in_loop(valkey, work, start=32)


def test_shrink_lowers_it_as_one_refusal_would(valkey: World) -> None:
    async def work(limit: AsyncLimit) -> None:
        await limit.shrink()
        await limit.shrink()
        assert (await limit.look()).ceiling == 16

    in_loop(valkey, work, start=32)


def test_cancelled_call_gives_its_permit_back(valkey: World) -> None:
    async def work(limit: AsyncLimit) -> None:
        entered = asyncio.Event()

        async def one() -> None:
            async with limit(WAIT_MS):
                entered.set()
                await asyncio.sleep(45)

        task = asyncio.create_task(one())
        await entered.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await limit.look()).open == 0

    in_loop(valkey, work)
