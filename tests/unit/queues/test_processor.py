"""What a processor does while all is well, and what it does when a handler or the queue fails."""

import asyncio
import itertools
import random
import threading

import pytest

from cape_stream.errors import Fatal, Reject, Retry
from cape_stream.ports.queue import EntryFailure, FailureKind
from cape_stream.queues.backoff import Backoff
from cape_stream.queues.context import HandedBackError, JobContext, Loss
from tests.unit.queues.worlds import Running, Task, World, in_virtual_time, raw, until


@in_virtual_time
async def test_processor_deletes_what_is_done(world: World) -> None:
    queue = world.queue()
    await world.send(queue, *(Task(f"t{number}") for number in range(25)))
    running = Running(world.processor(world.lane(queue)))

    await until(lambda: not queue.shelf.messages)
    report = await running.stop()

    assert sorted(world.names("end")) == sorted(f"t{number}" for number in range(25))
    assert report.adds_up
    assert (report.received, report.fates) == (25, {"done": 25})
    assert queue.calls["delete"] < 10


@in_virtual_time
async def test_processor_refills_slot_by_slot_while_one_is_slow(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("slow", 100.0), *(Task(f"t{n}", 1.0) for n in range(20)))
    running = Running(world.processor(world.lane(queue, concurrency=2)))

    await until(lambda: len(world.names("end")) == 20)

    assert world.names("end") == [f"t{n}" for n in range(20)]
    assert world.now_s < 30
    await running.stop()


@in_virtual_time
async def test_processor_is_fair_between_queues_when_slots_are_few(world: World) -> None:
    busy, quiet = world.queue("busy"), world.queue("quiet")
    await world.send(busy, *(Task(f"b{n}", 1.0) for n in range(40)))
    await world.send(quiet, *(Task(f"q{n}", 1.0) for n in range(10)))
    processor = world.processor(world.lane(busy), world.lane(quiet), concurrency=2)
    running = Running(processor)

    await until(lambda: len(world.names("end")) >= 20)

    ended = world.names("end")[:20]
    assert sum(name.startswith("q") for name in ended) >= 9
    await running.stop()


@in_virtual_time
async def test_failure_comes_back_after_a_growing_wait_as_the_same_message(world: World) -> None:
    queue = world.queue()

    async def fail(task: Task, context: JobContext) -> None:
        world.log.append((f"{world.now_s:.0f}", task.name))
        raise ValueError("no")

    backoff = Backoff(first_s=2, max_s=8)
    await world.send(queue, Task("t"))
    running = Running(world.processor(world.lane(queue, fail, backoff=backoff)))

    await until(lambda: len(world.log) == 5)
    report = await running.stop()

    times = [int(when) for when, _ in world.log]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert waits == [2, 4, 8, 8]
    assert queue.calls["send"] == 1
    assert report.fates["returned"] == 5


@in_virtual_time
async def test_retry_names_its_own_wait(world: World) -> None:
    queue = world.queue()

    async def later(task: Task, context: JobContext) -> None:
        world.log.append((f"{world.now_s:.0f}", task.name))
        raise Retry("busy", 7_000)

    await world.send(queue, Task("t"))
    running = Running(world.processor(world.lane(queue, later)))

    await until(lambda: len(world.log) == 2)

    assert [when for when, _ in world.log] == ["0", "7"]
    await running.stop()


@in_virtual_time
async def test_handler_that_gives_up_a_subtask_fails_and_frees_its_slot(world: World) -> None:
    queue = world.queue()

    async def confused(task: Task, context: JobContext) -> None:
        raise asyncio.CancelledError

    await world.send(queue, Task("t"))
    processor = world.processor(world.lane(queue, confused))
    running = Running(processor)

    await until(lambda: processor.ledger.fates["returned"] == 1)

    assert processor.running == 0
    assert (await running.stop()).adds_up


@in_virtual_time
async def test_ten_thousand_random_failures_leave_no_slot_taken(world: World) -> None:
    chance = random.Random(7)
    queue = world.queue()
    errors = (ValueError, Reject, Retry, HandedBackError, asyncio.CancelledError, SystemExit)

    async def roll(task: Task, context: JobContext) -> None:
        await asyncio.sleep(chance.random())
        if chance.random() < 0.5:
            raise chance.choice(errors)("no")

    async def supply() -> None:
        while processor.ledger.received < 10_000:
            if len(queue.shelf.messages) < 100:
                await world.send(queue, *(Task("t") for _ in range(50)))
            if chance.random() < 0.2:
                queue.faults.errors = {"delete": [Retry("away")], "receive": [Retry("away")]}
            if chance.random() < 0.2:
                queue.faults.entries = {"delete": [EntryFailure(FailureKind.TRANSIENT, "later")]}
            await asyncio.sleep(1.0)

    short = Backoff(first_s=1, max_s=1)
    lane = world.lane(queue, roll, concurrency=50, backoff=short, unhandled=short)
    processor = world.processor(lane)
    running = Running(processor)
    await supply()
    report = await running.stop()

    assert processor.running == 0
    assert (lane.book.room, len(lane.book.running)) == (lane.book.capacity, 0)
    assert report.adds_up, report.as_json()
    assert report.received >= 10_000


