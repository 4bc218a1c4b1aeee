"""B32, B35, B42, B44: messages that are not what a queue expects, in a processor at work."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from cape_stream.adapters.deliveries_sql import SqlDeliveries
from cape_stream.ports.queue import OutgoingMessage
from cape_stream.queues.backoff import Backoff
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import Contract, Handler
from cape_stream.queues.lane import Lane
from cape_stream.queues.messages import file_scan, ses_events, ses_reputation
from cape_stream.queues.messages.file_scan import StoredObject, Verdict
from cape_stream.queues.settings import LaneSettings
from tests.unit.queues.test_envelopes import read, unwrapped
from tests.unit.queues.worlds import Running, Task, World, in_virtual_time, until

PLACES = {
    ("example-uploads", "in/report.pdf"): b"pdf",
    ("example-uploads", "in/first.txt"): b"",
    ("example-uploads", "in/second.bin"): b"bin",
    ("example-uploads", "reports/2026 plan + notes (v1)/naïve café.pdf"): b"plan",
}


class Store:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def put(self, bucket: str, key: str, value: bytes) -> None: ...

    async def get(self, bucket: str, key: str) -> bytes | None:
        self.asked.append(key)
        return PLACES.get((bucket, key))


class Length:
    name = "length"

    async def scan(self, found: StoredObject, content: bytes) -> Verdict:
        return Verdict(self.name, is_clean=bool(content), findings=(str(len(content)),))


class Log:
    def __init__(self) -> None:
        self.rows: list[tuple[str, tuple[str, ...]]] = []

    def record(self, subject: str, found: StoredObject, verdicts: Sequence[Verdict]) -> None:
        self.rows.append((subject, tuple(text for each in verdicts for text in each.findings)))


def scan_lane(world: World, log: Log) -> tuple[Lane, file_scan.FileScanHandler]:
    letters = world.queue("file-scan-dead")
    queue = world.queue("file-scan", dead_letter_queue=letters.traits.name, receives_max=5)
    handler = file_scan.FileScanHandler(Store(), [Length()], log)
    handlers: dict[str, Handler] = {
        file_scan.OBJECTS: handler,
        file_scan.TEST_EVENT: file_scan.acknowledge_test_event,
    }
    return Lane(queue, file_scan.CONTRACT, handlers, LaneSettings()), handler


def test_three_objects_are_scanned_once_and_the_test_event_is_acknowledged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log()

    @in_virtual_time
    async def scene(world: World) -> None:
        lane, _ = scan_lane(world, log)
        names = ("object-created", "test-event", "two-records")
        messages = [OutgoingMessage(read(f"s3-{name}.json")) for name in names]
        await lane.queue.send(messages)
        processor = world.processor(lane)
        running = Running(processor)

        await until(lambda: not world.server.queues["file-scan"].shelf.messages)
        report = await running.stop()

        assert world.server.queues["file-scan"].calls["receive"] <= 2
        assert report.fates == {"done": 3}
        assert not processor.ledger.by_type
        assert not world.server.queues["file-scan-dead"].shelf.messages

    with caplog.at_level(logging.INFO):
        scene()
    assert sorted(log.rows) == [
        ("example-uploads/in/first.txt", ("0",)),
        ("example-uploads/in/report.pdf", ("3",)),
        ("example-uploads/in/second.bin", ("3",)),
    ]
    told = [each for each in caplog.records if "is connected to queue" in each.getMessage()]
    assert [each.levelno for each in told] == [logging.INFO]
    assert not [each for each in caplog.records if each.levelno > logging.INFO]


@pytest.mark.parametrize(
    ("contract", "label", "bare", "envelope"),
    [
        pytest.param(
            *(file_scan.CONTRACT, file_scan.OBJECTS),
            *(read("s3-object-created.json"), read("s3-via-sns.json")),
            id="file-scan",
        ),
        pytest.param(
            *(ses_events.CONTRACT, ses_events.EVENTS),
            *(unwrapped("ses-bounce.json"), read("ses-bounce.json")),
            id="ses-events",
        ),
        pytest.param(
            *(ses_reputation.CONTRACT, ses_reputation.SIGNAL),
            *(unwrapped("ses-reputation.json"), read("ses-reputation.json")),
            id="ses-reputation",
        ),
    ],
)
def test_bare_and_wrapped_event_reach_one_handler_with_one_content(
    contract: Contract, label: str, bare: str, envelope: str
) -> None:
    got: list[object] = []

    async def keep(value: object, context: JobContext) -> None:
        got.append(value)

    @in_virtual_time
    async def scene(world: World) -> None:
        queue = world.queue(contract.queue)
        await queue.send([OutgoingMessage(bare), OutgoingMessage(envelope)])
        lane = Lane(queue, contract, {label: keep}, LaneSettings())
        running = Running(world.processor(lane))
        await until(lambda: not queue.shelf.messages)
        assert (await running.stop()).fates == {"done": 2}

    scene()
    assert len(got) == 2
    assert got[0] == got[1]


@in_virtual_time
async def test_encoded_key_is_asked_for_by_its_true_name(world: World) -> None:
    log = Log()
    lane, _ = scan_lane(world, log)
    await lane.queue.send([OutgoingMessage(read("s3-url-encoded-key.json"))])
    running = Running(world.processor(lane))

    await until(lambda: bool(log.rows))

    name = "example-uploads/reports/2026 plan + notes (v1)/naïve café.pdf"
    assert log.rows == [(name, ("4",))]
    await running.stop()


@in_virtual_time
async def test_object_too_large_for_a_worker_is_not_read_and_its_verdict_says_so(
    world: World,
) -> None:
    log, store = Log(), Store()
    queue = world.queue("file-scan")
    handler = file_scan.FileScanHandler(store, [Length()], log, bytes_max=20_000)
    handlers: dict[str, Handler] = {file_scan.OBJECTS: handler}
    lane = Lane(queue, file_scan.CONTRACT, handlers, LaneSettings())
    await queue.send([OutgoingMessage(read("s3-object-created.json"))])  # of 20,480 bytes
    running = Running(world.processor(lane))

    await until(lambda: not queue.shelf.messages)

    assert store.asked == []
    ((subject, findings),) = log.rows
    assert subject == "example-uploads/in/report.pdf"
    assert findings == ("not scanned: 20,480 bytes are over the 20,000 of a worker",)
    assert (await running.stop()).fates == {"done": 1}


def test_missing_object_is_reported_by_its_true_name(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def scene(world: World) -> int:
        lane, handler = scan_lane(world, Log())
        message = file_scan.object_created("uploads", "a b+c%.txt", b"x")
        await lane.queue.send([message])
        running = Running(world.processor(lane))
        await until(lambda: handler.missing == 1)
        return len((await running.stop()).fates)

    with caplog.at_level(logging.WARNING):
        assert scene() == 1
    assert "bucket uploads has no 'a b+c%.txt'" in caplog.text


def test_unknown_type_is_received_five_times_then_parked_unchanged_and_slows_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = read("sqs-unknown-type.json")

    @in_virtual_time
    async def scene(world: World) -> None:
        letters = world.queue("dead")
        queue = world.queue("work", dead_letter_queue="dead", receives_max=5)
        await queue.send([OutgoingMessage(body, {"kind": "k"})])
        await world.send(queue, *(Task(f"t{n}", 1.0) for n in range(200)))
        running = Running(world.processor(world.lane(queue, concurrency=10)))

        await until(lambda: len(world.names("end")) == 200)
        assert world.now_s < 30
        await until(lambda: bool(letters.shelf.messages))
        report = await running.stop()

        (letter,) = letters.shelf.messages.values()
        assert (letter.message_id, letter.receive_count) == ("work-1", 5)
        assert (letter.outgoing.body, letter.outgoing.attributes) == (body, {"kind": "k"})
        assert report.fates == {"done": 200, "unhandled": 5}
        assert "work-1" not in queue.shelf.deleted

    with caplog.at_level(logging.WARNING):
        scene()
    lines = [line for line in caplog.messages if "thumbnail.v9" in line]
    assert len(lines) == 5
    assert all("work-1" in line for line in lines)


def test_alarm_on_the_events_queue_ends_in_the_dead_letter_queue(tmp_path: Path) -> None:
    store = SqlDeliveries(f"sqlite:///{tmp_path / 'd.db'}")

    @in_virtual_time
    async def scene(world: World) -> None:
        letters = world.queue("ses-events-dead")
        queue = world.queue("ses-events", dead_letter_queue="ses-events-dead", receives_max=3)
        await queue.send([OutgoingMessage(read("ses-reputation.json"))])
        handlers = {ses_events.EVENTS: ses_events.SesEventsHandler(store)}
        quick = LaneSettings(unhandled=Backoff(first_s=1, max_s=1))
        processor = world.processor(Lane(queue, ses_events.CONTRACT, handlers, quick))
        running = Running(processor)

        await until(lambda: bool(letters.shelf.messages))
        await running.stop()

        assert processor.ledger.by_type == {"ses-events/cloudwatch_alarm": 3}
        assert queue.shelf.deleted == []

    scene()
    store.close()


@in_virtual_time
async def test_type_with_no_handler_registered_goes_back_too(world: World) -> None:
    queue = world.queue()
    lane = world.lane(queue)
    lane.handlers = {}
    await world.send(queue, Task("t"))
    processor = world.processor(lane)
    running = Running(processor)

    await until(lambda: processor.ledger.by_type["work/task"] == 1)
    await running.stop()

    assert list(queue.shelf.messages) == ["work-1"]
