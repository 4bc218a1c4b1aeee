"""Cape jobs on a worker without Kafka of its own: what runs, and what is reported of it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cape_stream import App, Batch
from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.embedded import EmbeddedLog
from cape_stream.adapters.embedded.settings import EmbeddedSettings
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.errors import Retry
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.status import FailureClass, JobStatus, StatusKind
from cape_stream.ports.log import TopicPartition, TopicSpec
from cape_stream.queues.messages.jobs import in_place
from cape_stream.roles.backends import Backend
from cape_stream.roles.sqs_jobs import AppJobRunner, StatusSender, jobs_handler
from cape_stream.runtime.steady import SteadyClock
from tests.unit.queues.test_mail_messages import context

CLOCK = SteadyClock()
STATUSES = "shop.orders.statuses"


class Desk:
    """An App with one handler of each kind, a real log, and what was reported to it."""

    def __init__(self, folder: Path) -> None:
        self.ran: list[tuple[str, list[int]]] = []
        self.gate = asyncio.Event()
        app = App("shop", partitions=2)
        orders = app.domain("orders", source=MemoryEventSource())
        for name, work in (("plain", self._plain), ("held", self._held), ("bad", self._bad)):
            topology = orders.topology(name)
            topology.handler(queue="slow", name="only", timeout=timedelta(seconds=5))(work)
        self.log = EmbeddedLog(folder / "log", EmbeddedSettings(), now_ms=CLOCK.now_ms)
        self.log.create_topics([TopicSpec(name=STATUSES, partitions=2, config={})])
        self.backend = Backend("embedded", "memory", self.log, AvroCodec(), CLOCK, 0)
        self.handlers = app.job_handlers()
        self.sender = StatusSender(app, self.backend)
        self.runner = AppJobRunner(self.handlers, self.backend, self.sender)

    def _plain(self, batch: Batch) -> None:
        self.ran.append(("plain", [event.sequence for event in batch]))

    async def _held(self, batch: Batch) -> None:
        self.ran.append(("held", [event.sequence for event in batch]))
        await self.gate.wait()

    def _bad(self, batch: Batch) -> None:
        raise ValueError("as told")

    def reported(self) -> list[JobStatus]:
        """Every status in the log, partition by partition."""
        reader, codec, found = self.log.reader(), AvroCodec(), []
        for partition in range(2):
            place = TopicPartition(STATUSES, partition)
            end = reader.watermarks(place).high
            if end:
                for records in reader.read(place, 0, end):
                    found += [codec.decode_status(each.key, each.value) for each in records]
        reader.close()
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(2_000):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it never came to that")


Scene = Callable[[Desk], Coroutine[Any, Any, None]]


def job(topology: str, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "job_id": "1-1-7",
        "domain": "orders",
        "partition": 1,
        "subject": "order-7",
        "topology": topology,
        "lambda_id": "only",
        "queue": "slow",
        "epoch": 3,
        "attempt": 2,
        "issued_ms": CLOCK.now_ms(),
        "timeout_ms": 60_000,
        "events": [Event(4, b"a"), Event(9, b"b")],
    }
    return Job(**(fields | changes))


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scene], None]:
    def run(scene: Scene) -> None:
        async def whole() -> None:
            desk = Desk(tmp_path)
            try:
                await scene(desk)
            finally:
                await desk.sender.close()
                desk.log.close()

        asyncio.run(whole())

    return run


def test_job_of_a_message_runs_and_its_result_is_in_the_log_before_it_is_done(play: Any) -> None:
    async def scene(desk: Desk) -> None:
        handler = jobs_handler(desk.handlers, desk.backend, desk.sender)

        await handler(in_place("slow", AvroCodec().encode_job(job("plain"))), context())

        assert desk.ran == [("plain", [4, 9])]
        (status,) = desk.reported()
        assert (status.job_id, status.partition, status.subject) == ("1-1-7", 1, "order-7")
        assert (status.epoch, status.attempt) == (3, 2)
        assert (status.kind, list(status.done)) == (StatusKind.RESULTS, [4, 9])

    play(scene)


def test_failure_is_reported_and_is_no_failure_of_the_message(play: Any) -> None:
    async def scene(desk: Desk) -> None:
        await desk.runner.run(job("bad"), 60_000)

        (status,) = desk.reported()
        assert status.kind is StatusKind.RESULTS
        assert [each.failure_class for each in status.failures] == [FailureClass.BUG] * 2
        assert "as told" in status.failures[0].error

    play(scene)


def test_job_that_nobody_here_can_run_is_reported_as_transient(play: Any) -> None:
    async def scene(desk: Desk) -> None:
        await desk.runner.run(job("unheard"), 60_000)

        (status,) = desk.reported()
        assert {each.failure_class for each in status.failures} == {FailureClass.TRANSIENT}
        assert "no handler for unheard.only" in status.failures[0].error

    play(scene)


def test_job_that_its_dispatcher_has_given_up_is_handed_back_and_not_run(play: Any) -> None:
    async def scene(desk: Desk) -> None:
        await desk.runner.run(job("plain", issued_ms=CLOCK.now_ms() - 66_000), 60_000)

        assert desk.ran == []
        (status,) = desk.reported()
        assert status.kind is StatusKind.HANDED_BACK
        assert status.queued_ms >= 66_000

    play(scene)


def test_long_job_sends_heartbeats_until_it_ends(play: Any) -> None:
    async def scene(desk: Desk) -> None:
        running = asyncio.ensure_future(desk.runner.run(job("held", timeout_ms=1_500), 60_000))
        await desk.until(lambda: bool(desk.reported()))

        desk.gate.set()
        await running

        *beats, last = [each.kind for each in desk.reported()]
        assert set(beats) == {StatusKind.HEARTBEAT}
        assert last is StatusKind.RESULTS

    play(scene)


class Gated:
    """A producer of the log whose flush waits until a test says so."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.is_flushing = threading.Event()
        self.open = threading.Event()
        self.fault: Exception | None = None

    def flush(self, timeout_ms: int) -> bool:
        self.is_flushing.set()
        assert self.open.wait(30)
        if self.fault is not None:
            raise self.fault
        flushed: bool = self._producer.flush(timeout_ms)
        return flushed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


def test_sender_that_is_cancelled_leaves_nobody_else_waiting(play: Any) -> None:
    async def scene(desk: Desk) -> None:
        gated = Gated(desk.sender._producer)
        desk.sender._producer = gated
        first = asyncio.ensure_future(desk.runner.run(job("plain", job_id="a"), 60_000))
        await desk.until(gated.is_flushing.is_set)
        others = [
            asyncio.ensure_future(desk.runner.run(job("plain", job_id=name), 60_000))
            for name in ("b", "c")
        ]
        await desk.until(lambda: len(desk.sender._waiting) == 2)

        first.cancel()
        others[0].cancel()
        await asyncio.sleep(0)
        gated.open.set()

        await others[1]
        await desk.until(lambda: len(desk.reported()) == 3)
        assert [each.cancelled() for each in (first, *others)] == [True, True, False]

    play(scene)


def test_status_that_a_defect_kept_from_the_log_gives_the_message_back(play: Any) -> None:
    async def scene(desk: Desk) -> None:
        gated = Gated(desk.sender._producer)
        gated.fault = ValueError("a defect")
        gated.open.set()
        desk.sender._producer = gated

        with pytest.raises(Retry, match="a defect"):
            await desk.runner.run(job("plain"), 60_000)
        gated.fault = None
        await desk.runner.run(job("plain"), 60_000)

    play(scene)
