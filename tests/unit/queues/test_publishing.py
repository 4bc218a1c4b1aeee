"""B48: jobs from topics to SQS, packed by real bytes, at least once."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.embedded import EmbeddedLog
from cape_stream.adapters.embedded.settings import EmbeddedSettings
from cape_stream.adapters.simulated.queue import SimulatedQueue, SimulatedQueues
from cape_stream.adapters.simulated.virtual_loop import VirtualClock, VirtualLoop
from cape_stream.errors import Reject, Retry
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.log import Log, TopicPartition, TopicSpec
from cape_stream.ports.queue import EntryFailure, FailureKind, OutgoingMessage
from cape_stream.queues import publishing
from cape_stream.queues.contract import Decoded, MessageType, identifier
from cape_stream.queues.messages.jobs import CONTRACT, JobRecord, JobsHandler
from cape_stream.queues.packing import batches, size_of
from cape_stream.queues.publishing import Publisher, PublisherSettings
from cape_stream.queues.sending import send_all
from tests.unit.queues.test_mail_messages import context
from tests.unit.queues.worlds import TYPE, Task, World, in_virtual_time

NAMES = TopicNames("shop")
TOPICS = (*NAMES.job_topics(["slow"]), NAMES.dead_letters)


class Shelves:
    """An object store in memory."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.faults: list[Retry] = []

    async def put(self, bucket: str, key: str, value: bytes) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.objects[bucket, key] = value

    async def get(self, bucket: str, key: str) -> bytes | None:
        return self.objects.get((bucket, key))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    found = EmbeddedLog(tmp_path / "log", EmbeddedSettings(), now_ms=lambda: 1_000)
    found.create_topics([TopicSpec(name=name, partitions=2, config={}) for name in TOPICS])
    yield found
    found.close()


def job(number: int, payload: bytes = b"x") -> bytes:
    return AvroCodec().encode_job(
        Job(
            job_id=f"0-1-{number}",
            domain="orders",
            partition=0,
            subject=f"order-{number}",
            topology="t",
            lambda_id="only",
            queue="slow",
            epoch=1,
            attempt=1,
            issued_ms=1,
            timeout_ms=1_000,
            events=[Event(1, payload)],
        )
    )


def write(log: Log, *values: bytes | None) -> None:
    producer = log.producer()
    for number, value in enumerate(values):
        key = f"order-{number}".encode()
        assert producer.send(NAMES.jobs("slow"), number % 2, key, value)
    assert producer.flush(10_000)
    producer.close()


class Crashing(Publisher):
    """Dies after every send."""

    def _commit(self) -> None: ...


class Carrying:
    """A publisher on a real log and a strict queue."""

    def __init__(
        self,
        log: Log,
        bytes_max: int = 1_048_576,
        bucket: str = "claims",
        *,
        name: str = "jobs",
    ) -> None:
        self.log = log
        self.store = Shelves()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        server = SimulatedQueues(VirtualClock(loop).now_ms)
        self.queue: SimulatedQueue = server.create(name, bytes_max=bytes_max)
        self.settings = PublisherSettings(claim_bucket=bucket)
        self.publisher = self.begin()

    def begin(self, kind: type[Publisher] = Publisher) -> Publisher:
        return kind(self.log, AvroCodec(), NAMES, {"slow": self.queue}, self.store, self.settings)

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(500):
            if condition():
                return
            await self.publisher.step(10)
        raise AssertionError("it never came to that")

    def records(self) -> list[JobRecord]:
        found = []
        for each in self.queue.shelf.messages.values():
            decoded = CONTRACT.decode(each.outgoing.body)
            assert isinstance(decoded, Decoded)
            found.append(decoded.value)
        return found


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scene())


def test_publisher_sends_all_jobs_in_batches_of_ten(log: Log) -> None:
    async def scene() -> None:
        write(log, *(job(number) for number in range(45)))
        site = Carrying(log)

        await site.until(lambda: site.publisher.counters.sent == 45)
        site.publisher.close()

        assert len(site.records()) == 45
        assert site.queue.calls["send"] <= 12
        groups = {each.outgoing.group for each in site.queue.shelf.messages.values()}
        assert "order-7" in groups

    play(scene)


@pytest.mark.parametrize(("limit", "calls"), [(262_144, 2), (1_048_576, 1)])
def test_two_jobs_that_fit_alone_share_a_batch_only_if_they_fit_together(
    log: Log, limit: int, calls: int
) -> None:
    async def scene() -> None:
        payload = random.Random(1).randbytes(150_000)  # 200,000 bytes as base64
        write(log, job(0, payload), None, job(2, payload))
        site = Carrying(log, limit)

        await site.until(lambda: site.publisher.counters.sent == 2)
        site.publisher.close()

        assert site.queue.calls["send"] == calls
        assert site.publisher.counters.nulls == 1

    play(scene)


