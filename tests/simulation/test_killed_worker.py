"""Heartbeats, hand-backs and deaths of workers, measured in virtual time.

The dispatcher and the slots are the real ones; each slot is a process of its own, so that it can
die at a moment of its own. What the reporter's thread of a worker does, a second fiber does here.
"""

from collections.abc import Iterator

import pytest

from cape_stream.adapters.simulated import SimClock, SimLog, SimProcess
from cape_stream.model.job import Job
from cape_stream.model.topology import LambdaSpec, RetrySpec
from cape_stream.ports.log import Record
from cape_stream.runtime.loop import Engine
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.worker import BEAT_SCAN_MS
from cape_stream.runtime.worker_ages import JobAges
from cape_stream.runtime.worker_claims import ClaimDesk
from cape_stream.runtime.worker_executors import LoopThread
from cape_stream.runtime.worker_handler import Executor, HandlerKey
from cape_stream.runtime.worker_reports import Reports
from cape_stream.runtime.worker_slot import Slot, SlotContext
from cape_stream.sdk import Batch
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, NAMES, EngineWorld, processor_of
from tests.unit.sdk.apps import bound

LEASE_MS = 6_000
STEP_MS = 20
CEILING_LEASES = 20
RETRY = RetrySpec(first_ms=1_000)


class Worker:
    """A process with one slot that has taken one job."""

    def __init__(self, world: EngineWorld, job: Job, record: Record, runs_ms: int) -> None:
        self.subject = job.subject
        self.killed_ms: int | None = None
        self._world = world
        self.process = SimProcess(world.broker.timeline, f"worker-{job.job_id}")
        clock = SimClock(world.broker.timeline)

        def work(batch: Batch) -> None:
            clock.sleep_ms(runs_ms)

        self.reports = Reports(SimLog(world.broker, self.process), world.codec, NAMES)
        self.slot = Slot(
            SlotContext(
                codec=world.codec,
                clock=clock,
                names=NAMES,
                handlers={HandlerKey(DOMAIN, "T1", "only"): bound(work)},
                reports=self.reports,
                loop=LoopThread(),
                executor=Executor.THREAD,
                clock_skew_ms=5_000,
                ages=JobAges(),
                claims=ClaimDesk(None, 16_384),
            )
        )
        self.process.start(lambda: self.slot.serve(record))
        self.process.start(self._report)

    def kill(self) -> None:
        """kill -9."""
        self.killed_ms = self._world.now_ms
        self.process.kill()

    def _report(self) -> None:
        clock = SimClock(self._world.broker.timeline)
        while True:
            self.slot.beat(clock.now_ms())
            self.reports.pump(0)
            clock.sleep_ms(BEAT_SCAN_MS)


