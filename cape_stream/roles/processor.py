"""The processor role: a worker of the SQS fleet, from its settings to its last report."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from cape_stream.adapters.sqs.identity import StsIdentity
from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.errors import Fatal, Retry
from cape_stream.ports.identity import Identity
from cape_stream.ports.queue import QueueServer
from cape_stream.queues.equipment import Equipment, Services, handlers_for
from cape_stream.queues.fleet import Pool, QueueSpec, queues_of
from cape_stream.queues.gauges import Gauges
from cape_stream.queues.lane import Lane
from cape_stream.queues.ledger import DrainReport
from cape_stream.queues.messages import training
from cape_stream.queues.messages.ses_reputation import SesReputationHandler
from cape_stream.queues.processor import Processor
from cape_stream.queues.settings import LaneSettings, ProcessorSettings
from cape_stream.roles.backends import open_backend
from cape_stream.roles.executions import Executions
from cape_stream.roles.fleet_services import fleet_services
from cape_stream.roles.gauge_server import serve_gauges
from cape_stream.roles.settings import Settings
from cape_stream.roles.sqs_jobs import StatusSender, jobs_handler
from cape_stream.roles.valkey import FIGURES
from cape_stream.runtime.steady import SteadyClock
from cape_stream.runtime.worker_handler import Executor
from cape_stream.sdk.app import App

RETRY_S = 2.0
LEAVE_S = 0.5
"""How long what is left at the end may take to end."""
LOOK_S = 5.0
"""How often the depths of the queues are asked for."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class FleetWorker:
    """A processor and what it stands on."""

    processor: Processor
    gauges: Gauges


def serve(pool: Pool, equipment: Equipment, settings: Settings) -> DrainReport:
    """Drain the queues of a pool until a signal; the report of the drain.

    A second signal changes nothing: the drain has a bound of its own.

    Raises:
        Fatal: a queue is missing, or the identity may not read the training queue.
    """
    return _run(_serve(pool, equipment, settings))


def serve_jobs(pool: Pool, equipment: Equipment, settings: Settings, app: App) -> DrainReport:
    """The same, and the jobs of an App as well, whose statuses go to Kafka.

    Raises:
        Fatal: as `serve`; or nobody said where Kafka is.
    """

    async def whole() -> DrainReport:
        executions = Executions(app, realtime=settings.realtime)
        handlers = executions.handlers(Executor.THREAD)
        sender = StatusSender(app, backend)
        try:
            equipped = replace(equipment, jobs=jobs_handler(handlers, backend, sender))
            return await _serve(pool, equipped, settings)
        finally:
            await sender.close()
            executions.close()

    with open_backend("kafka", settings) as backend:
        return _run(whole())


def _run(work: Coroutine[Any, Any, DrainReport]) -> DrainReport:
    """Like `asyncio.run`, but a handler that ignores its cancellation cannot keep the process."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        if rest:
            _, hung = loop.run_until_complete(asyncio.wait(rest, timeout=LEAVE_S))
        if not rest or not hung:
            loop.close()


async def _serve(pool: Pool, equipment: Equipment, settings: Settings) -> DrainReport:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with opened(pool, equipment, settings, stopping) as worker:
        if worker is None:
            return DrainReport(received=0, fates={})
        names = ", ".join(worker.processor.lanes)
        sys.stderr.write(f"cape: pool {pool} drains {names}; Ctrl-C stops\n")
        running = asyncio.create_task(worker.processor.run())
        looking = asyncio.create_task(_look(worker.gauges))
        asked = asyncio.create_task(stopping.wait())
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        worker.processor.stop()
        report = await running
        for task in (looking, asked):
            task.cancel()
        return report


async def _look(gauges: Gauges) -> None:
    while True:
        await gauges.look()
        await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def opened(
    pool: Pool, equipment: Equipment, settings: Settings, stopping: asyncio.Event
) -> AsyncIterator[FleetWorker | None]:
    """A worker that is ready to run; None if it was stopped while it waited for SQS."""
    server = SqsServer(settings.sqs)
    try:
        async with fleet_services(settings) as services:
            clock = SteadyClock()
            paused = SesReputationHandler(services.deliveries, services.mail_limit)
            await patiently(paused.restore, stopping)
            specs = await allowed(pool, settings, StsIdentity(settings.sqs), stopping)
            lanes = await open_lanes(specs, server, equipment, services, settings, stopping)
            if stopping.is_set():
                yield None
                return
            processor = Processor(lanes, settings.processor, clock, interruptions=services.progress)
            gauges = Gauges(processor, clock.now_ms)
            with serve_gauges(settings.processor, lambda: gauges.text + FIGURES.as_text()):
                yield FleetWorker(processor, gauges)
    finally:
        await server.close()


async def allowed(
    pool: Pool, settings: Settings, identity: Identity, stopping: asyncio.Event
) -> Sequence[QueueSpec]:
    """The queues that a pool may drain under our identity.

    Raises:
        Fatal: the training queue is to be read by somebody else than the trainer.
    """
    specs = queues_of(pool)
    wanted = settings.processor.training_identity
    if pool is Pool.TRAINING and not wanted:
        raise Fatal(
            "the training pool needs processor.training_identity, what the name of the trainer's"
            " credentials begins with; `aws sts get-caller-identity` shows it"
        )
    if wanted and any(spec.name == training.QUEUE for spec in specs):
        caller = await patiently(identity.caller, stopping)
        if caller is not None and not caller.startswith(wanted):
            raise Fatal(
                f"the training queue is for {wanted}..., and we are {caller}: start this pool with"
                " the trainer's credentials"
            )
    return specs


async def open_lanes(
    specs: Sequence[QueueSpec],
    server: QueueServer,
    equipment: Equipment,
    services: Services,
    settings: Settings,
    stopping: asyncio.Event,
) -> list[Lane]:
    """A lane for every queue that the equipment has code for.

    Raises:
        Fatal: a queue is missing, or there is code for none.
    """
    lanes = []
    for spec in specs:
        handlers = handlers_for(spec.name, equipment, services)
        if not handlers:
            logger.warning("queue %s is not drained here: there is no code for it", spec.name)
            continue
        name = settings.sqs.prefix + spec.name
        queue = await patiently(partial(server.open, name), stopping)
        if queue is not None:
            own = lane_settings(spec.settings, settings.processor)
            lanes.append(Lane(queue, spec.contract, handlers, own))
    if not lanes and not stopping.is_set():
        raise Fatal("there is no code for any queue of this pool: name the equipment that has it")
    return lanes


def lane_settings(own: LaneSettings, all_lanes: ProcessorSettings) -> LaneSettings:
    """Settings of a queue under those of the process."""
    return replace(
        own,
        ceiling_s=min(own.ceiling_s, all_lanes.ceiling_s),
        visibility_s=all_lanes.visibility_s or own.visibility_s,
    )


async def patiently(call: Callable[[], Awaitable[T]], stopping: asyncio.Event) -> T | None:
    """Result of a call, repeated while SQS or the database is away or refuses our credentials,
    which is said; None when we are told to stop."""
    said = ""
    while not stopping.is_set():
        try:
            return await call()
        except Retry as error:
            if error.reason != said:
                said = error.reason
                logger.warning("not ready, trying on: %s", said)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), RETRY_S)
    return None
