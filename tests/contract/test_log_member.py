"""One member of a group: what it is given, and from where."""

import threading

import pytest

from cape_stream.errors import Fenced
from cape_stream.ports.log import TopicPartition, Watermarks
from tests.contract.implementations import needs
from tests.contract.log_stage import PATIENCE_S, Stage, numbered


def test_poll_delivers_each_partition_in_order(stage: Stage) -> None:
    """Every record once, with its topic, partition, offset, key and value, in offset order."""
    topic = stage.topic(partitions=3)
    for partition in range(3):
        stage.send(topic, numbered(40), partition, key=b"key-%d" % partition)
    consumer = stage.join(stage.name("group"), [topic])

    records = stage.receive(consumer, 120)

    for partition in range(3):
        own = [record for record in records if record.partition == partition]
        assert [record.value for record in own] == numbered(40)
        assert [record.offset for record in own] == list(range(40))
        assert {(record.topic, record.key) for record in own} == {(topic, b"key-%d" % partition)}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"k", None),
        (None, b"v"),
        (None, None),
        (b"", b""),
        (b"", None),
        (None, b""),
        (bytes(range(256)), bytes(range(255, -1, -1))),
    ],
)
def test_poll_delivers_key_and_value_as_they_are(
    stage: Stage, key: bytes | None, value: bytes | None
) -> None:
    """A tombstone is not an empty value, and no key is not an empty key."""
    topic = stage.topic()
    producer = stage.producer()
    producer.send(topic, 0, key, value)
    assert producer.flush(int(PATIENCE_S * 1_000))
    consumer = stage.join(stage.name("group"), [topic])

    (record,) = stage.receive(consumer, 1)

    assert (record.key, record.value) == (key, value)
    assert record.timestamp_ms > 0


def test_poll_takes_at_most_what_was_asked_for(stage: Stage) -> None:
    """The rest comes with later polls."""
    topic = stage.topic()
    stage.send(topic, numbered(25))
    consumer = stage.join(stage.name("group"), [topic])
    sizes = []

    while len(consumer.records) < 25:
        sizes.append(len(consumer.step(max_records=7)))

    assert max(sizes) <= 7
    assert consumer.values(topic) == numbered(25)


def test_poll_returns_nothing_when_there_is_nothing(stage: Stage) -> None:
    """An empty log is no error."""
    topic = stage.topic()
    consumer = stage.join(stage.name("group"), [topic])
    stage.own(consumer, TopicPartition(topic, 0))

    assert consumer.member.poll(10, 0) == []
    assert consumer.member.poll(10, 10) == []


@needs("waiting poll")
def test_poll_returns_when_a_record_arrives_meanwhile(stage: Stage) -> None:
    """A waiting poll is woken by another thread's send, though nobody polls the producer."""
    topic = stage.topic()
    consumer = stage.join(stage.name("group"), [topic])
    stage.own(consumer, TopicPartition(topic, 0))
    stage.idle(consumer, rounds=2)
    producer = stage.producer()
    sender = threading.Timer(0.2, producer.send, (topic, 0, b"k", b"late"))

    sender.start()
    records = consumer.member.poll(10, int(PATIENCE_S * 1_000))
    sender.join()

    assert [record.value for record in records] == [b"late"]


def test_poll_starts_at_the_earliest_record_when_nothing_is_committed(stage: Stage) -> None:
    """A new group misses nothing that is kept."""
    topic = stage.topic()
    stage.send(topic, numbered(10))
    stage.under_test.truncate(TopicPartition(topic, 0), 4)
    consumer = stage.join(stage.name("group"), [topic])

    stage.receive(consumer, 6)
    stage.idle(consumer)

    assert consumer.values(topic) == numbered(6, start=4)
    assert consumer.repositions == []