def test_job_over_the_limit_goes_by_claim_check_and_comes_back_whole(log: Log) -> None:
    async def scene() -> None:
        value = job(0, b"\xc3\xa9" * 150_000)
        write(log, value)
        site = Carrying(log, 262_144)

        await site.until(lambda: site.publisher.counters.sent == 1)
        site.publisher.close()
        ran: list[Job] = []

        class Runner:
            async def run(self, found: Job, remaining_ms: int) -> None:
                ran.append(found)

        (record,) = site.records()
        await JobsHandler(AvroCodec(), Runner(), site.store)(record, context())

        assert site.publisher.counters.claims == 1
        assert ran[0].events[0].payload == b"\xc3\xa9" * 150_000
        site.store.objects = dict.fromkeys(site.store.objects, b"other")
        with pytest.raises(Reject, match="other content"):
            await JobsHandler(AvroCodec(), Runner(), site.store)(record, context())
        site.store.objects.clear()
        with pytest.raises(Retry, match="is not there"):
            await JobsHandler(AvroCodec(), Runner(), site.store)(record, context())

    play(scene)


def test_job_over_the_limit_without_a_bucket_is_a_dead_letter_and_the_rest_goes_on(
    log: Log,
) -> None:
    async def scene() -> None:
        write(log, job(0, b"x" * 300_000), job(1))
        site = Carrying(log, 262_144, bucket="")

        await site.until(lambda: site.publisher.counters.dead_letters == 1)
        await site.until(lambda: site.publisher.counters.sent == 1)
        site.publisher.close()

        reader = log.reader()
        (record,) = next(reader.read(TopicPartition(NAMES.dead_letters, 0), 0, 1))
        reader.close()
        letter = AvroCodec().decode_dead_letter(record.value)
        assert "over the limit" in letter.reason
        assert letter.key == b"order-0"

    play(scene)


def test_entry_that_failed_is_sent_again_alone_and_nothing_twice(log: Log) -> None:
    async def scene() -> None:
        write(log, *(job(number) for number in range(10)))
        site = Carrying(log)
        site.queue.faults.entries["send"] = [EntryFailure(FailureKind.TRANSIENT, "InternalError")]
        site.queue.faults.errors["send"] = [Retry("Throttling")]

        await site.until(lambda: site.publisher.counters.sent == 10)
        site.publisher.close()

        assert len(site.records()) == 10
        assert site.publisher.counters.retried == 1

    play(scene)


@pytest.mark.parametrize(("name", "messages"), [("jobs", 40), ("jobs.fifo", 20)])
def test_crash_between_send_and_commit_sends_again_and_loses_nothing(
    log: Log, name: str, messages: int
) -> None:
    async def scene() -> None:
        write(log, *(job(number) for number in range(20)))
        site = Carrying(log, name=name)
        site.publisher.close()
        site.publisher = site.begin(Crashing)
        await site.until(lambda: site.publisher.counters.sent == 20)
        site.publisher.close()

        site.publisher = site.begin()
        await site.until(lambda: site.publisher.counters.sent == 20)
        await site.publisher.step(10)
        site.publisher.close()
        again = site.begin()
        await again.step(50)

        assert len(site.records()) == messages
        assert len({record.record for record in site.records()}) == 20
        assert again.counters.sent == 0
        again.close()

    play(scene)


def test_claim_store_that_is_away_holds_that_job_and_no_other(log: Log) -> None:
    async def scene() -> None:
        write(log, job(0, b"x" * 300_000), job(1))
        site = Carrying(log, 262_144)
        site.store.faults = [Retry("away")]

        await site.until(lambda: site.publisher.counters.sent == 2)
        site.publisher.close()

        assert site.publisher.counters.claims == 1

    play(scene)


def test_job_that_cannot_go_now_holds_up_none_that_come_later_and_too_many_are_not_taken(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "WAITING_MAX", 30)

    async def scene() -> None:
        write(log, job(0, b"x" * 300_000), job(1))
        site = Carrying(log, 262_144)
        site.store.faults = [Retry("away")] * 1_000
        await site.until(lambda: site.publisher.counters.sent == 1)

        write(log, *(job(number) for number in range(20)))
        await site.until(lambda: site.publisher.counters.sent == 21)
        write(log, *(job(number) for number in range(500)))
        for _ in range(30):
            await site.publisher.step(10)
        # Partition 0 is not committed, so what is done there stays in memory; the other may go on.
        kept = [each for each in site.publisher._waiting if each.record.partition == 0]
        assert len(kept) <= 30 + publishing.POLL_RECORDS
        site.store.faults = []
        await site.until(lambda: site.publisher.counters.sent == 522)
        site.publisher.close()

        assert len({record.record or record.claim for record in site.records()}) == 501

    play(scene)


