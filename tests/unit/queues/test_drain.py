"""The stop: nothing stranded, nothing finished and redelivered, whatever happens meanwhile."""

import asyncio
import random

from cape_stream.adapters.local import MemoryProgress
from cape_stream.errors import Retry
from cape_stream.ports.queue import EntryFailure, FailureKind
from cape_stream.queues.context import HandedBackError, JobContext
from tests.unit.queues.worlds import Running, Task, World, in_virtual_time, until


@in_virtual_time
async def test_message_that_the_last_poll_brings_is_visible_again_after_the_exit(
    world: World,
) -> None:
    queue = world.queue()
    running = Running(world.processor(world.lane(queue, visibility_s=600)))
    await asyncio.sleep(5)

    running.processor.stop()
    await asyncio.sleep(1)
    await world.send(queue, Task("late"))
    report = await running.task

    assert (report.received, report.fates) == (1, {"handed_back": 1})
    assert queue.shelf.depth(world.clock.now_ms()).visible == 1


@in_virtual_time
async def test_receive_that_is_cut_off_strands_a_message_on_this_queue(world: World) -> None:
    queue = world.queue()
    poll = asyncio.ensure_future(queue.receive(10, 20, 600))
    await asyncio.sleep(1)

    poll.cancel()
    await world.send(queue, Task("late"))
    await asyncio.sleep(1)

    assert queue.shelf.depth(world.clock.now_ms()).in_flight == 1


@in_virtual_time
async def test_drain_lets_running_jobs_finish_and_hands_waiting_ones_back(world: World) -> None:
    queue = world.queue()
    await world.send(queue, *(Task(f"t{n}", 30.0) for n in range(8)))
    lane = world.lane(queue, concurrency=3, visibility_s=60)
    running = Running(world.processor(lane, grace_ms=60_000))
    await until(lambda: len(world.names("begin")) == 3)

    report = await running.stop()

    assert sorted(world.names("end")) == ["t0", "t1", "t2"]
    assert report.fates == {"done": 3, "handed_back": 5}
    assert queue.shelf.depth(world.clock.now_ms()).visible == 5
    assert report.adds_up


@in_virtual_time
async def test_drain_cancels_what_does_not_finish_and_hands_it_back(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("long", 1_000.0))
    running = Running(world.processor(world.lane(queue), grace_ms=30_000))
    await until(lambda: bool(world.names("begin")))
    begin_s = world.now_s

    report = await running.stop()

    assert world.names("cancelled") == ["long"]
    assert report.fates == {"handed_back": 1}
    assert world.now_s - begin_s <= 30
    assert queue.shelf.depth(world.clock.now_ms()).visible == 1


@in_virtual_time
async def test_drain_ends_in_time_with_a_handler_that_never_ends(world: World) -> None:
    queue = world.queue()

    async def hang(task: Task, context: JobContext) -> None:
        while world.now_s < 5_000:
            try:
                await asyncio.sleep(10_000)
            except asyncio.CancelledError:
                world.log.append(("ignored", task.name))

    await world.send(queue, Task("hung"))
    running = Running(world.processor(world.lane(queue, hang), grace_ms=30_000))
    await asyncio.sleep(1)
    begin_s = world.now_s

    report = await running.stop()

    assert world.now_s - begin_s <= 31
    assert (report.hung, report.fates) == (1, {"handed_back": 1})
    assert report.adds_up
    assert queue.shelf.depth(world.clock.now_ms()).visible == 1
    world.loop.freeze(10_000)


@in_virtual_time
async def test_second_stop_changes_nothing(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 25.0))
    running = Running(world.processor(world.lane(queue), grace_ms=60_000))
    await until(lambda: bool(world.names("begin")))

    running.processor.stop()
    await asyncio.sleep(3)
    report = await running.stop()

    assert world.names("end") == ["t"]
    assert report.fates == {"done": 1}


@in_virtual_time
async def test_half_full_buffer_of_deletes_is_flushed(world: World) -> None:
    queue = world.queue()
    await world.send(queue, *(Task(f"t{n}") for n in range(3)))
    processor = world.processor(world.lane(queue), linger_ms=1_000)
    running = Running(processor)
    await until(lambda: len(world.names("end")) == 3)

    report = await running.stop()

    assert report.fates == {"done": 3}
    assert not queue.shelf.messages


