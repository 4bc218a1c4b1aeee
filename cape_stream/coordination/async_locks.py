"""Locks for an event loop: losing one cancels the block that it guards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.keys import Name, encoded
from cape_stream.coordination.leases import MARGIN_MIN_MS, MARGIN_PART, RENEWALS_PER_TTL, RETRY_MS
from cape_stream.coordination.lock_scripts import LOCK
from cape_stream.coordination.locks import HOLD_MAX_MS, TTL_MS, LockDesk, Won
from cape_stream.errors import CapeError, Fenced, Retry


class AsyncLease:
    """What a task has in hand. See `Lease`."""

    def __init__(self, name: str, fence: int, ttl_ms: int, sent_ms: float) -> None:
        self.name = name
        self.fence = fence
        self.ttl_ms = ttl_ms
        self.is_lost = False
        self.renewed(sent_ms)

    @property
    def deadline_ms(self) -> float:
        """Monotonic milliseconds until which guarded work may go on, as of now."""
        return self._deadline_ms

    def renewed(self, sent_ms: float) -> None:
        """The server holds it for us for one more lease from then on."""
        margin_ms = max(MARGIN_MIN_MS, self.ttl_ms / MARGIN_PART)
        self._deadline_ms = sent_ms + self.ttl_ms - margin_ms

    def check(self, margin_ms: float = 0.0) -> None:
        """Call it where a cancellation may come too late: in code that blocks the loop.

        Raises:
            Fenced: it is lost, or less than ``margin_ms`` is left.
        """
        if self.is_lost or self._deadline_ms - monotonic_ms() <= margin_ms:
            raise Fenced(f"the lease of {self.name} (fence {self.fence}) is lost")


class AsyncLocks:
    """Locks of an event loop. Every acquisition has a token of its own, so tasks never share one.

    Cancelling a task at any point of waiting, holding or releasing leaves the lock free within one
    lease.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._keys = store.keys("lock")

    @asynccontextmanager
    async def hold(
        self, name: Name, *, wait_ms: int = 0, ttl_ms: int = TTL_MS, hold_max_ms: int = HOLD_MAX_MS
    ) -> AsyncIterator[AsyncLease]:
        """Hold a lock for a block; the block is cancelled when it is lost.

        Arguments are those of `Locks.acquire`.

        Raises:
            Retry: somebody else has it, or the server cannot be reached.
            Fenced: it was lost within the block.
        """
        desk = LockDesk(self._keys, LOCK, name, ttl_ms)
        try:
            fence, sent_ms = await self._acquire(desk, wait_ms)
        except asyncio.CancelledError:
            await self._release(desk, None)  # the request may have won it
            raise
        lease = AsyncLease(encoded(name), fence, ttl_ms, sent_ms)
        holder = asyncio.current_task()
        assert holder is not None, "a task is running"
        keeper = asyncio.create_task(self._keep(desk, lease, hold_max_ms, holder))
        try:
            yield lease
            lease.check()
        except asyncio.CancelledError:
            if lease.is_lost and holder.uncancel() == 0:
                raise Fenced(f"the lease of {lease.name} was lost, its block cancelled") from None
            raise
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
            await self._release(desk, fence)

    async def _acquire(self, desk: LockDesk, wait_ms: int) -> Won:
        give_up_ms = monotonic_ms() + wait_ms
        while True:
            won = await self._store.run(desk.acquire())
            if isinstance(won, tuple):
                return won
            left_ms = give_up_ms - monotonic_ms()
            if left_ms <= 0:
                raise Retry(f"the lock {desk.shown} is held by somebody else", int(won))
            await self._store.wait(desk.wake_key, desk.pause_ms(won, left_ms))

    async def _keep(
        self, desk: LockDesk, lease: AsyncLease, hold_max_ms: int, holder: "asyncio.Task[object]"
    ) -> None:
        ends_ms = lease.deadline_ms + hold_max_ms - lease.ttl_ms
        pause_ms = lease.ttl_ms / RENEWALS_PER_TTL
        while True:
            left_ms = lease.deadline_ms - monotonic_ms()
            await asyncio.sleep(max(0.0, min(pause_ms, left_ms)) / 1_000)
            sent_ms = monotonic_ms()
            if sent_ms >= lease.deadline_ms:
                break
            if sent_ms >= ends_ms:
                continue
            pause_ms = lease.ttl_ms / RENEWALS_PER_TTL
            try:
                if not await self._store.run(desk.renew(lease.fence, urgent=True)):
                    break
                lease.renewed(sent_ms)
            except Retry:
                pause_ms = RETRY_MS
            except CapeError:
                break
        lease.is_lost = True
        self._store.figures.add("leases_lost")
        holder.cancel()

    async def _release(self, desk: LockDesk, fence: int | None) -> None:
        """Give it back even while the task is being cancelled; without a fence ask for it first."""

        async def give_back() -> None:
            with suppress(CapeError):
                if fence is not None:
                    await self._store.run(desk.release(fence))
                    return
                won = await self._store.run(desk.acquire())
                if isinstance(won, tuple):
                    await self._store.run(desk.release(won[0]))

        await asyncio.shield(asyncio.create_task(give_back()))
