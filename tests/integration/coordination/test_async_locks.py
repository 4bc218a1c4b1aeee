"""Locks of an event loop: the block of a lost lock is cancelled, and tasks share no token."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cape_stream.coordination.async_locks import AsyncLocks
from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.errors import Fenced, Retry
from tests.valkey import World

LIMIT_S = 45


def in_loop(world: World, work: Callable[[AsyncLocks], Awaitable[None]]) -> None:
    async def main() -> None:
        settings = ValkeySettings(url=world.url, prefix=world.prefix, call_timeout_ms=5_000)
        store = AsyncStore(settings)
        try:
            await asyncio.wait_for(work(AsyncLocks(store)), LIMIT_S)
        finally:
            await store.close()

    asyncio.run(main())


def held_key(world: World) -> str:
    return f"{world.prefix}:lock:{{job}}:held"


def test_block_is_cancelled_when_its_lock_is_lost(valkey: World) -> None:
    async def work(locks: AsyncLocks) -> None:
        async def hold() -> None:
            async with locks.hold("job", ttl_ms=300):
                valkey.server.ask("SET", held_key(valkey), "other 1")
                await asyncio.sleep(LIMIT_S)

        with pytest.raises(Fenced, match="its block cancelled"):
            await hold()
        assert valkey.server.ask("GET", held_key(valkey)) == b"other 1"

    in_loop(valkey, work)


def test_block_that_is_cancelled_from_outside_stays_cancelled(valkey: World) -> None:
    async def work(locks: AsyncLocks) -> None:
        entered = asyncio.Event()

        async def hold() -> None:
            async with locks.hold("job"):
                entered.set()
                await asyncio.sleep(LIMIT_S)

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert valkey.server.ask("EXISTS", held_key(valkey)) == 0

    in_loop(valkey, work)


def test_lease_is_renewed_while_the_block_runs(valkey: World) -> None:
    async def work(locks: AsyncLocks) -> None:
        async with locks.hold("job", ttl_ms=1_500) as lease:
            first_ms = lease.deadline_ms
            await asyncio.sleep(1.3)
            assert lease.deadline_ms > first_ms + 600
            lease.check()

    in_loop(valkey, work)


def test_hung_block_is_cancelled_after_its_maximum(valkey: World) -> None:
    async def work(locks: AsyncLocks) -> None:
        with pytest.raises(Fenced):
            async with locks.hold("job", ttl_ms=200, hold_max_ms=300):
                await asyncio.sleep(LIMIT_S)

    in_loop(valkey, work)


def test_tasks_take_turns(valkey: World) -> None:
    """The client's own asynchronous lock shares one token between tasks."""

    async def work(locks: AsyncLocks) -> None:
        inside = 0
        fences = []

        async def turn() -> None:
            nonlocal inside
            async with locks.hold("job", wait_ms=40_000) as lease:
                inside += 1
                assert inside == 1
                fences.append(lease.fence)
                await asyncio.sleep(0.002)
                inside -= 1

        await asyncio.gather(*(turn() for _ in range(10)))
        assert fences == sorted(set(fences))

    in_loop(valkey, work)


def test_second_holder_is_refused(valkey: World) -> None:
    async def work(locks: AsyncLocks) -> None:
        async with locks.hold("job"):
            with pytest.raises(Retry, match="somebody else"):
                async with locks.hold("job"):
                    pytest.fail("two holders")

    in_loop(valkey, work)


@pytest.mark.parametrize("after_steps", range(12))
def test_cancelling_at_any_point_leaves_the_lock_free(valkey: World, after_steps: int) -> None:
    """redis-py #3847: cancelled during release, and nobody could free it."""

    async def work(locks: AsyncLocks) -> None:
        async def hold() -> None:
            async with locks.hold("job", ttl_ms=60_000):
                await asyncio.sleep(0)

        task = asyncio.create_task(hold())
        for _ in range(after_steps):
            await asyncio.sleep(0.0003)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        async with locks.hold("job", wait_ms=0):
            pass

    in_loop(valkey, work)
