"""Adaptive limits: how many calls to one counterparty the whole fleet has open at once.

The ceiling halves when the counterparty refuses, at most once a second, and never falls below 1. A
Retry-After holds everybody off for so long, and then one call probes. What was lost to refusals
comes back within ten seconds up to half of the former ceiling (it doubles each second in which
something succeeds, and with each success that needed the whole ceiling by one); above that it grows
by about 1 each time that all of it has been used. A permit of a holder that died comes back when
its lease ends.

Without the server each process goes on with ``fallback_slots`` calls at a time, and keeps the holds
that it heard of itself.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.figures import Figures
from cape_stream.coordination.keys import Keys, Name, encoded
from cape_stream.coordination.limit_scripts import (
    ACQUIRE,
    HOLD_MAX_MS,
    LOOK,
    PAUSE,
    RELEASE,
    SHRINK,
)
from cape_stream.coordination.scripts import Steps
from cape_stream.coordination.store import WAIT_SLICE_MS, Store
from cape_stream.errors import Reject, Retry
from cape_stream.ports.limits import CallOutcome

LOCAL = "local-"
LOCAL_POLL_MS = 50


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What is known of a counterparty beforehand."""

    start: int = 8
    """The ceiling before anything was learned, >= 1."""
    most: int = 200
    """It never grows above this, >= ``start``."""
    lease_ms: int = 60_000
    """A permit ends by itself after so long: longer than any call takes. 100 ms to 1 h."""
    fallback_slots: int = 1
    """Calls at a time of each process while the server is away, >= 1."""

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.most or self.fallback_slots < 1:
            raise Reject(
                f"a limit starts at 1 to its most, not {self.start} of {self.most}; and"
                f" fallback_slots {self.fallback_slots} must be >= 1"
            )
        if not 100 <= self.lease_ms <= HOLD_MAX_MS:
            raise Reject(f"a permit's lease is 100 to {HOLD_MAX_MS} ms, not {self.lease_ms}")


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """How a limit stands, for people and metrics."""

    ceiling: int
    """Calls that may be open at once."""
    goal: int
    """Up to here it comes back fast."""
    open: int
    """Calls that are open now, in the whole fleet."""
    held_ms: int
    """For so long nobody may call, because of a Retry-After; 0: no hold."""
    paused: str
    """Why somebody has paused it; empty: nobody has."""


class _Desk:
    """What both faces have in common: the steps, and the slots for lean times."""

    def __init__(self, keys: Keys, name: Name, settings: LimitSettings) -> None:
        tag = encoded(name, "counterparty")
        self.name = tag
        self.settings = settings
        self.wake_key = keys.of(tag, "wake")
        self._state, self._slots = keys.of(tag, "state"), keys.of(tag, "slots")
        self._four = (self._state, self._slots, keys.of(tag, "begun"), self.wake_key)
        self._lock = threading.Lock()
        self._local_open = 0
        self._local_held_until_ms = 0.0

    def acquire(self, permit: str) -> Steps[float]:
        """0 if it was given out; else in how many milliseconds there may be one."""
        settings = self.settings
        arguments = (permit, settings.lease_ms, settings.start, settings.most)
        given, answer, _ = yield ACQUIRE.call(self._four, *arguments)
        return 0.0 if given else max(1.0, float(answer))

    def release(self, permit: str, outcome: CallOutcome, retry_after_ms: int) -> Steps[bool]:
        """False if it had ended before."""
        settings = self.settings
        arguments = (permit, outcome.value, retry_after_ms, settings.most, settings.start)
        return bool((yield RELEASE.call(self._four, *arguments, urgent=True)))

    def shrink(self) -> Steps[bool]:
        """False if it has shrunk a moment ago."""
        arguments = (self.settings.start, self.settings.most)
        return bool((yield SHRINK.call(self._four, *arguments)))

    def pause(self, reason: str) -> Steps[None]:
        """With an empty reason: resume."""
        yield PAUSE.call([self._state], reason)

    def look(self) -> Steps[LimitStatus]:
        """How it stands."""
        reply: list[Any] = yield LOOK.call([self._state, self._slots])
        ceiling, goal, held_ms, paused, is_open, now_ms = reply
        return LimitStatus(
            ceiling=int(float(ceiling or self.settings.start)),
            goal=int(float(goal or 0)),
            open=int(is_open),
            held_ms=max(0, int(held_ms or 0) - int(now_ms)),
            paused=(paused or b"").decode(),
        )

    def take_local(self) -> bool:
        """A slot of this process, while there are none of the fleet's."""
        with self._lock:
            free = self._local_open < self.settings.fallback_slots
            if not free or monotonic_ms() < self._local_held_until_ms:
                return False
            self._local_open += 1
            return True

    def settle_local(self, permit: str, retry_after_ms: int) -> None:
        """Take a slot of this process back, and remember a hold."""
        with self._lock:
            if permit.startswith(LOCAL):
                self._local_open -= 1
            if retry_after_ms:
                until_ms = monotonic_ms() + min(retry_after_ms, HOLD_MAX_MS)
                self._local_held_until_ms = max(self._local_held_until_ms, until_ms)

    def pause_ms(self, free_in_ms: float, give_up_ms: float) -> float:
        """How long to wait before asking again; not at all when there is no time left."""
        return min(free_in_ms, give_up_ms - monotonic_ms(), WAIT_SLICE_MS)