def test_poll_starts_at_the_committed_offset_when_the_group_comes_back(stage: Stage) -> None:
    """`Member.commit` stores the next offset to read, per partition."""
    topic, group = stage.topic(partitions=2), stage.name("group")
    stage.send(topic, numbered(10), 0)
    stage.send(topic, numbered(10), 1)
    first = stage.join(group, [topic])
    stage.receive(first, 20)
    first.member.commit({TopicPartition(topic, 0): 7})
    first.member.close()

    second = stage.join(group, [topic])
    stage.receive(second, 13)
    stage.idle(second)

    assert second.values(topic, 0) == numbered(3, start=7)
    assert second.values(topic, 1) == numbered(10)


def test_commit_of_a_member_wins_over_its_earlier_ones(stage: Stage) -> None:
    """Offsets may be committed again and again, also backwards: the last one counts."""
    topic, group = stage.topic(), stage.name("group")
    stage.send(topic, numbered(10))
    first = stage.join(group, [topic])
    stage.receive(first, 10)
    for offset in (3, 9, 5):
        first.member.commit({TopicPartition(topic, 0): offset})
    first.member.close()

    second = stage.join(group, [topic])

    assert stage.receive(second, 5)[0].offset == 5


def test_partitions_start_paused_when_assigned(stage: Stage) -> None:
    """Nothing is delivered before the first resume: a task has to restore its state first."""
    topic = stage.topic(partitions=2)
    for partition in range(2):
        stage.send(topic, numbered(5), partition)
    consumer = stage.join(stage.name("group"), [topic], resumes=False)
    stage.own(consumer, TopicPartition(topic, 0), TopicPartition(topic, 1))

    stage.idle(consumer)
    before = list(consumer.records)
    consumer.member.resume([TopicPartition(topic, 1)])
    stage.receive(consumer, 5)
    stage.idle(consumer)

    assert before == []
    assert consumer.values(topic, 0) == []
    assert consumer.values(topic, 1) == numbered(5)


def test_resume_goes_on_where_pause_stopped(stage: Stage) -> None:
    """Paused partitions deliver nothing, others do; afterwards nothing is missing or doubled."""
    topic = stage.topic(partitions=2)
    for partition in range(2):
        stage.send(topic, numbered(60), partition)
    consumer = stage.join(stage.name("group"), [topic])
    while len(consumer.values(topic, 0)) < 5:
        consumer.step(max_records=5)

    consumer.member.pause([TopicPartition(topic, 0)])
    seen = len(consumer.values(topic, 0))
    stage.drive(consumer, until=lambda: len(consumer.values(topic, 1)) == 60)
    stage.idle(consumer)
    while_paused = len(consumer.values(topic, 0))
    consumer.member.resume([TopicPartition(topic, 0)])
    stage.receive(consumer, 120)

    assert while_paused == seen
    assert consumer.values(topic, 0) == numbered(60)
    assert consumer.values(topic, 1) == numbered(60)


def test_pause_holds_for_records_that_arrive_meanwhile(stage: Stage) -> None:
    """A partition that is paused at the end of the log stays silent when records come."""
    topic = stage.topic()
    stage.send(topic, numbered(3))
    consumer = stage.join(stage.name("group"), [topic])
    stage.receive(consumer, 3)

    consumer.member.pause([TopicPartition(topic, 0)])
    stage.send(topic, numbered(3, start=3))
    stage.idle(consumer)
    while_paused = len(consumer.records)
    consumer.member.resume([TopicPartition(topic, 0)])
    stage.receive(consumer, 6)

    assert while_paused == 3
    assert consumer.values(topic) == numbered(6)


def test_position_is_the_next_offset(stage: Stage) -> None:
    """Known when `assigned` is called, paused or not; none for what is not ours."""
    topic, group = stage.topic(), stage.name("group")
    name = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    first = stage.join(group, [topic])
    stage.receive(first, 10)
    first.member.commit({name: 4})
    first.member.close()
    second = stage.join(group, [topic], resumes=False)
    before = second.member.position(name)
    stage.own(second, name)
    while_paused = second.member.position(name)

    second.member.resume([name])
    stage.drive(second, until=lambda: bool(second.records))
    after = second.records[-1].offset + 1
    position_after = second.member.position(name)

    assert before is None
    assert second.positions_when_assigned == {name: 4}
    assert while_paused == 4
    assert position_after == after
    assert second.member.position(TopicPartition(topic, 9)) is None


