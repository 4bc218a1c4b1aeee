"""Workers of a simulated world that are the real one, with handlers that misbehave.

It works inline, in one fiber: that covers how it takes jobs, stores offsets, reports and stops. Its
threads are tested elsewhere.
"""

from cape_stream.adapters.simulated import SimClock, SimLog, SimProcess
from cape_stream.model.job import Job
from cape_stream.ports.clock import Clock
from cape_stream.runtime.worker import Worker
from cape_stream.runtime.worker_handler import Executor, HandlerKey, JobOutcome
from cape_stream.runtime.worker_settings import WorkerSettings
from cape_stream.testing.job_runs import JobRun
from cape_stream.testing.seat import Seat
from cape_stream.testing.stage import Stage

POLL_MS = 20


class SimHandler:
    """Implements `JobHandler` for every lambda of a world.

    Args:
        stage: the world's shared part.
        process: of the worker.
    """

    is_async = False
    stops_at_failure = False
    executor: Executor | None = None

    def __init__(self, stage: Stage, process: SimProcess) -> None:
        self._stage = stage
        self._process = process

    def run(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """See `JobHandler.run`."""
        status = JobRun(self._stage, self._process, job).run()
        return JobOutcome(status.done, status.outputs, status.failures)

    async def run_async(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """See `JobHandler.run_async`; never asked for."""
        raise NotImplementedError


class RealWorkerSeat(Seat):
    """A machine that runs the real worker.

    Args:
        stage: the world's shared part.
        number: of the machine.
    """

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage, f"v{number}")

    def run(self, process: SimProcess) -> None:
        """See `Seat.run`."""
        stage = self.stage
        handler = SimHandler(stage, process)
        worker = Worker(
            SimLog(stage.broker, process),
            stage.codec,
            SimClock(stage.timeline, stage.draw_skew_ms()),
            stage.names,
            {
                HandlerKey(plan.name, entry.topology, entry.lambda_id): handler
                for plan in stage.plans.values()
                for entry in plan.lambdas
            },
            WorkerSettings(queues=tuple(stage.queues), concurrency=1, inline=True, prefetch=20),
        )
        while not self.leaving:
            worker.step(POLL_MS)
        worker.close()

    def bury(self) -> None:
        """See `Seat.bury`."""
