"""SIGKILL at any point: from the server's side a process that never says another word."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from cape_stream.adapters.simulated.queue import SimulatedQueue
from cape_stream.ports.queue import (
    EntryFailure,
    OutgoingMessage,
    QueueDepth,
    QueueMessage,
    QueueTraits,
)
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import OwnContract
from cape_stream.queues.lane import Lane
from cape_stream.queues.settings import LaneSettings
from tests.unit.queues.worlds import TYPE, Running, Task, World, in_virtual_time, until

KILLS = 40


class Cable:
    """A queue as one process reaches it; once it is cut, nothing passes and nothing returns.

    A call that has reached the server is carried out there all the same.
    """

    def __init__(self, queue: SimulatedQueue) -> None:
        self.queue = queue
        self.is_cut = False

    @property
    def traits(self) -> QueueTraits:
        return self.queue.traits

    async def receive(self, count: int, wait_s: int, visibility_s: int) -> list[QueueMessage]:
        await self._pass()
        found = await self.queue.receive(count, wait_s, visibility_s)
        await self._pass()
        return found

    async def delete(self, receipts: Sequence[str]) -> list[EntryFailure | None]:
        await self._pass()
        found = await self.queue.delete(receipts)
        await self._pass()
        return found

    async def change_visibility(
        self, changes: Sequence[tuple[str, int]]
    ) -> list[EntryFailure | None]:
        await self._pass()
        found = await self.queue.change_visibility(changes)
        await self._pass()
        return found

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[EntryFailure | None]:
        return await self.queue.send(messages)

    async def depth(self) -> QueueDepth:
        return await self.queue.depth()

    async def purge(self) -> None:
        await self.queue.purge()

    async def _pass(self) -> None:
        if self.is_cut:
            await asyncio.Event().wait()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["work", "work.fifo"])
def test_kill_at_any_point_loses_nothing_and_reruns_nothing_that_was_deleted(
    seed: int, name: str
) -> None:
    @in_virtual_time
    async def scene(world: World) -> None:
        chance = random.Random(seed)
        queue = world.queue(name)
        queue.faults.latency_s = dict.fromkeys(("receive", "delete", "change_visibility"), 0.1)
        begun: list[str] = []
        finished: list[str] = []
        sent = 0
        cable = Cable(queue)

        def lane() -> Lane:
            own = cable

            async def work(task: Task, context: JobContext) -> None:
                if own.is_cut:
                    return
                assert context.message_id in queue.shelf.messages, "it was deleted already"
                begun.append(task.name)
                await asyncio.sleep(task.seconds)
                if not own.is_cut:
                    finished.append(task.name)

            settings = LaneSettings(concurrency=4, prefetch=4, visibility_s=10)
            contract = OwnContract(name, (TYPE,))
            return Lane(own, contract, {TYPE.name: work}, settings)

        dead: list[Running] = []
        for _ in range(KILLS):
            tasks = [Task(f"t{sent + n}", chance.random() * 8) for n in range(6)]
            for task in tasks:
                await world.send(queue, task, group=f"g{chance.randrange(4)}")
            sent += len(tasks)
            dead.append(Running(world.processor(lane())))
            await asyncio.sleep(chance.random() * 12)
            cable.is_cut = True
            cable = Cable(queue)
        last = Running(world.processor(lane()))
        await until(lambda: not queue.shelf.messages)
        report = await last.stop()

        assert report.adds_up
        assert set(finished) == {f"t{n}" for n in range(sent)}
        assert len(begun) < 4 * sent
        for each in dead:
            each.task.cancel()

    scene()