class Call:
    """A permitted call. Say how it ended; leaving the block without a word is a success."""

    def __init__(self) -> None:
        self.outcome = CallOutcome.SUCCESS
        self.retry_after_ms = 0

    def refused(self, retry_after_ms: int | None = None) -> None:
        """The counterparty said that it is too much, and perhaps for how long to stay away."""
        self.outcome = CallOutcome.REFUSED
        self.retry_after_ms = max(0, retry_after_ms or 0)

    def failed(self) -> None:
        """It failed for reasons that say nothing about the load; so does an exception."""
        self.outcome = CallOutcome.FAILED


class Limits:
    """The limits of a process: ``with limits("ses") as call: ...``. Threads share it."""

    def __init__(self, store: Store, settings: LimitSettings | None = None) -> None:
        self._store = store
        self._settings = settings or LimitSettings()
        self._keys = store.keys("limit")
        self._desks: dict[Name, _Desk] = {}

    @contextmanager
    def __call__(self, counterparty: Name, wait_ms: int = 30_000) -> Iterator[Call]:
        """One call, within the limit.

        Raises:
            Retry: no permit within ``wait_ms``: the counterparty is busy, held off, or paused.
            Reject: the name cannot be one.
        """
        desk = self._desk(counterparty)
        permit = self._acquire(desk, wait_ms)
        call = Call()
        try:
            yield call
        except BaseException:
            if call.outcome is CallOutcome.SUCCESS:
                call.failed()
            raise
        finally:
            self._release(desk, permit, call)

    def look(self, counterparty: Name) -> LimitStatus:
        """How a limit stands.

        Raises:
            Retry: the server cannot be reached.
        """
        return self._store.run(self._desk(counterparty).look())

    def _desk(self, counterparty: Name) -> _Desk:
        desk = self._desks.get(counterparty)
        if desk is None:
            desk = _Desk(self._keys, counterparty, self._settings)
            desk = self._desks.setdefault(counterparty, desk)
        return desk

    def _acquire(self, desk: _Desk, wait_ms: int) -> str:
        permit, give_up_ms = secrets.token_urlsafe(12), monotonic_ms() + wait_ms
        while True:
            try:
                free_in_ms = self._store.run(desk.acquire(permit))
                if not free_in_ms:
                    return permit
                if desk.pause_ms(free_in_ms, give_up_ms) > 0:
                    self._store.figures.add("limit_waits")
                    self._store.wait(desk.wake_key, desk.pause_ms(free_in_ms, give_up_ms))
            except Retry:
                free_in_ms = LOCAL_POLL_MS
                if desk.take_local():
                    self._store.figures.add("limit_local_permits")
                    return LOCAL + permit
                time.sleep(max(0.0, desk.pause_ms(free_in_ms, give_up_ms)) / 1_000)
            if monotonic_ms() >= give_up_ms:
                raise _busy(desk, free_in_ms)

    def _release(self, desk: _Desk, permit: str, call: Call) -> None:
        desk.settle_local(permit, call.retry_after_ms)
        _count(self._store.figures, call.outcome)
        if permit.startswith(LOCAL):
            return
        try:
            self._store.run(desk.release(permit, call.outcome, call.retry_after_ms))
        except Retry:
            self._store.figures.add("limit_releases_lost")  # its lease ends by itself