def test_pause_of_what_fails_grows_and_ends_with_success(log: Log) -> None:
    async def scene() -> None:
        write(log, job(0))
        site = Carrying(log)
        loop = asyncio.get_running_loop()
        site.queue.faults.errors["send"] = [Retry("Throttling")] * 8
        times: list[float] = []
        while site.publisher.counters.sent == 0:
            calls = site.queue.calls["send"]
            await site.publisher.step(10)
            if site.queue.calls["send"] > calls:
                times.append(loop.time())
        site.publisher.close()

        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(waits) == 8
        assert waits[0] < 1 < waits[3] < waits[-1]
        assert max(waits) <= publishing.PAUSE_S_MAX + 2 * publishing.LOOK_S
        assert not site.publisher._pause_s

    play(scene)


def test_text_that_can_be_an_identifier_stays_and_any_other_becomes_one_of_its_own() -> None:
    plain = ["tenant-7", "a/b:c~", "x" * 128]
    others = ["", "a b", "a-b ", "Müller", "Möller", "x" * 129, "y" * 300, "\x00", "\ud800"]

    assert [identifier(text) for text in plain] == plain
    made = [identifier(text) for text in others]
    assert len(set(made)) == len(others)
    assert all(len(each) <= 128 and each.isascii() and " " not in each for each in made)
    assert identifier("Müller").startswith("M-ller~")


def test_tenant_without_a_name_has_no_group() -> None:
    assert TYPE.outgoing(Task("t"), tenant="").group is None
    assert TYPE.outgoing(Task("t"), tenant="Müller").group == identifier("Müller")


def test_size_counts_bytes_of_body_and_attributes() -> None:
    message = OutgoingMessage("é" * 10, {"näme": "välue"})

    assert size_of(message) == 20 + 5 + len("String") + 6


def test_batches_keep_order_and_fit() -> None:
    messages = [OutgoingMessage("x" * size) for size in (40, 50, 20, 90, 200, 1)]

    found = [[len(each.body) for each in batch] for batch in batches(messages, 100)]

    assert found == [[40, 50], [20], [90], [200], [1]]
    assert [len(b) for b in batches([OutgoingMessage("x")] * 23, 100)] == [10, 10, 3]


@in_virtual_time
async def test_producer_refuses_what_the_queue_would(world: World) -> None:
    queue = world.queue(bytes_max=1_000)

    with pytest.raises(Reject, match=r"1,1\d\d bytes, its queue takes 1,000"):
        TYPE.outgoing(Task("x" * 1_000), bytes_max=1_000)
    with pytest.raises(Reject, match=r"U\+FFFE"):
        TYPE.outgoing(Task("a\ufffe"))
    with pytest.raises(Reject, match="JSON"):
        TYPE.outgoing(Task("\ud800"))
    with pytest.raises(Reject, match="over the limit"):
        await send_all(queue, [OutgoingMessage("x" * 999, {"a": "b"})])
    TYPE.outgoing(Task("\x00\x01\x1f"))  # JSON escapes these
    assert queue.calls["send"] == 0


@in_virtual_time
async def test_sender_repeats_what_failed_and_reports_what_never_went(world: World) -> None:
    queue = world.queue()
    again = EntryFailure(FailureKind.TRANSIENT, "InternalError")
    queue.faults.entries["send"] = [again]
    await send_all(queue, [TYPE.outgoing(Task(f"t{n}")) for n in range(3)])
    assert len(queue.shelf.messages) == 3

    queue.faults.errors["send"] = [Retry("away")] * 100
    with pytest.raises(Retry, match="1 messages to work were not sent: away"):
        await send_all(queue, [TYPE.outgoing(Task("t"))])


def test_version_that_is_newer_is_unhandled_and_an_older_one_is_upgraded() -> None:
    from cape_stream.queues.contract import OwnContract, Unhandled

    def rename(body: dict[str, Any]) -> dict[str, Any]:
        return {"name": body["title"]}

    newer = MessageType("task", Task, version=2, upgrades={1: rename})
    contract = OwnContract("work", (newer,))

    old = contract.decode('{"type": "task", "version": 1, "body": {"title": "a"}}')
    new = contract.decode('{"type": "task", "version": 2, "body": {"name": "a", "more": 1}}')
    newest = contract.decode('{"type": "task", "version": 3, "body": {}}')
    broken = contract.decode('{"type": "task", "version": 1, "body": {}}')

    assert old == new == Decoded("task", Task("a"))
    assert isinstance(newest, Unhandled)
    assert "version 3 of task is not known, only [1, 2]" in newest.reason
    assert isinstance(broken, Unhandled)