class Floor:
    """A dispatcher with one job a subject, each taken by a worker of its own, ``queued_ms`` after
    it was issued."""

    def __init__(self, subjects: int, *, queued_ms: int = 0, runs_ms: int = 10_000_000) -> None:
        settings = EngineSettings(sweep_interval_ms=0)
        spec = topology("T1", LambdaSpec(lambda_id="only", timeout_ms=LEASE_MS), retry=RETRY)
        self.world = EngineWorld(spec, settings=settings)
        self.engine: Engine = self.world.running()
        self.workers: list[Worker] = []
        self._finished: set[str] = set()
        for number in range(subjects):
            self.world.publish(f"S{number}", 1)
            self.world.ping(f"S{number}", 1)
        self.turn(5)
        self.issued_ms = self.world.now_ms
        self.turn(queued_ms // STEP_MS)
        for record in self.world.records(NAMES.jobs("general")):
            assert record.value is not None
            job = self.world.codec.decode_job(record.value, "general")
            self.workers.append(Worker(self.world, job, record, runs_ms))
        assert len(self.workers) == subjects

    def turn(self, turns: int = 1) -> None:
        self.world.turn(self.engine, turns, STEP_MS)

    def pass_ms(self, passed_ms: int) -> None:
        self.turn(passed_ms // STEP_MS)

    def attempts(self) -> dict[str, int]:
        """Newest attempt per subject."""
        newest: dict[str, int] = {}
        for job in self.world.jobs():
            newest[job.subject] = max(newest.get(job.subject, 0), job.attempt)
        return newest

    def finish_second_attempts(self) -> None:
        """Whoever is left takes what was issued again, and is done with it at once."""
        for job in self.world.jobs():
            if job.attempt > 1 and job.job_id not in self._finished:
                self._finished.add(job.job_id)
                self.world.report(job)

    def close(self) -> None:
        self.world.broker.timeline.close()


@pytest.fixture
def floors() -> Iterator[list[Floor]]:
    opened: list[Floor] = []
    yield opened
    for floor in opened:
        floor.close()


@pytest.mark.parametrize("queued_ms", [0, LEASE_MS // 4, LEASE_MS // 2])
def test_jobs_of_a_killed_worker_come_back_within_one_and_a_half_leases(
    floors: list[Floor], queued_ms: int
) -> None:
    """One worker dies every 300 ms, before its first heartbeat, between two, and just after one.
    Others take what comes back; were there none, the lambda would rightly be taken for down."""
    floor = Floor(60, queued_ms=queued_ms)
    floors.append(floor)
    waiting = dict(enumerate(floor.workers))
    dead: dict[str, Worker] = {}
    back_ms: dict[str, int] = {}
    while waiting or len(back_ms) < len(floor.workers):
        if waiting:
            worker = waiting.pop(min(waiting))
            assert floor.attempts()[worker.subject] == 1, "its heartbeats keep its job"
            worker.kill()
            dead[worker.subject] = worker
        for _ in range(300 // STEP_MS):
            floor.turn()
            attempts = floor.attempts()
            floor.finish_second_attempts()
            for subject, worker in dead.items():
                if subject not in back_ms and attempts[subject] > 1:
                    assert worker.killed_ms is not None
                    back_ms[subject] = floor.world.now_ms - worker.killed_ms

    assert max(back_ms.values()) <= LEASE_MS * 3 // 2
    assert min(back_ms.values()) >= LEASE_MS // 3, "nobody is given up who may be alive"


def test_heartbeats_keep_a_job_that_runs_for_many_leases(floors: list[Floor]) -> None:
    floor = Floor(3, runs_ms=10 * LEASE_MS)
    floors.append(floor)
    floor.pass_ms(11 * LEASE_MS)

    assert floor.attempts() == {"S0": 1, "S1": 1, "S2": 1}
    assert processor_of(floor.engine).counters()["events_done"] == 3
    assert processor_of(floor.engine).counters()["timeouts"] == 0


def test_heartbeats_keep_a_job_no_longer_than_the_ceiling(floors: list[Floor]) -> None:
    floor = Floor(1)
    floors.append(floor)
    floor.pass_ms((CEILING_LEASES - 1) * LEASE_MS)
    assert floor.attempts() == {"S0": 1}
    floor.pass_ms(2 * LEASE_MS)

    assert floor.attempts() == {"S0": 2}
    assert processor_of(floor.engine).counters()["timeouts"] == 1


def test_job_that_is_handed_back_is_issued_at_once_and_not_charged(floors: list[Floor]) -> None:
    floor = Floor(1)
    floors.append(floor)
    floor.pass_ms(LEASE_MS)
    for attempt in range(2, 12):
        floor.workers[-1].slot.hand_back()
        floor.pass_ms(BEAT_SCAN_MS + 2 * STEP_MS)
        assert floor.attempts() == {"S0": attempt}
        floor.workers[-1].process.kill()
        record = floor.world.records(NAMES.jobs("general"))[-1]
        job = floor.world.jobs()[-1]
        floor.workers.append(Worker(floor.world, job, record, 10_000_000))
        floor.turn()

    assert processor_of(floor.engine).counters()["events_failed"] == 0
