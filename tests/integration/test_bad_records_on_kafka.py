"""Bad records on every topic of a real Kafka: kept, counted, and in nobody's way."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from cape_stream.adapters.avro import AvroCodec
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.ping import Ping
from cape_stream.model.subject import partition_of
from tests.integration import run_app
from tests.integration.test_kills_on_kafka import APP, Process, end_all

PINGS, STATUSES = "runs.orders.pings", "runs.orders.statuses"
JOBS, DEAD_LETTERS = "runs.jobs.general", "runs.dead-letters"
PARTITIONS = 4
LETTERS = 14
"""Five of pings, five of statuses, four of jobs. A record with a key and no value says nothing and
is skipped."""
CODEC = AvroCodec()
HUGE = bytes(range(256)) * 3_906
"""Almost a megabyte, the most a record may have."""
FOREIGN = CODEC.encode_dead_letter(DeadLetter("a", 0, 0, "b", None, None))


@pytest.mark.timeout(240)
def test_roles_bury_bad_records_of_every_topic_and_serve_the_next(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    run_app.fill(tmp_path, subjects=8, events_each=2)
    kafka = ("--kafka", kafka_bootstrap)
    apply = run_app.start(tmp_path, "topics", "apply", APP, *kafka, "--replication", "1")
    assert apply.wait(60) == 0, apply.communicate()[1]
    sender = Producer({"bootstrap.servers": kafka_bootstrap})
    good = CODEC.encode_ping(Ping("order-0", 1))
    owner = partition_of(b"order-0", PARTITIONS)
    for topic in (PINGS, STATUSES, JOBS):
        sender.produce(topic, None, b"order-0", owner)
        sender.produce(topic, None, None, owner)
        sender.produce(topic, b"\x00\x7f\xff\xff\xff", b"order-0", owner)
        sender.produce(topic, FOREIGN, b"order-0", owner)
        sender.produce(topic, HUGE, b"order-0", owner)
        sender.produce(topic, good[:-1] if topic == PINGS else b"\x01", b"order-0", owner)
    sender.produce(PINGS, good, b"order-0", (owner + 1) % PARTITIONS)  # on a partition not its own
    for number in range(1, 8):
        key = f"order-{number}".encode()
        ping = CODEC.encode_ping(Ping(f"order-{number}", 1))
        sender.produce(PINGS, ping, key, partition_of(key, PARTITIONS))
    sender.flush(20)

    with _members(tmp_path, kafka) as members:
        for member in members:
            run_app.wait_for(tmp_path, ["ledger", "audit"], 16, member)
        while len(letters := list(_letters(kafka_bootstrap))) < LETTERS:
            time.sleep(0.5)  # the last ones go out with the next commit

    assert all(each == [0, 1] for each in run_app.delivered(tmp_path, "audit").values())
    assert len({(each.topic, each.partition, each.offset) for each in letters}) == LETTERS
    for topic in (PINGS, STATUSES, JOBS):
        mine = [each for each in letters if each.topic == topic and each.partition == owner]
        assert b"\x00\x7f\xff\xff\xff" in [
            each.value for each in mine if each.reason == "unknown schema id 2147483647"
        ]
        assert FOREIGN in [each.value for each in mine if "foreign schema id" in each.reason]
        assert all(each.key == b"order-0" for each in mine if each.value is not None)
    huge = {each.topic: each for each in letters if "schema id 16909060" in each.reason}
    assert huge[PINGS].value == huge[STATUSES].value == HUGE
    assert huge[JOBS].value is None  # a worker says so where a record is too large for it to keep
    assert "value not kept" in huge[JOBS].reason
    nothing = {each.topic for each in letters if each.reason == "null key and null value"}
    assert nothing == {PINGS, STATUSES}


@contextmanager
def _members(folder: Path, kafka: Sequence[str]) -> Iterator[list[Process]]:
    """A dispatcher and a worker; no refresh, so that every event is here because of its ping."""
    members = [
        run_app.start(folder, role, APP, *kafka, "--data", str(folder / role), "--quiet")
        for role in ("dispatcher", "worker")
    ]
    try:
        yield members
    finally:
        end_all(members)


def _letters(bootstrap: str) -> Iterator[DeadLetter]:
    """Everything in the dead letter topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge"})
    for number in range(PARTITIONS):
        partition = KafkaPartition(DEAD_LETTERS, number, 0)
        low, high = consumer.get_watermark_offsets(partition, timeout=10)
        consumer.assign([partition])
        while low < high and max(consumer.position([partition])[0].offset, low) < high:
            for message in consumer.consume(100, 1.0):
                assert message.error() is None, message.error()
                yield CODEC.decode_dead_letter(message.value())
    consumer.close()
