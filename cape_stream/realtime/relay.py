"""Requests to workers over sockets: correlated, bounded, each with a deadline.

A caller asks a *service* by name; a worker that offered the service answers. The relay picks the
worker with the fewest requests under way, holds callers back while all are busy, and ends a request
when its deadline passes, its caller leaves, or its worker is lost. It knows no socket, see `calls`.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from cape_stream.ports.credentials import Scope


class Failure(StrEnum):
    """Why a request has no answer; what the caller may do about it."""

    DEADLINE = "deadline"
    """Its time was up. It may have been carried out."""
    NO_WORKER = "no_worker"
    """Nobody offers the service here; it was not carried out. Try later."""
    BUSY = "busy"
    """Too many wait already; it was not carried out. Try later."""
    WORKER_LOST = "worker_lost"
    """The worker left in the middle of it. It may have been carried out."""
    FAILED = "failed"
    """The worker says that it failed; `detail` has its words."""
    MALFORMED = "malformed"
    """It is no request; correct it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a request, or why there is none."""

    body: msgspec.Raw | None = None
    failure: Failure | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What a worker is asked."""

    request_id: int
    """Its own numbering of the worker's connection."""
    scope: Scope
    """On whose behalf; from the caller's token, never from its words."""
    remaining_ms: int
    body: msgspec.Raw


@dataclass(slots=True, eq=False)
class RelayWorker:
    """A worker that is connected.

    Args:
        service: what it offers.
        window: requests it takes at a time, >= 1.
        ask: sends it a request.
        cancel: tells it that nobody waits any more.
    """

    service: str
    window: int
    ask: Callable[[WorkerRequest], Awaitable[None]]
    cancel: Callable[[int], None]
    under_way: dict[int, asyncio.Future[Outcome]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def begin(self) -> tuple[int, asyncio.Future[Outcome]]:
        """Take a place; whoever got it frees it with `Relay.finish`."""
        number = next(self._numbers)
        future = self.under_way[number] = asyncio.get_running_loop().create_future()
        return number, future

    def answer(self, request_id: int, outcome: Outcome) -> bool:
        """The worker's answer; False if nobody waits for it, which is no fault of the worker."""
        future = self.under_way.get(request_id)
        if future is None or future.done():
            return False
        future.set_result(outcome)
        return True


class Relay:
    """All workers and callers of one process.

    Args:
        waiting_max: requests of a service that may wait for a worker; more are told `busy`.
    """

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._workers: dict[str, set[RelayWorker]] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def join(self, worker: RelayWorker) -> None:
        """A worker offers its service."""
        self._workers.setdefault(worker.service, set()).add(worker)
        for _ in range(worker.window):
            self._wake(worker.service)

    def leave(self, worker: RelayWorker) -> None:
        """A worker is gone; what it had under way has no answer."""
        workers = self._workers.get(worker.service, set())
        workers.discard(worker)
        for future in worker.under_way.values():
            if not future.done():
                future.set_result(Outcome(failure=Failure.WORKER_LOST))
        if not workers:
            self._workers.pop(worker.service, None)
            for waiting in self._waiting.pop(worker.service, ()):
                if not waiting.done():
                    waiting.set_result(None)  # to learn that nobody is left

    async def call(
        self, service: str, scope: Scope, body: msgspec.Raw, deadline_ms: int
    ) -> Outcome:
        """Have a worker answer a request within its time.

        Cancelling it cancels the request at the worker.
        """
        due_s = asyncio.get_running_loop().time() + deadline_ms / 1_000
        try:
            async with asyncio.timeout_at(due_s):
                found = await self._free_worker(service)
                if isinstance(found, Failure):
                    return Outcome(failure=found)
                return await self._ask(found, scope, body, due_s)
        except TimeoutError:
            return Outcome(failure=Failure.DEADLINE)

    async def _ask(
        self, worker: RelayWorker, scope: Scope, body: msgspec.Raw, due_s: float
    ) -> Outcome:
        number, answer = worker.begin()
        is_answered = False
        try:
            remaining_ms = int((due_s - asyncio.get_running_loop().time()) * 1_000)
            await worker.ask(WorkerRequest(number, scope, max(1, remaining_ms), body))
            outcome = await answer
            is_answered = True
            return outcome
        finally:
            del worker.under_way[number]
            if not is_answered:
                worker.cancel(number)
            self._wake(worker.service)

    async def _free_worker(self, service: str) -> RelayWorker | Failure:
        is_first_try = True
        while True:
            workers = self._workers.get(service)
            if not workers:
                return Failure.NO_WORKER
            queue = self._waiting.setdefault(service, deque())
            free = [each for each in workers if len(each.under_way) < each.window]
            # Who comes later does not overtake who waits.
            if free and not (is_first_try and queue):
                return min(free, key=lambda each: len(each.under_way))
            if is_first_try and len(queue) >= self._waiting_max:
                return Failure.BUSY
            await self._wait(service, queue, in_front=not is_first_try)
            is_first_try = False

    async def _wait(
        self, service: str, queue: deque[asyncio.Future[None]], *, in_front: bool
    ) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if in_front:
            queue.appendleft(place)
        else:
            queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._wake(service)  # it was called up and leaves: the next one is
            raise
        finally:
            if place in queue:
                queue.remove(place)

    def _wake(self, service: str) -> None:
        queue = self._waiting.get(service)
        while queue:
            place = queue.popleft()
            if not place.done():
                place.set_result(None)
                return
