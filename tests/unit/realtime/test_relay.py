"""The relay without sockets: who is asked, who waits, and how requests end."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from cape_stream.ports.credentials import Scope
from cape_stream.realtime.relay import Failure, Outcome, Relay, RelayWorker, WorkerRequest

SCOPE = Scope("live", "app", "e-1", "", 0, 60_000, "t")
BODY = msgspec.Raw(b"1")
LONG_MS = 20_000


class Worker:
    """A worker that answers when told to."""

    def __init__(self, relay: Relay, service: str = "db", window: int = 1) -> None:
        self.asked: list[WorkerRequest] = []
        self.cancelled: list[int] = []
        self.entry = RelayWorker(service, window, self._ask, self.cancelled.append)
        relay.join(self.entry)

    async def _ask(self, request: WorkerRequest) -> None:
        self.asked.append(request)

    async def is_asked(self, count: int = 1) -> None:
        async with asyncio.timeout(20):
            while True:
                if len(self.asked) >= count:
                    return
                await asyncio.sleep(0)

    def answer(self, at: int = -1) -> bool:
        return self.entry.answer(self.asked[at].request_id, Outcome(msgspec.Raw(b"2")))


def play(scene: Callable[[Relay], Awaitable[None]], waiting_max: int = 10) -> None:
    async def run() -> None:
        await asyncio.wait_for(scene(Relay(waiting_max)), 30)

    asyncio.run(run())


def call(relay: Relay, deadline_ms: int = LONG_MS) -> asyncio.Task[Outcome]:
    return asyncio.create_task(relay.call("db", SCOPE, BODY, deadline_ms))


def test_a_request_is_answered_by_a_worker_of_its_service() -> None:
    async def scene(relay: Relay) -> None:
        other, worker = Worker(relay, "mail"), Worker(relay)

        asking = call(relay)
        await worker.is_asked()
        worker.answer()

        assert await asking == Outcome(msgspec.Raw(b"2"))
        assert worker.asked[0].scope == SCOPE
        assert 0 < worker.asked[0].remaining_ms <= LONG_MS
        assert other.asked == []
        assert worker.cancelled == []

    play(scene)


def test_without_a_worker_it_fails_at_once() -> None:
    async def scene(relay: Relay) -> None:
        Worker(relay, "mail")

        assert await relay.call("db", SCOPE, BODY, LONG_MS) == Outcome(failure=Failure.NO_WORKER)
        assert await relay.call("x" * 9_999, SCOPE, BODY, 1) == Outcome(failure=Failure.NO_WORKER)

    play(scene)


def test_the_least_busy_worker_is_asked() -> None:
    async def scene(relay: Relay) -> None:
        workers = [Worker(relay, window=3) for _ in range(3)]

        asking = [call(relay) for _ in range(9)]
        for worker in workers:
            await worker.is_asked(3)

        assert [len(worker.asked) for worker in workers] == [3, 3, 3]
        for worker in workers:
            for at in range(3):
                worker.answer(at)
        assert all([(await each).failure is None for each in asking])

    play(scene)


def test_requests_wait_in_order_while_all_are_busy() -> None:
    async def scene(relay: Relay) -> None:
        worker = Worker(relay)
        order: list[int] = []

        async def ask(number: int) -> None:
            await relay.call("db", SCOPE, BODY, LONG_MS)
            order.append(number)

        asking = [asyncio.create_task(ask(number)) for number in range(5)]
        for count in range(1, 6):
            await worker.is_asked(count)
            assert len(worker.asked) == count, "one at a time"
            worker.answer()
        await asyncio.gather(*asking)

        assert order == [0, 1, 2, 3, 4]

    play(scene)


def test_more_than_may_wait_are_told_so() -> None:
    async def scene(relay: Relay) -> None:
        worker = Worker(relay)
        asking = [call(relay) for _ in range(3)]
        await worker.is_asked()

        assert await relay.call("db", SCOPE, BODY, LONG_MS) == Outcome(failure=Failure.BUSY)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    play(scene, waiting_max=2)


def test_a_deadline_ends_it_and_tells_the_worker() -> None:
    async def scene(relay: Relay) -> None:
        worker = Worker(relay)

        outcome = await relay.call("db", SCOPE, BODY, 30)

        assert outcome == Outcome(failure=Failure.DEADLINE)
        assert worker.cancelled == [worker.asked[0].request_id]
        assert not worker.answer(), "a late answer is nobody's"
        assert worker.entry.under_way == {}

    play(scene)


def test_a_deadline_holds_while_waiting_for_a_worker() -> None:
    async def scene(relay: Relay) -> None:
        worker = Worker(relay)
        first = call(relay)
        await worker.is_asked()

        assert await relay.call("db", SCOPE, BODY, 30) == Outcome(failure=Failure.DEADLINE)

        third = call(relay)
        worker.answer()
        await worker.is_asked(2)
        worker.answer()
        assert (await first).failure is None
        assert (await third).failure is None

    play(scene)


def test_a_caller_that_leaves_frees_its_worker() -> None:
    async def scene(relay: Relay) -> None:
        worker = Worker(relay)
        leaving, next_one = call(relay), call(relay)
        await worker.is_asked()

        leaving.cancel()
        await worker.is_asked(2)
        worker.answer()

        assert (await next_one).failure is None
        assert worker.cancelled == [worker.asked[0].request_id]

    play(scene)


def test_a_lost_worker_is_told_to_who_asked_it_and_others_take_over() -> None:
    async def scene(relay: Relay) -> None:
        lost = Worker(relay)
        asked = call(relay)
        await lost.is_asked()
        waiting = call(relay)
        await asyncio.sleep(0)
        other = Worker(relay)

        relay.leave(lost.entry)
        await other.is_asked()
        other.answer()

        assert await asked == Outcome(failure=Failure.WORKER_LOST)
        assert (await waiting).failure is None

    play(scene)


def test_the_last_worker_leaving_is_told_to_who_waits() -> None:
    async def scene(relay: Relay) -> None:
        worker = Worker(relay)
        asked, waiting = call(relay), call(relay)
        await worker.is_asked()

        relay.leave(worker.entry)

        assert await asked == Outcome(failure=Failure.WORKER_LOST)
        assert await waiting == Outcome(failure=Failure.NO_WORKER)

    play(scene)


@pytest.mark.parametrize("seed", range(20))
def test_no_place_is_lost_whatever_ends_requests(seed: int) -> None:
    """After any mix of answers, cancellations and deadlines every place is free again."""
    import random

    chance = random.Random(seed)

    async def scene(relay: Relay) -> None:
        worker = Worker(relay, window=3)
        asking = []
        for _ in range(60):
            asking.append(call(relay, chance.choice([1, 5, LONG_MS])))
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            if worker.asked and chance.random() < 0.6:
                worker.answer(chance.randrange(len(worker.asked)))
            if chance.random() < 0.3:
                chance.choice(asking).cancel()
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert worker.entry.under_way == {}

        last = [call(relay) for _ in range(3)]
        count = len(worker.asked)
        await worker.is_asked(count + 3)
        for at in range(count, count + 3):
            worker.answer(at)
        assert all([(await each).failure is None for each in last])

    play(scene, waiting_max=100)
