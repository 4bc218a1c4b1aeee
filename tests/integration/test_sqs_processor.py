"""The processor on real SQS servers: one that is strict about receipts, and one that is not."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.ports.queue import Queue
from cape_stream.queues.backoff import Backoff
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import OwnContract
from cape_stream.queues.lane import Lane
from cape_stream.queues.ledger import DrainReport
from cape_stream.queues.processor import Processor
from cape_stream.queues.sending import send_all
from cape_stream.queues.settings import LaneSettings, ProcessorSettings
from cape_stream.runtime.steady import SteadyClock
from tests.unit.queues.worlds import TYPE, Task

PATIENCE_S = 60.0
SERVERS = [
    pytest.param("moto", id="moto"),
    pytest.param("elasticmq", id="elasticmq", marks=pytest.mark.elasticmq),
]
pytestmark = pytest.mark.timeout(120)


class Site:
    """Queues of one test, and processors on them."""

    def __init__(self, server: SqsServer) -> None:
        self.server = server
        self.run = uuid4().hex[:8]
        self.log: list[tuple[str, str]] = []

    async def create(self, suffix: str = "", **traits: Any) -> Queue:
        return await self.server.create(f"p-{self.run}{suffix}", **traits)

    async def send(self, queue: Queue, *tasks: Task, group: str | None = None) -> None:
        await send_all(queue, [TYPE.outgoing(task, tenant=group) for task in tasks])

    def names(self, what: str) -> list[str]:
        return [name for kind, name in self.log if kind == what]

    async def handle(self, task: Task, context: JobContext) -> None:
        self.log.append(("begin", task.name))
        await asyncio.sleep(task.seconds)
        self.log.append(("end", task.name))

    def processor(self, queue: Queue, handler: Any = None, **settings: Any) -> "Running":
        lane = Lane(
            queue,
            OwnContract(queue.traits.name, (TYPE,)),
            {TYPE.name: handler or self.handle},
            LaneSettings(**settings),
        )
        return Running(
            Processor([lane], ProcessorSettings(wait_s=1, grace_ms=8_000), SteadyClock())
        )


class Running:
    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.task = asyncio.ensure_future(processor.run())

    async def stop(self) -> DrainReport:
        self.processor.stop()
        return await self.task


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came to that"
        await asyncio.sleep(0.02)


@pytest.fixture(params=SERVERS)
def play(request: pytest.FixtureRequest) -> Any:
    settings: SqsSettings = request.getfixturevalue(request.param)

    def run(scene: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            server = SqsServer(settings)
            try:
                await scene(Site(server))
            finally:
                await server.close()

        asyncio.run(whole())

    return run


def test_jobs_longer_than_their_visibility_run_once_on_two_processors(play: Any) -> None:
    async def scene(site: Site) -> None:
        queue = await site.create()
        await site.send(queue, *(Task(f"t{n}", 9.0) for n in range(8)))
        both = [site.processor(queue, visibility_s=6, concurrency=2) for _ in range(2)]

        await until(lambda: len(site.names("end")) == 8)
        reports = [await each.stop() for each in both]

        assert sorted(site.names("begin")) == [f"t{n}" for n in range(8)]
        assert all(report.adds_up for report in reports)
        depth = await queue.depth()
        assert (depth.visible, depth.in_flight) == (0, 0)

    play(scene)


def test_message_sent_into_the_last_poll_is_visible_after_the_exit(play: Any) -> None:
    async def scene(site: Site) -> None:
        queue = await site.create()
        running = site.processor(queue, visibility_s=600)
        await asyncio.sleep(0.5)

        stopping = asyncio.ensure_future(running.stop())
        await site.send(queue, Task("late"))
        report = await stopping
        found = await queue.receive(1, 2, 30)

        assert len(found) == 1
        assert report.adds_up
        assert report.received == report.fates.get("handed_back", 0)

    play(scene)


def test_drains_under_load_strand_nothing_and_redeliver_nothing_finished(play: Any) -> None:
    async def scene(site: Site) -> None:
        chance = random.Random(5)
        queue = await site.create()
        finished: list[str] = []
        again: list[str] = []

        async def work(task: Task, context: JobContext) -> None:
            again.extend(name for name in finished if name == task.name)
            await asyncio.sleep(task.seconds)
            finished.append(task.name)

        sent = 0
        for _ in range(5):
            tasks = [Task(f"t{sent + n}", chance.random() / 2) for n in range(25)]
            sent += len(tasks)
            await site.send(queue, *tasks)
            running = site.processor(queue, work, concurrency=4, prefetch=6, visibility_s=600)
            await asyncio.sleep(chance.random())
            report = await running.stop()
            assert report.adds_up, report.as_json()
            assert (await queue.depth()).in_flight == 0

        assert again == []
        assert len(finished) + (await queue.depth()).visible == sent

    play(scene)


def test_message_that_always_fails_is_parked_as_it_was(play: Any) -> None:
    async def scene(site: Site) -> None:
        letters = await site.create("-dead")
        queue = await site.create(dead_letter_queue=letters.traits.name, receives_max=3)

        async def fail(task: Task, context: JobContext) -> None:
            site.log.append(("begin", f"{task.name} {context.attempt}"))
            if task.name == "bad":
                raise ValueError("always")

        await site.send(queue, Task("bad"), Task("good"))
        at_once = Backoff(first_s=0, max_s=0)
        running = site.processor(queue, fail, backoff=at_once)
        found: list[Any] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while not found:
            assert time.monotonic() < deadline_s
            found = await letters.receive(1, 1, 30)
        await running.stop()

        assert site.names("begin").count("good 1") == 1
        assert [name for name in site.names("begin") if name != "good 1"] == [
            "bad 1",
            "bad 2",
            "bad 3",
        ]
        assert '"name":"bad"' in found[0].body

    play(scene)


def test_fifo_keeps_the_order_of_a_group(play: Any) -> None:
    async def scene(site: Site) -> None:
        queue = await site.create(".fifo")
        for number in range(6):
            for group in "ab":
                await site.send(queue, Task(f"{group}{number}", 0.05), group=group)
        running = site.processor(queue, concurrency=6)

        await until(lambda: len(site.names("end")) == 12)
        report = await running.stop()

        for group in "ab":
            mine = [name for name in site.names("begin") if name[0] == group]
            assert mine == [f"{group}{number}" for number in range(6)]
        assert report.adds_up

    play(scene)
