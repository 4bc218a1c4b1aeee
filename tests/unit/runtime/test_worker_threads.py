import asyncio
import multiprocessing
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cape_stream.errors import Fatal
from cape_stream.model.job import Job
from cape_stream.model.status import FailureClass, StatusKind
from cape_stream.ports.clock import Clock
from cape_stream.ports.log import TopicPartition
from cape_stream.runtime.worker import Worker
from cape_stream.runtime.worker_handler import Executor, HandlerKey, JobOutcome
from cape_stream.runtime.worker_settings import WorkerSettings
from cape_stream.sdk import Batch, EventResult
from tests.unit.runtime.process_handlers import die_for_n1, report_process, sleep_long
from tests.unit.runtime.worker_worlds import (
    DEADLINE_S,
    PARTITIONS,
    WorkerWorld,
    running,
    threaded_world,
    wait_for,
    wait_until,
)


def settings(**given: Any) -> WorkerSettings:
    """With a grace period no test outlives: a worker that waits for nothing does not stop."""
    return WorkerSettings(**{"queues": ("general",), "grace_ms": 3_600_000, **given})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WorkerWorld]:
    with threaded_world(tmp_path) as each:
        yield each


class Gate:
    """A handler that waits at a gate for the subjects named ``slow``."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.order: list[str] = []

    def __call__(self, batch: Batch) -> None:
        self.order.append(batch.subject)
        if batch.subject.startswith("slow"):
            self.entered.release()
            assert self.opened.wait(DEADLINE_S)

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=DEADLINE_S)


def test_slow_job_holds_one_slot_and_delays_nobody_else(world: WorkerWorld) -> None:
    gate = Gate()
    world.handle("delays", gate)
    with running(world.worker(settings(concurrency=2))) as worker:
        slow = world.issue(world.job("delays", "slow"))
        gate.wait_entered()
        quick = [world.issue(world.job("delays", f"N{n}")).job_id for n in range(200)]
        wait_for(worker, lambda counters: counters.done == 200)
        assert worker.counters().running == 1
        gate.opened.set()
        wait_for(worker, lambda counters: counters.done == 201)

    assert sorted(world.done()) == sorted([*quick, slow.job_id])


def test_async_handlers_run_side_by_side_on_one_loop(world: WorkerWorld) -> None:
    present: set[str] = set()
    threads: set[str] = set()
    all_there = asyncio.Event()

    async def meet(batch: Batch) -> None:
        threads.add(threading.current_thread().name)
        present.add(batch.subject)
        if len(present) == 3:
            all_there.set()
        await all_there.wait()

    async def stream(batch: Batch) -> AsyncIterator[EventResult]:
        for event in batch:
            await asyncio.sleep(0)
            yield event.fail("invalid") if event.sequence == 2 else event.done()

    world.handle("delays", meet)
    world.handle("rotations", stream)
    with running(world.worker(settings(concurrency=3))) as worker:
        for subject in ("N1", "N2", "N3"):
            world.issue(world.job("delays", subject))
        wait_for(worker, lambda counters: counters.done == 3)
        world.issue(world.job("rotations"))
        wait_for(worker, lambda counters: counters.events_failed[FailureClass.INVALID] == 1)

    assert threads == {"cape-handlers-loop"}
    assert len(world.done()) == 3


def test_running_job_sends_heartbeats_and_its_result_even_after_the_timeout(
    world: WorkerWorld,
) -> None:
    gate = Gate()
    world.handle("delays", gate, timeout_ms=150)
    with running(world.worker(settings())) as worker:
        job = world.issue(world.job("delays", "slow", timeout_ms=150))
        wait_for(worker, lambda counters: counters.heartbeats >= 4)
        gate.opened.set()
        wait_for(worker, lambda counters: counters.done == 1)

    beats = world.statuses(StatusKind.HEARTBEAT)
    assert len(beats) == worker.counters().heartbeats
    assert {(beat.job_id, beat.attempt, beat.subject) for beat in beats} == {
        (job.job_id, 2, "slow")
    }
    assert world.done() == [job.job_id]


def test_job_that_waited_long_says_at_once_that_it_runs(world: WorkerWorld) -> None:
    gate = Gate()
    world.handle("delays", gate, timeout_ms=600_000)
    with running(world.worker(settings())) as worker:
        world.issue(world.job("delays", "slow", waited_ms=250_000, timeout_ms=600_000))
        world.issue(world.job("delays", "slow too", waited_ms=100_000, timeout_ms=600_000))
        gate.wait_entered()
        gate.wait_entered()
        wait_for(worker, lambda counters: counters.heartbeats == 1)
        gate.opened.set()

    assert [beat.subject for beat in world.statuses(StatusKind.HEARTBEAT)] == ["slow"]


def test_buffer_is_bounded_and_only_what_a_slot_took_is_committed(world: WorkerWorld) -> None:
    gate = Gate()
    world.handle("delays", gate)
    for number in range(300):
        world.issue(world.job("delays", f"slow-{number}"))
        world.issue(world.job("delays", f"slow-{number}"), backlog=True)
    worker = world.worker(settings(concurrency=2, prefetch=8, grace_ms=0))
    with running(worker):
        gate.wait_entered()
        gate.wait_entered()
        wait_for(worker, lambda counters: counters.waiting >= 16)
        for _ in range(20):
            assert worker.counters().waiting <= 4 * 8
            world.clock.sleep_ms(10)
    gate.opened.set()
    other = world.worker(settings(concurrency=2, prefetch=8))
    with running(other):
        wait_for(other, lambda counters: counters.taken == 598)

    assert worker.counters().taken == 2
    assert len(world.statuses(StatusKind.HANDED_BACK)) == 2
    assert len(set(world.done())) == 598


def test_live_job_overtakes_a_backlog_that_fills_the_buffer(world: WorkerWorld) -> None:
    gate = Gate()
    world.handle("delays", gate)
    with running(world.worker(settings(concurrency=1, prefetch=4))) as worker:
        world.issue(world.job("delays", "slow"), backlog=True)
        gate.wait_entered()
        for number in range(100):
            world.issue(world.job("delays", f"old-{number}"), backlog=True)
        wait_for(worker, lambda counters: counters.waiting >= 4)
        world.clock.sleep_ms(50)  # the poll that filled it is over: from here on it is paused
        before = worker.counters().waiting
        world.issue(world.job("delays", "new"))
        wait_for(worker, lambda counters: counters.waiting == before + 1)
        gate.opened.set()
        wait_for(worker, lambda counters: counters.done == 102)

    assert gate.order[:2] == ["slow", "new"]


def test_live_job_finds_a_slot_while_backlog_jobs_hold_all_they_may(world: WorkerWorld) -> None:
    gate = Gate()
    world.handle("delays", gate)
    with running(world.worker(settings(concurrency=3, live_slots=1))) as worker:
        for number in range(5):
            world.issue(world.job("delays", f"slow-{number}"), backlog=True)
        gate.wait_entered()
        gate.wait_entered()
        wait_for(worker, lambda counters: counters.waiting == 3)
        live = world.issue(world.job("delays", "new"))
        wait_for(worker, lambda counters: counters.done == 1)
        assert world.done() == [live.job_id]
        assert worker.counters().running == 2
        gate.opened.set()
        wait_for(worker, lambda counters: counters.done == 6)


def test_backlog_job_wakes_a_slot_that_may_take_it(world: WorkerWorld) -> None:
    world.handle("delays", lambda batch: None)
    with running(world.worker(settings(concurrency=4, live_slots=3))) as worker:
        for number in range(20):
            world.issue(world.job("delays", f"old-{number}"), backlog=True)
            wait_until(lambda: worker.counters().done > number)  # noqa: B023  # waited for here


def test_only_slot_of_a_worker_takes_backlog_jobs_too(world: WorkerWorld) -> None:
    world.handle("delays", lambda batch: None)
    with running(world.worker(settings(concurrency=1, live_slots=1))) as worker:
        world.issue(world.job("delays", "old"), backlog=True)
        wait_for(worker, lambda counters: counters.done == 1)


def test_stop_lets_running_jobs_finish(world: WorkerWorld) -> None:
    gate = Gate()
    world.handle("delays", gate)
    with running(world.worker(settings(concurrency=1))) as worker:
        job = world.issue(world.job("delays", "slow"))
        gate.wait_entered()
        worker.stop()
        world.clock.sleep_ms(100)
        gate.opened.set()

    assert world.done() == [job.job_id]
    assert worker.counters().handed_back == 0


def test_stop_hands_back_what_does_not_finish_and_leaves_the_rest_to_others(
    world: WorkerWorld,
) -> None:
    gate = Gate()
    world.handle("delays", gate)
    first = world.worker(settings(concurrency=1, grace_ms=50))
    with running(first):
        slow = world.issue(world.job("delays", "slow"))
        gate.wait_entered()
        waiting = [world.issue(world.job("delays", f"N{n}")).job_id for n in range(5)]
        wait_for(first, lambda counters: counters.waiting == 5)
    second = world.worker(settings(concurrency=1))
    with running(second):
        wait_for(second, lambda counters: counters.done == 5)
    gate.opened.set()

    handed_back = world.statuses(StatusKind.HANDED_BACK)
    assert [(status.job_id, status.done) for status in handed_back] == [(slow.job_id, ())]
    assert sorted(world.done()) == sorted(waiting)
    assert first.counters().handed_back == 1


def test_stop_cancels_async_handlers_and_hands_their_jobs_back(world: WorkerWorld) -> None:
    ends: list[str] = []

    async def work(batch: Batch) -> None:
        try:
            ends.append("begun")
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    world.handle("delays", work)
    with running(world.worker(settings(grace_ms=0))):
        job = world.issue(world.job("delays"))
        wait_until(lambda: ends == ["begun"])

    (status,) = world.statuses()
    assert (status.job_id, status.kind) == (job.job_id, StatusKind.HANDED_BACK)
    assert ends == ["begun", "cancelled"]


def test_stop_cancels_what_async_handlers_left_behind(world: WorkerWorld) -> None:
    ends: list[str] = []
    left: list[asyncio.Task[None]] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def work(batch: Batch) -> None:
        left.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)

    world.handle("delays", work)
    with running(world.worker(settings())) as worker:
        world.issue(world.job("delays"))
        wait_for(worker, lambda counters: counters.done == 1)

    assert ends == ["cancelled"]


def test_two_workers_share_the_jobs_and_run_each_once(world: WorkerWorld) -> None:
    ran: list[str] = []
    world.handle("delays", lambda batch: ran.append(batch.job_id))
    with running(world.worker(settings())) as first:
        jobs = [world.issue(world.job("delays")).job_id for _ in range(50)]
        wait_for(first, lambda counters: counters.taken > 10)
        with running(world.worker(settings())) as second:
            wait_until(lambda: len(ran) == 50)
            for _ in range(50):
                jobs.append(world.issue(world.job("delays")).job_id)
                world.clock.sleep_ms(5)
            wait_for(second, lambda counters: counters.taken > 0)
            wait_until(lambda: len(ran) == 100)

    assert sorted(ran) == sorted(jobs)


@pytest.mark.parametrize("by", ["handler", "worker"])
def test_process_handlers_run_in_a_process_of_their_own(world: WorkerWorld, by: str) -> None:
    topology = world.app.domains["flights"].topology("delays")
    topology.handler(name="work", executor="process" if by == "handler" else None)(report_process)
    topology.handler(name="next", inputs=report_process)(sleep_long)
    executor = Executor.PROCESS if by == "worker" else Executor.THREAD
    with running(world.worker(settings(concurrency=1, executor=executor))) as worker:
        for _ in range(2):
            world.issue(world.job("delays"))
        wait_for(worker, lambda counters: counters.events_done == 2)

    first, second = world.statuses()
    (child,) = {int(status.outputs[1]) for status in (first, second)}
    assert child != os.getpid()
    assert first.failures[0].error == second.failures[0].error == f"{child} True"


def test_handler_that_brings_its_process_down_loses_its_own_job_alone(world: WorkerWorld) -> None:
    world.handle("delays", die_for_n1, executor="process")
    with running(world.worker(settings(concurrency=1))) as worker:
        for subject in ("N2", "N1", "N3", "N1", "N4"):
            world.issue(world.job("delays", subject))
        wait_for(worker, lambda counters: counters.taken == 5 and counters.running == 0)

    failed = [status for status in world.statuses() if status.failures]
    assert {status.subject for status in failed} == {"N1"}
    assert {failure.failure_class for each in failed for failure in each.failures} == {
        FailureClass.BUG
    }
    assert failed[0].failures[0].error == "the process of the handler ended: exit code 7"
    assert len(world.done()) == 3


def test_stop_kills_the_processes_of_jobs_it_hands_back(world: WorkerWorld) -> None:
    world.handle("delays", sleep_long, executor="process")
    with running(world.worker(settings(concurrency=1, grace_ms=0))):
        job = world.issue(world.job("delays"))
        wait_until(lambda: len(multiprocessing.active_children()) == 1)

    (status,) = world.statuses()
    assert (status.job_id, status.kind) == (job.job_id, StatusKind.HANDED_BACK)
    wait_until(lambda: multiprocessing.active_children() == [])


def test_handler_that_no_process_can_load_is_refused_at_start(world: WorkerWorld) -> None:
    def local(batch: Batch) -> None: ...

    world.handle("delays", local, executor="process")

    with pytest.raises(Fatal, match=r"delays\.work .* define it at the top of a module"):
        world.worker(settings())


class BrokenHandler:
    """Breaks the contract of a `JobHandler`, as a defect of ours would."""

    is_async = False
    stops_at_failure = False
    executor = None

    def run(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        raise RuntimeError("a defect")

    async def run_async(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        raise RuntimeError("a defect")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_defect_in_a_slot_ends_the_worker_instead_of_leaving_it_idle(world: WorkerWorld) -> None:
    handlers = {HandlerKey("flights", "delays", "work"): BrokenHandler()}
    worker = Worker(
        world.log, world.codec, world.clock, world.names, handlers, settings(grace_ms=0)
    )
    world.issue(world.job("delays"))

    with pytest.raises(Fatal, match="ended by an error of its own"):
        worker.run()


def test_undecodable_record_is_put_aside_by_threads_too(world: WorkerWorld) -> None:
    world.handle("delays", lambda batch: None)
    with running(world.worker(settings())) as worker:
        world.put(b"junk", partition=1)
        job = world.issue(world.job("delays"))
        wait_for(worker, lambda counters: counters.done == 1)

    (letter,) = world.letters()
    assert TopicPartition(letter.topic, letter.partition) == (world.names.jobs("general"), 1)
    assert world.done() == [job.job_id]
    assert PARTITIONS == 2