def test_position_of_a_new_group_is_the_low_watermark(stage: Stage) -> None:
    """So a claim can carry offsets before the first record was read."""
    topic = stage.topic(partitions=2)
    stage.send(topic, numbered(5))
    stage.under_test.truncate(TopicPartition(topic, 0), 2)
    consumer = stage.join(stage.name("group"), [topic], resumes=False)

    stage.own(consumer, TopicPartition(topic, 0), TopicPartition(topic, 1))

    assert consumer.positions_when_assigned == {
        TopicPartition(topic, 0): 2,
        TopicPartition(topic, 1): 0,
    }


@pytest.mark.parametrize("committed", [2, 50])
def test_poll_starts_at_the_earliest_record_when_the_committed_offset_is_out_of_range(
    stage: Stage, committed: int
) -> None:
    """B08: below what is kept or beyond its end, never idle and never at the end."""
    topic, group = stage.topic(), stage.name("group")
    name = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    first = stage.join(group, [topic])
    stage.receive(first, 10)
    first.member.commit({name: committed})
    first.member.close()
    stage.under_test.truncate(name, 6)

    second = stage.join(group, [topic])
    stage.receive(second, 4)
    stage.idle(second)

    assert second.values(topic) == numbered(4, start=6)
    assert len(second.repositions) == 1
    told = second.repositions[0]
    assert (told.partition, told.committed, told.kept.low) == (name, committed, 6)


def test_poll_goes_on_at_the_earliest_record_when_retention_overtakes_it(stage: Stage) -> None:
    """A paused member whose position was deleted meanwhile is told, and goes on."""
    topic = stage.topic()
    name = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    consumer = stage.join(stage.name("group"), [topic], resumes=False)
    stage.own(consumer, name)
    stage.under_test.truncate(name, 8)

    consumer.member.resume([name])
    stage.receive(consumer, 2)

    assert consumer.values(topic) == numbered(2, start=8)
    assert [(told.partition, told.kept.low) for told in consumer.repositions] == [(name, 8)]


def test_poll_serves_a_partition_whose_records_were_all_deleted(stage: Stage) -> None:
    """B03: empty with low = high > 0; the next record is delivered as any other."""
    topic = stage.topic()
    name = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    stage.under_test.truncate(name, 10)
    consumer = stage.join(stage.name("group"), [topic])
    stage.own(consumer, name)
    stage.idle(consumer)

    stage.send(topic, [b"next"])
    stage.receive(consumer, 1)

    assert stage.watermarks(topic) == Watermarks(10, 11)
    assert [(r.offset, r.value) for r in consumer.records] == [(10, b"next")]
    assert consumer.repositions == []


def test_poll_delivers_backlog_and_news_without_a_gap(stage: Stage) -> None:
    """Records that arrive while a backlog is being read follow it in order, each once."""
    topic = stage.topic()
    stage.send(topic, numbered(3_000))
    consumer = stage.join(stage.name("group"), [topic])
    stage.drive(consumer, until=lambda: len(consumer.records) >= 100)

    stage.send(topic, numbered(500, start=3_000))
    stage.receive(consumer, 3_500)
    stage.idle(consumer)

    assert consumer.values(topic) == numbered(3_500)


def test_close_ends_the_membership(stage: Stage) -> None:
    """It is told what leaves, and may close twice."""
    topic = stage.topic(partitions=2)
    consumer = stage.join(stage.name("group"), [topic])
    stage.own(consumer, TopicPartition(topic, 0), TopicPartition(topic, 1))

    consumer.member.close()
    consumer.member.close()

    assert consumer.owned == set()
    assert stage.told[-1].what == "revoked"


@needs("no proof without membership")
def test_ownership_is_fenced_when_the_member_was_closed(stage: Stage) -> None:
    """There is nothing left that a proof could vouch for."""
    topic = stage.topic()
    consumer = stage.join(stage.name("group"), [topic])
    stage.own(consumer, TopicPartition(topic, 0))

    consumer.member.close()

    with pytest.raises(Fenced):
        consumer.member.ownership()
