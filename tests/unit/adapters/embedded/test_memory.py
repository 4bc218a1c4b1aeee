from collections.abc import Iterator
from pathlib import Path

import pytest

from cape_stream.adapters.embedded import EmbeddedLog, EmbeddedSettings
from cape_stream.ports.log import TopicPartition, TopicSpec
from tests.unit.adapters.embedded.listeners import Follower

SMALL = EmbeddedSettings(tail_bytes_max=0)
"""64 KiB of newest records in memory for a partition, the smallest there is."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path / "log", SMALL)
    log.create_topics([TopicSpec(name="t", partitions=2, config={})])
    yield log
    log.close()


def _send(log: EmbeddedLog, count: int, start: int = 0, partition: int = 0) -> None:
    producer = log.producer()
    for number in range(start, start + count):
        producer.send("t", partition, b"k", b"%d" % number + bytes(100))
    producer.close()


def _numbers(follower: Follower, partition: int = 0) -> list[int]:
    values = [r.value for r in follower.records if r.partition == partition]
    return [int(value.rstrip(b"\x00")) for value in values if value is not None]


def test_poll_reads_what_is_no_longer_in_memory(log: EmbeddedLog) -> None:
    _send(log, 3_000)

    follower = Follower(log, "g", ["t"])

    assert len(follower.drain(max_records=250)) == 3_000
    assert _numbers(follower) == list(range(3_000))


def test_poll_goes_from_disk_to_memory_and_back_without_a_gap(log: EmbeddedLog) -> None:
    follower = Follower(log, "g", ["t"])
    follower.drain()
    sent = 0
    for burst in (10, 2_000, 1, 700, 3, 3_000):
        _send(log, burst, start=sent)
        sent += burst
        follower.poll(max_records=37)

    follower.drain(max_records=113)

    assert _numbers(follower) == list(range(sent))


def test_poll_serves_every_partition_when_one_has_a_backlog(log: EmbeddedLog) -> None:
    _send(log, 5_000, partition=0)
    _send(log, 1, partition=1)
    follower = Follower(log, "g", ["t"])
    follower.poll(max_records=50)

    follower.poll(max_records=50)
    follower.poll(max_records=50)

    assert _numbers(follower, partition=1) == [0]
    assert 0 < len(_numbers(follower, partition=0)) <= 150


def test_poll_reads_the_rest_when_records_in_memory_were_deleted(log: EmbeddedLog) -> None:
    _send(log, 500)
    log.delete_records(TopicPartition("t", 0), 450)
    follower = Follower(log, "g", ["t"])

    follower.drain()
    _send(log, 10, start=500)
    follower.drain()

    assert _numbers(follower) == list(range(450, 510))


def test_delete_records_of_everything_leaves_an_empty_partition(log: EmbeddedLog) -> None:
    _send(log, 500)
    follower = Follower(log, "g", ["t"])
    follower.poll(max_records=10)
    follower.poll(max_records=10)
    seen = len(follower.records)

    log.delete_records(TopicPartition("t", 0), 10**9)
    follower.drain()
    _send(log, 1, start=500)
    follower.drain()

    assert _numbers(follower)[seen:] == [500]
    assert [(told[1], told[2]) for told in follower.repositions] == [(seen, (500, 500))]