@in_virtual_time
async def test_message_of_no_known_type_goes_back_with_a_delay_and_is_counted(
    world: World,
) -> None:
    queue = world.queue()
    await queue.send([raw('{"type": "thumbnail.v9", "body": {}}'), raw("not json")])
    processor = world.processor(world.lane(queue))
    running = Running(processor)

    await until(lambda: world.now_s > 85)
    report = await running.stop()

    assert len(queue.shelf.messages) == 2
    assert report.fates == {"unhandled": 4}
    assert processor.ledger.by_type == {"work/thumbnail.v9": 2, "work/undecodable": 2}


@in_virtual_time
async def test_thread_handler_runs_and_its_loss_is_visible_to_it(world: World) -> None:
    queue = world.queue()
    seen: list[tuple[str, int]] = []

    def in_thread(task: Task, context: JobContext) -> None:
        seen.append((threading.current_thread().name[:8], context.attempt))

    await world.send(queue, Task("t"))
    processor = world.processor(world.lane(queue, in_thread))
    running = Running(processor)

    while queue.shelf.messages:  # noqa: ASYNC110  # a thread knows no virtual time
        await asyncio.sleep(0.001)
    report = await running.stop()

    assert seen == [("cape-job", 1)]
    assert report.fates == {"done": 1}


@in_virtual_time
async def test_receive_that_fails_is_tried_again_and_said_once(world: World) -> None:
    queue = world.queue()
    queue.faults.errors["receive"] = [Retry("InvalidClientTokenId: the token is not valid")] * 3
    lane = world.lane(queue)
    await world.send(queue, Task("t"))
    running = Running(world.processor(lane))

    await until(lambda: queue.calls["receive"] == 2)
    troubles = [lane.trouble]
    await until(lambda: not queue.shelf.messages)
    troubles.append(lane.trouble)

    assert troubles == ["InvalidClientTokenId: the token is not valid", None]
    assert 3 <= world.now_s <= 10
    await running.stop()


@in_virtual_time
async def test_delete_that_fails_for_one_entry_is_repeated_for_that_one(world: World) -> None:
    queue = world.queue()
    queue.faults.entries["delete"] = [EntryFailure(FailureKind.TRANSIENT, "InternalError")]
    await world.send(queue, *(Task(f"t{n}") for n in range(10)))
    running = Running(world.processor(world.lane(queue)))

    await until(lambda: not queue.shelf.messages)
    report = await running.stop()

    assert queue.calls["delete"] == 2
    assert report.fates == {"done": 10}


@in_virtual_time
async def test_fifo_runs_a_group_in_order_and_holds_it_behind_a_failure(world: World) -> None:
    queue = world.queue("work.fifo")
    failed: list[str] = []

    async def once(task: Task, context: JobContext) -> None:
        if task.name == "a1" and not failed:
            failed.append(task.name)
            raise ValueError("first time")
        await world.handle(task, context)

    for name in ("a0", "a1", "a2", "b0", "a3", "b1"):
        await world.send(queue, Task(name, 1.0), group=name[0])
    running = Running(world.processor(world.lane(queue, once, concurrency=4)))

    await until(lambda: not queue.shelf.messages)
    report = await running.stop()

    order = world.names("begin")
    assert [name for name in order if name[0] == "a"] == ["a0", "a1", "a2", "a3"]
    assert [name for name in order if name[0] == "b"] == ["b0", "b1"]
    assert order.index("b1") < order.index("a1")
    assert report.adds_up


@in_virtual_time
async def test_loop_that_ends_by_a_defect_drains_and_ends_the_processor(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 5.0))
    processor = world.processor(world.lane(queue))
    running = Running(processor)
    await until(lambda: bool(world.names("begin")))

    processor.heartbeats._wheel = None  # type: ignore[assignment]  # a defect of ours
    processor.heartbeats._earlier.set()

    with pytest.raises(Fatal, match="a defect ended a loop of the processor"):
        await running.task
    assert processor.is_stopping


@in_virtual_time
async def test_handler_sees_attempt_and_remaining_time(world: World) -> None:
    queue = world.queue()
    seen: list[tuple[int, int]] = []

    async def look(task: Task, context: JobContext) -> None:
        await asyncio.sleep(10)
        seen.append((context.attempt, context.remaining_ms))
        if context.attempt == 1:
            raise ValueError("once")

    await world.send(queue, Task("t"))
    running = Running(world.processor(world.lane(queue, look, ceiling_s=60)))

    await until(lambda: len(seen) == 2)

    assert seen == [(1, 50_000), (2, 50_000)]
    await running.stop()


def test_every_loss_has_its_own_word() -> None:
    assert len({str(each) for each in Loss}) == len(Loss)
