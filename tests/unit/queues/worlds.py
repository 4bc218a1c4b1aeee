"""A processor in virtual time on strict queues, and handlers that do as they are told."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from cape_stream.adapters.simulated.queue import SimulatedQueue, SimulatedQueues
from cape_stream.adapters.simulated.virtual_loop import VirtualClock, VirtualLoop, run_virtual
from cape_stream.ports.progress import Progress
from cape_stream.ports.queue import OutgoingMessage
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import Handler, MessageType, OwnContract
from cape_stream.queues.lane import Lane
from cape_stream.queues.ledger import DrainReport
from cape_stream.queues.processor import Processor
from cape_stream.queues.settings import LaneSettings, ProcessorSettings

T = TypeVar("T")


class Task(msgspec.Struct, frozen=True):
    """What tests send."""

    name: str
    seconds: float = 0.0


TYPE = MessageType("task", Task)


class World:
    """Everything a processor test needs; made inside a virtual loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.server = SimulatedQueues(self.clock.now_ms)
        self.log: list[tuple[str, str]] = []
        """(what, task name), in order."""
        self.contexts: list[JobContext] = []

    @property
    def now_s(self) -> float:
        return self.loop.time() - 1_000_000.0

    def queue(self, name: str = "work", **traits: Any) -> SimulatedQueue:
        return self.server.create(name, **traits)

    async def send(self, queue: SimulatedQueue, *tasks: Task, group: str | None = None) -> None:
        for task in tasks:
            message = TYPE.outgoing(task, tenant=group)
            assert await queue.send([message]) == [None]

    async def handle(self, task: Task, context: JobContext) -> None:
        """Take as long as the task says, and write down how that went."""
        self.contexts.append(context)
        self.log.append(("begin", task.name))
        try:
            await asyncio.sleep(task.seconds)
        except asyncio.CancelledError:
            self.log.append(("cancelled", task.name))
            raise
        self.log.append(("end", task.name))

    def lane(
        self,
        queue: SimulatedQueue,
        handler: Handler | None = None,
        *,
        name: str | None = None,
        **settings: Any,
    ) -> Lane:
        contract = OwnContract(name or queue.traits.name, (TYPE,))
        return Lane(queue, contract, {"task": handler or self.handle}, LaneSettings(**settings))

    def processor(
        self, *lanes: Lane, interruptions: Progress | None = None, **settings: Any
    ) -> Processor:
        return Processor(
            lanes,
            ProcessorSettings(**settings),
            self.clock,
            interruptions=interruptions,
            chance=lambda: 0.0,
        )

    def names(self, what: str) -> list[str]:
        return [name for kind, name in self.log if kind == what]


class Running:
    """A processor at work."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor
        self.task = asyncio.ensure_future(processor.run())

    async def stop(self) -> DrainReport:
        self.processor.stop()
        return await self.task


async def until(condition: Callable[[], bool], within_s: float = 100_000.0) -> None:
    """Let virtual time pass until something holds."""
    end_s = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, "it never came to that"
        await asyncio.sleep(0.05)


def in_virtual_time(
    scene: Callable[[World], Coroutine[Any, Any, T]],
) -> Callable[[], T]:
    """Turn a scene into a test."""

    def test() -> T:
        async def play() -> T:
            return await scene(World())

        return run_virtual(play())

    test.__name__ = scene.__name__
    test.__module__ = scene.__module__
    return test


def raw(body: str, **attributes: str) -> OutgoingMessage:
    return OutgoingMessage(body, attributes)


Step = Callable[[Task, JobContext], Awaitable[None]]
