"""Reading outside any group, for restore."""

import pytest

from cape_stream.errors import Corrupt
from cape_stream.ports.log import TopicPartition, Watermarks, Write
from tests.contract.log_stage import Stage, numbered


def test_read_stops_at_the_end_it_was_given(stage: Stage) -> None:
    """Exactly [start, end), in order, whatever the size of the batches."""
    topic = stage.topic(2)
    stage.send(topic, numbered(5_000), 1)

    records = stage.read(topic, 1, 17, 4_321)

    assert [record.offset for record in records] == list(range(17, 4_321))
    assert [record.value for record in records] == numbered(4_321)[17:]
    assert {record[:2] for record in records} == {(topic, 1)}


def test_read_of_an_empty_range_yields_nothing(stage: Stage) -> None:
    """At the start, in the middle and at the end."""
    topic = stage.topic()
    stage.send(topic, numbered(5))

    assert [stage.read(topic, 0, at, at) for at in (0, 3, 5)] == [[], [], []]


def test_read_gives_keys_and_values_as_they_are(stage: Stage) -> None:
    """Tombstones and records without a key are part of a restore."""
    topic, producer = stage.topic(), stage.producer()
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (b"k", None),
        (None, b"v"),
        (b"", b""),
        (b"\x00\xff", b"\xff\x00"),
    ]
    for key, value in pairs:
        producer.send(topic, 0, key, value)
    producer.flush(10_000)

    assert [(record.key, record.value) for record in stage.read(topic)] == pairs


def test_watermarks_of_a_partition_never_written_are_zero(stage: Stage) -> None:
    """B03: nothing to restore is no error."""
    topic = stage.topic(2)
    stage.send(topic, [b"elsewhere"], 1)

    assert stage.watermarks(topic, 0) == Watermarks(0, 0)
    assert stage.read(topic, 0) == []


def test_watermarks_follow_what_is_written_and_deleted(stage: Stage) -> None:
    """Low is the first kept offset, high the next one to be given."""
    topic = stage.topic()
    seen = [stage.watermarks(topic)]
    stage.send(topic, numbered(8))
    seen.append(stage.watermarks(topic))
    stage.under_test.truncate(TopicPartition(topic, 0), 3)
    seen.append(stage.watermarks(topic))
    stage.send(topic, numbered(2))
    seen.append(stage.watermarks(topic))

    assert seen == [(0, 0), (0, 8), (3, 8), (3, 10)]


def test_read_ends_at_once_when_everything_was_deleted(stage: Stage) -> None:
    """B03: low = high = 100."""
    topic = stage.topic()
    stage.send(topic, numbered(100))
    stage.under_test.truncate(TopicPartition(topic, 0), 100)

    assert stage.watermarks(topic) == Watermarks(100, 100)
    assert stage.read(topic, 0, 100, 100) == []


@pytest.mark.parametrize("start", [0, 4])
def test_read_is_corrupt_when_it_starts_below_what_is_kept(stage: Stage, start: int) -> None:
    """B05: the saved position is older than the log: rebuild from low, never a silent gap."""
    topic = stage.topic()
    stage.send(topic, numbered(10))
    stage.under_test.truncate(TopicPartition(topic, 0), 5)

    with pytest.raises(Corrupt):
        stage.read(topic, 0, start, 10)

    assert [r.value for r in stage.read(topic, 0, 5, 10)] == numbered(5, start=5)


def test_read_skips_what_is_not_a_record(stage: Stage) -> None:
    """Compacted records and the marks of transactions are gaps; the high watermark ends it."""
    source, group = stage.topic(), stage.name("group")
    consumer = stage.join(group, [source])
    stage.own(consumer, TopicPartition(source, 0))
    topic = stage.topic(config={"cleanup.policy": "compact"})
    committer = stage.committer()
    for number in range(4):
        writes = [Write(topic, 0, b"same", b"%d" % number), Write(topic, 0, b"%d" % number, b"v")]
        stage.commit(committer, writes, {}, consumer.member.ownership())
    kept = stage.watermarks(topic)

    records = stage.read(topic, 0, kept.low, kept.high)

    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert {record.key: record.value for record in records} == {
        b"same": b"3",
        **{b"%d" % number: b"v" for number in range(4)},
    }


def test_read_in_parts_is_the_same_as_in_one(stage: Stage) -> None:
    """A restore that was interrupted goes on from the offset it reached."""
    topic = stage.topic()
    stage.send(topic, numbered(1_000))
    high = stage.watermarks(topic).high

    parts = [
        record
        for start in range(0, high, 137)
        for record in stage.read(topic, 0, start, min(start + 137, high))
    ]

    assert parts == stage.read(topic)


def test_read_is_not_disturbed_by_records_that_arrive(stage: Stage) -> None:
    """The end was fixed when it began."""
    topic = stage.topic()
    stage.send(topic, numbered(3_000))
    reader = stage.log.reader()

    batches = reader.read(TopicPartition(topic, 0), 0, 3_000)
    records = list(next(batches))
    stage.send(topic, numbered(100))
    for batch in batches:
        records += batch
    reader.close()

    assert [record.value for record in records] == numbered(3_000)
