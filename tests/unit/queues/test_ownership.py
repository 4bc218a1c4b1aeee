"""Heartbeats, and what happens when a message is not ours any more."""

import asyncio
import threading

import pytest

from cape_stream.errors import Retry
from cape_stream.ports.queue import EntryFailure, FailureKind
from cape_stream.queues.backoff import Backoff
from cape_stream.queues.context import JobContext, Loss
from tests.unit.queues.worlds import Running, Task, World, in_virtual_time, until


@pytest.mark.parametrize("visibility_s", [1, 2, 5, 30])
def test_long_job_is_renewed_and_runs_once_at_any_visibility(visibility_s: int) -> None:
    @in_virtual_time
    async def scene(world: World) -> None:
        queue = world.queue()
        await world.send(queue, *(Task(f"t{n}", visibility_s * 5) for n in range(4)))
        lane = world.lane(queue, visibility_s=visibility_s, concurrency=2)
        running = Running(world.processor(lane))

        await until(lambda: not queue.shelf.messages)
        report = await running.stop()

        assert len(queue.shelf.receives) == 4
        assert report.fates == {"done": 4}

    scene()


@in_virtual_time
async def test_messages_that_wait_for_a_slot_are_renewed_in_tens(world: World) -> None:
    queue = world.queue()
    await world.send(queue, *(Task(f"t{n}", 60.0) for n in range(40)))
    lane = world.lane(queue, visibility_s=30, concurrency=1, prefetch=39)
    running = Running(world.processor(lane))

    await until(lambda: len(world.names("end")) == 5)

    assert len(queue.shelf.receives) == 40
    # 300 s, a beat each 10 s, 40 messages in four calls.
    assert queue.calls["change_visibility"] <= 4 * 32
    await running.stop()


@in_virtual_time
async def test_slow_job_of_two_processors_runs_once(world: World) -> None:
    queue = world.queue()
    await world.send(queue, *(Task(f"t{n}", 6.0) for n in range(10)))
    both = [
        Running(world.processor(world.lane(queue, visibility_s=2, concurrency=2))) for _ in range(2)
    ]

    await until(lambda: not queue.shelf.messages)
    reports = [await each.stop() for each in both]

    assert sorted(world.names("begin")) == [f"t{n}" for n in range(10)]
    assert sum(report.fates.get("done", 0) for report in reports) == 10


@in_virtual_time
async def test_refused_renewal_cancels_the_handler_and_no_delete_follows(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 100.0))
    stale = EntryFailure(FailureKind.STALE, "ReceiptHandleIsInvalid")
    queue.faults.entries["change_visibility"] = [stale]
    running = Running(world.processor(world.lane(queue, visibility_s=30)))

    await until(lambda: bool(world.names("cancelled")))
    cancelled_s = world.now_s
    context = world.contexts[0]

    assert context.loss is Loss.REFUSED
    assert context.remaining_ms == 0
    assert cancelled_s < 30 - 5
    report = await running.stop()
    assert report.fates["lost"] == 1
    assert queue.calls["delete"] == 0


@in_virtual_time
async def test_refused_renewal_of_one_message_ends_that_one_only(world: World) -> None:
    queue = world.queue()
    await world.send(queue, *(Task(f"t{n}", 60.0) for n in range(10)))
    stale = EntryFailure(FailureKind.STALE, "ReceiptHandleIsInvalid")
    running = Running(world.processor(world.lane(queue, visibility_s=30)))
    await until(lambda: len(world.names("begin")) == 10)
    queue.faults.entries["change_visibility"] = [stale]

    await until(lambda: not queue.shelf.messages)
    report = await running.stop()

    (lost,) = world.names("cancelled")
    assert world.names("begin").count(lost) == 2  # it came again, the others ran on
    assert len(world.names("begin")) == 11
    assert report.fates == {"lost": 1, "done": 10}


@in_virtual_time
async def test_renewal_that_fails_twice_cancels_the_handler_before_it_shows_up(
    world: World,
) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 100.0))
    queue.faults.errors["change_visibility"] = [Retry("away"), Retry("away")]
    running = Running(world.processor(world.lane(queue, visibility_s=30)))

    await until(lambda: bool(world.names("cancelled")))

    assert world.contexts[0].loss is Loss.UNRENEWED
    assert world.now_s < 30
    assert len(queue.shelf.receives) == 1
    await running.stop()


@in_virtual_time
async def test_renewal_that_fails_once_is_made_again_and_nobody_notices(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 100.0))
    queue.faults.errors["change_visibility"] = [Retry("away")]
    running = Running(world.processor(world.lane(queue, visibility_s=30)))

    await until(lambda: not queue.shelf.messages)

    assert world.names("end") == ["t"]
    assert len(queue.shelf.receives) == 1
    await running.stop()


@in_virtual_time
async def test_renewals_without_an_answer_cancel_the_handler_in_time(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 300.0))
    queue.faults.latency_s["change_visibility"] = 500.0
    running = Running(world.processor(world.lane(queue, visibility_s=30)))

    await until(lambda: bool(world.names("cancelled")))

    assert world.now_s < 30
    queue.faults.latency_s.clear()
    await running.stop()


@in_virtual_time
async def test_ceiling_cancels_the_job_which_comes_back_as_a_failure(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 10_000.0))
    lane = world.lane(queue, ceiling_s=1_800, backoff=Backoff(first_s=60, max_s=60))
    running = Running(world.processor(lane))

    await until(lambda: bool(world.names("cancelled")))
    cancelled_s = world.now_s
    await until(lambda: len(world.names("begin")) == 2)

    assert 1_799 <= cancelled_s <= 1_801
    assert world.contexts[0].loss is Loss.CEILING
    assert world.contexts[1].attempt == 2
    assert 1_859 <= world.now_s <= 1_862
    assert queue.calls["delete"] == 0
    await running.stop()