class AsyncLimit:
    """See `cape_stream.ports.limits.AdaptiveLimit`; the same state as `Limits`.

    Args:
        store: the server.
        counterparty: whose limit.
        settings: the same in every process.
    """

    def __init__(
        self, store: AsyncStore, counterparty: Name, settings: LimitSettings | None = None
    ) -> None:
        self._store = store
        self._desk = _Desk(store.keys("limit"), counterparty, settings or LimitSettings())

    async def acquire(self, wait_ms: int) -> str | None:
        """See `AdaptiveLimit.acquire`."""
        desk = self._desk
        permit, give_up_ms = secrets.token_urlsafe(12), monotonic_ms() + wait_ms
        while True:
            try:
                free_in_ms = await self._store.run(desk.acquire(permit))
                if not free_in_ms:
                    return permit
                if desk.pause_ms(free_in_ms, give_up_ms) > 0:
                    self._store.figures.add("limit_waits")
                    await self._store.wait(desk.wake_key, desk.pause_ms(free_in_ms, give_up_ms))
            except asyncio.CancelledError:
                await self._give_back(permit)
                raise
            except Retry:
                if desk.take_local():
                    self._store.figures.add("limit_local_permits")
                    return LOCAL + permit
                pause_ms = desk.pause_ms(LOCAL_POLL_MS, give_up_ms)
                await asyncio.sleep(max(0.0, pause_ms) / 1_000)
            if monotonic_ms() >= give_up_ms:
                return None

    async def release(
        self, permit: str, outcome: CallOutcome, retry_after_ms: int | None = None
    ) -> None:
        """See `AdaptiveLimit.release`."""
        held_ms = max(0, retry_after_ms or 0)
        self._desk.settle_local(permit, held_ms)
        _count(self._store.figures, outcome)
        if permit.startswith(LOCAL):
            return
        try:
            await self._store.run(self._desk.release(permit, outcome, held_ms))
        except Retry:
            self._store.figures.add("limit_releases_lost")

    async def shrink(self) -> None:
        """See `AdaptiveLimit.shrink`.

        Raises:
            Retry: the server cannot be reached.
        """
        await self._store.run(self._desk.shrink())

    async def pause(self, reason: str) -> None:
        """See `AdaptiveLimit.pause`.

        Raises:
            Retry: the server cannot be reached; nobody is paused.
        """
        await self._store.run(self._desk.pause(reason or "no reason given"))

    async def resume(self) -> None:
        """See `AdaptiveLimit.resume`."""
        await self._store.run(self._desk.pause(""))

    async def look(self) -> LimitStatus:
        """See `Limits.look`."""
        return await self._store.run(self._desk.look())

    @asynccontextmanager
    async def __call__(self, wait_ms: int = 30_000) -> AsyncIterator[Call]:
        """One call, within the limit: ``async with limit() as call``. See `Limits.__call__`."""
        permit = await self.acquire(wait_ms)
        if permit is None:
            raise _busy(self._desk, LOCAL_POLL_MS)
        call = Call()
        try:
            yield call
        except BaseException:
            if call.outcome is CallOutcome.SUCCESS:
                call.failed()
            raise
        finally:
            retry_after_ms = call.retry_after_ms
            await asyncio.shield(self.release(permit, call.outcome, retry_after_ms))

    async def _give_back(self, permit: str) -> None:
        """The task was cancelled while it asked: it may have been given one."""
        await asyncio.shield(self.release(permit, CallOutcome.FAILED))


def _busy(desk: _Desk, free_in_ms: float) -> Retry:
    return Retry(
        f"{desk.name} may not be called now: its limit is reached, or it asked for a rest",
        int(free_in_ms) + 1,
    )


def _count(figures: Figures, outcome: CallOutcome) -> None:
    figures.add(f"limit_{outcome.value}")