@in_virtual_time
async def test_handler_that_looks_can_stop_between_two_steps_uncharged(world: World) -> None:
    queue = world.queue()
    interruptions = MemoryProgress()
    attempts: list[int] = []

    async def steps(task: Task, context: JobContext) -> None:
        attempts.append(context.attempt)
        for _ in range(1_000):
            if context.stopping:
                raise HandedBackError("after this step")
            await asyncio.sleep(1)

    await world.send(queue, Task("t"))
    for _ in range(10):
        lane = world.lane(queue, steps, attempts_max=3)
        running = Running(world.processor(lane, interruptions=interruptions))
        await asyncio.sleep(5)
        report = await running.stop()
        assert report.fates == {"handed_back": 1}

    assert attempts == [1] * 10


@in_virtual_time
async def test_ten_drains_do_not_park_a_healthy_message_but_three_failures_do(
    world: World,
) -> None:
    letters = world.queue("letters")
    queue = world.queue("ingest", dead_letter_queue="letters", receives_max=13)
    interruptions = MemoryProgress()
    await world.send(queue, Task("t", 1_000.0))
    for _ in range(10):
        lane = world.lane(queue, attempts_max=3)
        running = Running(world.processor(lane, interruptions=interruptions))
        await asyncio.sleep(5)
        assert (await running.stop()).fates == {"handed_back": 1}
    assert not letters.shelf.messages

    async def fail(task: Task, context: JobContext) -> None:
        world.log.append(("failed", str(context.attempt)))
        raise ValueError("always")

    lane = world.lane(queue, fail, attempts_max=3)
    running = Running(world.processor(lane, interruptions=interruptions))
    await until(lambda: bool(letters.shelf.messages))
    await running.stop()

    assert world.names("failed") == ["1", "2", "3"]
    assert list(letters.shelf.messages) == ["ingest-1"]


@in_virtual_time
async def test_release_that_the_queue_refuses_is_reported_as_stranded(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 1_000.0))
    running = Running(world.processor(world.lane(queue, visibility_s=600)))
    await until(lambda: bool(world.names("begin")))
    refused = EntryFailure(FailureKind.REFUSED, "AccessDenied")
    queue.faults.entries["change_visibility"] = [refused]

    report = await running.stop()

    assert report.fates == {"stranded": 1}
    assert not report.adds_up


@in_virtual_time
async def test_drain_while_the_server_is_away_ends_in_time_and_does_not_add_up(
    world: World,
) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 10.0))
    running = Running(world.processor(world.lane(queue, visibility_s=600), grace_ms=30_000))
    await until(lambda: bool(world.names("begin")))
    queue.faults.errors = {call: [Retry("away")] * 1_000 for call in ("delete", "receive")}
    begin_s = world.now_s

    report = await running.stop()

    assert world.now_s - begin_s <= 31
    assert not report.adds_up


@in_virtual_time
async def test_hundred_drains_under_load_strand_nothing_and_redeliver_nothing_finished(
    world: World,
) -> None:
    chance = random.Random(3)
    queue = world.queue()
    queue.faults.latency_s = {"delete": 0.05, "change_visibility": 0.05, "receive": 0.02}
    finished: list[str] = []
    again: list[str] = []

    async def work(task: Task, context: JobContext) -> None:
        if task.name in finished:
            again.append(task.name)
        await asyncio.sleep(task.seconds)
        finished.append(task.name)

    sent = 0
    for _ in range(100):
        tasks = [Task(f"t{sent + n}", chance.random() * 10) for n in range(30)]
        sent += len(tasks)
        await world.send(queue, *tasks)
        lane = world.lane(queue, work, concurrency=5, prefetch=5, visibility_s=60)
        running = Running(world.processor(lane, grace_ms=40_000))
        await asyncio.sleep(chance.random() * 20)
        stopping = asyncio.ensure_future(running.stop())
        await asyncio.sleep(chance.random())
        await world.send(queue, Task(f"t{sent}"))
        sent += 1
        report = await stopping

        assert report.adds_up, report.as_json()
        assert queue.shelf.depth(world.clock.now_ms()).in_flight == 0
    assert again == []
    assert len(finished) + len(queue.shelf.messages) == sent