@in_virtual_time
async def test_handler_that_ends_after_its_ceiling_is_not_deleted(world: World) -> None:
    queue = world.queue()

    async def stubborn(task: Task, context: JobContext) -> None:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            world.log.append(("ignored", task.name))

    await world.send(queue, Task("t"))
    running = Running(world.processor(world.lane(queue, stubborn, ceiling_s=60)))

    await until(lambda: bool(world.names("ignored")))
    report = await running.stop()

    assert report.fates["returned"] >= 1
    assert "done" not in report.fates
    assert queue.calls["delete"] == 0


@in_virtual_time
async def test_frozen_process_gives_up_what_may_have_shown_up_meanwhile(world: World) -> None:
    queue = world.queue()
    await world.send(queue, Task("long", 400.0), Task("short", 40.0))
    running = Running(world.processor(world.lane(queue, visibility_s=30)))
    await until(lambda: len(world.names("begin")) == 2)

    world.loop.freeze(60.0)
    elsewhere, other = queue.receive_at_once(2, 600)
    await until(lambda: bool(world.names("cancelled")))
    report = await running.stop()

    assert world.names("cancelled") == ["long"]
    assert world.contexts[0].loss is Loss.UNRENEWED
    assert report.fates == {"lost": 2}
    assert queue.calls["delete"] == 0
    assert queue.shelf.messages[other.message_id].receipt == other.receipt
    assert queue.shelf.messages[elsewhere.message_id].receipt == elsewhere.receipt


@in_virtual_time
async def test_beat_does_not_shorten_what_a_handler_asked_for(world: World) -> None:
    queue = world.queue()

    async def asks(task: Task, context: JobContext) -> None:
        await context.extend(600)
        await asyncio.sleep(300)
        world.log.append(("visible", str(queue.shelf.messages["work-1"].visible_ms)))

    await world.send(queue, Task("t"))
    begin_ms = world.clock.now_ms()
    running = Running(world.processor(world.lane(queue, asks, visibility_s=30)))

    await until(lambda: not queue.shelf.messages)

    (visible_ms,) = world.names("visible")
    assert int(visible_ms) - begin_ms >= 600_000
    await running.stop()


@in_virtual_time
async def test_failure_during_a_renewal_is_visible_at_once_and_stays_so(world: World) -> None:
    queue = world.queue()
    queue.faults.latency_s["change_visibility"] = 0.2

    async def fail_in_beat(task: Task, context: JobContext) -> None:
        if context.attempt > 1:
            return
        await asyncio.sleep(0.75)  # the beat left at 0.67 s and answers at 0.87 s
        raise ValueError("now")

    await world.send(queue, Task("t"))
    at_once = Backoff(first_s=0, max_s=0)
    lane = world.lane(queue, fail_in_beat, visibility_s=2, backoff=at_once)
    running = Running(world.processor(lane))

    await until(lambda: not queue.shelf.messages)

    first, second = (when for when, _, _ in queue.shelf.receives)
    assert second - first < 1_500
    await running.stop()


@in_virtual_time
async def test_release_waits_for_a_renewal_that_is_under_way(world: World) -> None:
    queue = world.queue()
    queue.faults.latency_s["change_visibility"] = 1.0

    async def fail_in_beat(task: Task, context: JobContext) -> None:
        if context.attempt > 1:
            return
        await asyncio.sleep(0.75)  # the beat left at 0.67 s and has done its deed at 1.17 s
        queue.faults.latency_s.clear()
        raise ValueError("now")

    await world.send(queue, Task("t"))
    at_once = Backoff(first_s=0, max_s=0)
    lane = world.lane(queue, fail_in_beat, visibility_s=2, backoff=at_once)
    running = Running(world.processor(lane))

    await until(lambda: not queue.shelf.messages)

    first, second = (when for when, _, _ in queue.shelf.receives)
    assert 1_150 <= second - first < 2_000
    await running.stop()


@in_virtual_time
async def test_hold_of_a_message_never_passes_twelve_hours(world: World) -> None:
    queue = world.queue()
    asked: list[int] = []

    async def greedy(task: Task, context: JobContext) -> None:
        await context.extend(43_200)
        asked.append(queue.shelf.messages["work-1"].visible_ms)

    await world.send(queue, Task("t"))
    begin_ms = world.clock.now_ms()
    running = Running(world.processor(world.lane(queue, greedy)))

    await until(lambda: not queue.shelf.messages)

    assert begin_ms + 43_190_000 < asked[0] <= begin_ms + 43_200_000
    await running.stop()


@in_virtual_time
async def test_thread_learns_of_its_loss_and_keeps_its_slot_until_it_ends(world: World) -> None:
    queue = world.queue()
    told, release = threading.Event(), threading.Event()

    def in_thread(task: Task, context: JobContext) -> None:
        while context.loss is None:
            release.wait(0.001)
        told.set()
        release.wait(10)

    await world.send(queue, Task("t"))
    stale = EntryFailure(FailureKind.STALE, "ReceiptHandleIsInvalid")
    queue.faults.entries["change_visibility"] = [stale]
    processor = world.processor(world.lane(queue, in_thread, concurrency=1))
    running = Running(processor)

    while not told.is_set():  # noqa: ASYNC110  # a thread knows no virtual time
        await asyncio.sleep(0.01)
    assert processor.running == 1
    release.set()
    while processor.running:  # noqa: ASYNC110  # a thread, again
        await asyncio.sleep(0.01)
    report = await running.stop()

    assert report.fates["lost"] >= 1
