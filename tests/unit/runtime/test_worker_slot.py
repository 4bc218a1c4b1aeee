import asyncio
import threading

from cape_stream.model.status import StatusKind
from cape_stream.ports.log import Record
from cape_stream.runtime.worker_ages import JobAges
from cape_stream.runtime.worker_claims import ClaimDesk
from cape_stream.runtime.worker_executors import LoopThread
from cape_stream.runtime.worker_handler import Executor
from cape_stream.runtime.worker_reports import Reports
from cape_stream.runtime.worker_slot import Slot, SlotContext
from cape_stream.sdk import Batch
from tests.unit.runtime.worker_worlds import DEADLINE_S, PlainWorld


def open_slot(world: PlainWorld, loop: LoopThread | None = None) -> tuple[Slot, Reports]:
    reports = Reports(world.log, world.codec, world.names)
    context = SlotContext(
        codec=world.codec,
        clock=world.clock,
        names=world.names,
        handlers=world.handlers(),
        reports=reports,
        loop=loop or LoopThread(),
        executor=Executor.THREAD,
        clock_skew_ms=5_000,
        ages=JobAges(),
        claims=ClaimDesk(None, 16_384),
    )
    return Slot(context), reports


def record(world: PlainWorld, *, timeout_ms: int = 30_000, waited_ms: int = 0) -> Record:
    job = world.job("delays", timeout_ms=timeout_ms, waited_ms=waited_ms)
    value = world.codec.encode_job(job)
    return Record(world.names.jobs("general"), job.partition, 0, 0, b"N1", value)


def kinds(world: PlainWorld, reports: Reports) -> list[StatusKind]:
    reports.pump(0)
    return [status.kind for status in world.statuses()]


def test_slot_beats_at_every_third_of_the_timeout() -> None:
    world = PlainWorld()
    beaten_ms: list[int] = []

    def work(batch: Batch) -> None:
        start_ms = world.clock.now_ms()
        for _ in range(3_500):
            world.clock.sleep_ms(10)
            before = slot.counters.heartbeats
            slot.beat(world.clock.now_ms())
            if slot.counters.heartbeats > before:
                beaten_ms.append(world.clock.now_ms() - start_ms)

    world.handle("delays", work)
    slot, reports = open_slot(world)
    slot.serve(record(world))

    assert beaten_ms == [10_000, 20_000, 30_000]
    assert kinds(world, reports) == [StatusKind.HEARTBEAT] * 3 + [StatusKind.RESULTS]


def test_slot_without_a_job_has_nothing_to_say() -> None:
    world = PlainWorld()
    world.handle("delays", lambda batch: None)
    slot, reports = open_slot(world)
    slot.beat(world.clock.now_ms())
    slot.hand_back()
    slot.serve(record(world))
    slot.beat(world.clock.now_ms() + 60_000)
    slot.hand_back()

    assert kinds(world, reports) == [StatusKind.RESULTS]


def test_job_that_was_handed_back_is_not_reported_again_when_it_ends() -> None:
    world = PlainWorld()
    world.handle("delays", lambda batch: slot.hand_back())
    slot, reports = open_slot(world)
    slot.serve(record(world))

    assert kinds(world, reports) == [StatusKind.HANDED_BACK]
    assert (slot.counters.handed_back, slot.counters.done, slot.counters.running) == (1, 0, 0)


def test_handing_back_an_async_job_ends_its_handler() -> None:
    world = PlainWorld()
    begun = threading.Event()

    async def work(batch: Batch) -> None:
        begun.set()
        await asyncio.sleep(600)

    world.handle("delays", work)
    loop = LoopThread()
    slot, reports = open_slot(world, loop)
    thread = threading.Thread(target=slot.serve, args=(record(world),))
    thread.start()
    assert begun.wait(DEADLINE_S)
    slot.hand_back()
    thread.join(DEADLINE_S)
    ended = not thread.is_alive()
    loop.close(1_000)

    assert ended
    assert kinds(world, reports) == [StatusKind.HANDED_BACK]


def test_deadline_of_a_batch_is_its_timeout_from_when_it_began() -> None:
    world = PlainWorld()
    remaining_ms: list[int] = []
    world.handle("delays", lambda batch: remaining_ms.append(batch.remaining_ms))
    slot, _ = open_slot(world)
    slot.serve(record(world, waited_ms=29_000))

    assert remaining_ms == [30_000]
