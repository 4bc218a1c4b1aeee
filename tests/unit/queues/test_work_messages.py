"""Steps with a caller who waits, documents alone and in batches, training."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from cape_stream.adapters.local import MemoryProgress, MemoryResults
from cape_stream.queues.backoff import Backoff
from cape_stream.queues.context import JobContext
from cape_stream.queues.lane import Lane
from cape_stream.queues.messages import bulk_ingest, ingest, steps, training
from cape_stream.queues.messages.steps import StepCaller, StepFailedError, StepTimeoutError
from cape_stream.queues.settings import LaneSettings
from tests.unit.queues.worlds import Running, World, in_virtual_time, until


async def add(arguments: Mapping[str, Any], context: JobContext) -> int:
    return int(arguments["left"]) + int(arguments["right"])


async def fail(arguments: Mapping[str, Any], context: JobContext) -> int:
    raise ValueError("division by cucumber")


async def slow(arguments: Mapping[str, Any], context: JobContext) -> int:
    await asyncio.sleep(1_000)
    return 1


FUNCTIONS = {"add": add, "fail": fail, "slow": slow}


def stage(world: World) -> tuple[StepCaller, steps.StepHandler, Lane]:
    queue = world.queue("steps")
    results = MemoryResults()
    handler = steps.StepHandler(FUNCTIONS, results)
    lane = Lane(queue, steps.CONTRACT, {steps.TYPE.name: handler}, LaneSettings())
    return StepCaller(queue, results), handler, lane


@in_virtual_time
async def test_caller_gets_the_result_of_a_step_and_its_error(world: World) -> None:
    caller, _, lane = stage(world)
    running = Running(world.processor(lane))

    found = await caller.call("add", {"left": 3, "right": 4}, timeout_ms=60_000, tenant="t-1")
    with pytest.raises(StepFailedError, match="ValueError: division by cucumber"):
        await caller.call("fail", {}, timeout_ms=60_000)
    report = await running.stop()

    assert found == 7
    assert report.fates == {"done": 2}


@in_virtual_time
async def test_caller_waits_no_longer_than_its_deadline(world: World) -> None:
    caller, _, lane = stage(world)
    running = Running(world.processor(lane, grace_ms=30_000))

    begin_s = world.now_s
    with pytest.raises(StepTimeoutError, match="no answer of step 'slow' within 5000 ms"):
        await caller.call("slow", {}, timeout_ms=5_000)

    assert world.now_s - begin_s < 6
    await running.stop()


@in_virtual_time
async def test_request_that_comes_too_late_is_not_run(world: World) -> None:
    caller, handler, lane = stage(world)
    with pytest.raises(StepTimeoutError):
        await caller.call("add", {"left": 1, "right": 1}, timeout_ms=-1)
    running = Running(world.processor(lane))

    await until(lambda: handler.expired == 1)
    report = await running.stop()

    assert report.fates == {"done": 1}


@in_virtual_time
async def test_step_of_no_known_name_goes_back_for_a_worker_that_knows_it(world: World) -> None:
    caller, _, lane = stage(world)
    processor = world.processor(lane)
    running = Running(processor)

    with pytest.raises(StepTimeoutError):
        await caller.call("unheard", {}, timeout_ms=1_000)
    await running.stop()

    assert processor.ledger.by_type == {"steps/rejected": 1}


class Corpus:
    """An ingestor that notes what it gets."""

    def __init__(self, seconds: float = 1.0, bad: str = "") -> None:
        self.documents: list[str] = []
        self.seconds = seconds
        self.bad = bad

    async def ingest(self, document: ingest.Document, context: JobContext) -> None:
        if document.document_id == self.bad:
            raise ValueError("cannot be read")
        await asyncio.sleep(self.seconds)
        self.documents.append(document.document_id)


def document(number: int) -> ingest.Document:
    return ingest.Document(document_id=f"d{number}", source="s", uri="u", tenant="t")


@in_virtual_time
async def test_document_is_ingested_once(world: World) -> None:
    queue = world.queue("ingest")
    corpus = Corpus()
    handlers = {ingest.TYPE.name: ingest.IngestHandler(corpus)}
    running = Running(world.processor(Lane(queue, ingest.CONTRACT, handlers, LaneSettings())))

    await ingest.add_document(queue, document(1))
    await until(lambda: not queue.shelf.messages)

    assert corpus.documents == ["d1"]
    (group,) = {each for _, each, _ in queue.shelf.receives}
    assert group == "ingest-1"
    await running.stop()


def bulk_lane(world: World, corpus: Corpus, progress: MemoryProgress, **traits: Any) -> Lane:
    queue = world.server.queues.get("bulk-ingest") or world.queue("bulk-ingest", **traits)
    handler = bulk_ingest.BulkIngestHandler(corpus, progress)
    settings = LaneSettings(
        attempts_max=3, prefetch=0, concurrency=1, backoff=Backoff(first_s=1, max_s=1)
    )
    return Lane(queue, bulk_ingest.CONTRACT, {bulk_ingest.TYPE.name: handler}, settings)


@in_virtual_time
async def test_batch_interrupted_by_rollouts_goes_on_where_it_was_and_is_never_cut(
    world: World,
) -> None:
    corpus, progress = Corpus(seconds=7.0), MemoryProgress()
    lane = bulk_lane(world, corpus, progress)
    (batch_id,) = await bulk_ingest.add_documents(
        lane.queue, "t", [document(number) for number in range(30)]
    )
    handed_back = 0

    while world.server.queues["bulk-ingest"].shelf.messages:
        processor = world.processor(bulk_lane(world, corpus, progress), interruptions=progress)
        running = Running(processor)
        await asyncio.sleep(20)
        report = await running.stop()
        assert report.adds_up
        handed_back += report.fates.get("handed_back", 0)

    assert corpus.documents == [f"d{number}" for number in range(30)]
    assert handed_back >= 5
    assert await progress.read(f"bulk-ingest/{batch_id}") == 30


@in_virtual_time
async def test_batch_with_a_document_that_always_fails_is_parked_after_its_attempts(
    world: World,
) -> None:
    letters = world.queue("bulk-dead")
    corpus, progress = Corpus(bad="d3"), MemoryProgress()
    lane = bulk_lane(world, corpus, progress, dead_letter_queue="bulk-dead", receives_max=13)
    await bulk_ingest.add_documents(lane.queue, "t", [document(number) for number in range(5)])
    running = Running(world.processor(lane, interruptions=progress))

    await until(lambda: bool(letters.shelf.messages))
    await running.stop()

    assert corpus.documents == ["d0", "d1", "d2"]


@in_virtual_time
async def test_batch_longer_than_its_ceiling_is_handed_back_between_two_documents(
    world: World,
) -> None:
    corpus, progress = Corpus(seconds=240.0), MemoryProgress()
    lane = bulk_lane(world, corpus, progress)
    await bulk_ingest.add_documents(lane.queue, "t", [document(number) for number in range(20)])
    processor = world.processor(lane, interruptions=progress)
    running = Running(processor)

    await until(lambda: not world.server.queues["bulk-ingest"].shelf.messages)
    report = await running.stop()

    assert corpus.documents == [f"d{number}" for number in range(20)]
    assert "returned" not in report.fates
    assert report.fates["handed_back"] >= 2


@in_virtual_time
async def test_training_job_reaches_the_trainer(world: World) -> None:
    queue = world.queue("training")
    trained: list[training.TrainingJob] = []

    class Gym:
        async def train(self, job: training.TrainingJob, context: JobContext) -> None:
            trained.append(job)

    job = training.TrainingJob(job_id="j", model="m", dataset_uri="u", tenant="t")
    handlers = {training.TYPE.name: training.TrainingHandler(Gym())}
    await training.add_training(queue, job)
    lane = Lane(queue, training.CONTRACT, handlers, LaneSettings())
    running = Running(world.processor(lane))

    await until(lambda: not queue.shelf.messages)

    assert trained == [job]
    await running.stop()
