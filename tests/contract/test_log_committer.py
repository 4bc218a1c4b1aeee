"""Records and offsets in one atomic step."""

import threading

from cape_stream.ports.log import TopicPartition, Write
from tests.contract.log_stage import Consumer, Stage, numbered
from tests.waiting import eventually


def _owner(stage: Stage, partitions: int = 1, records: int = 10) -> tuple[Consumer, str, str]:
    """A member that owns a topic with records, the topic, and its group."""
    topic, group = stage.topic(partitions), stage.name("group")
    for partition in range(partitions):
        stage.send(topic, numbered(records), partition)
    consumer = stage.join(group, [topic])
    stage.own(consumer, *(TopicPartition(topic, number) for number in range(partitions)))
    return consumer, topic, group


def test_commit_stores_records_and_offsets(stage: Stage) -> None:
    """Everybody sees the records, and the group goes on behind the offsets."""
    consumer, topic, group = _owner(stage)
    target = stage.topic(2)
    writes = [
        Write(target, 0, b"a", b"1"),
        Write(target, 1, b"b", b"2"),
        Write(target, 0, b"c", None),
        Write(target, 0, None, b"4"),
    ]

    last = stage.commit(
        stage.committer(), writes, {TopicPartition(topic, 0): 7}, consumer.member.ownership()
    )
    consumer.member.close()

    first_partition = stage.read(target, 0)
    assert [(r.key, r.value) for r in first_partition] == [
        (b"a", b"1"),
        (b"c", None),
        (None, b"4"),
    ]
    assert [(r.key, r.value) for r in stage.read(target, 1)] == [(b"b", b"2")]
    assert last == {
        TopicPartition(target, 0): first_partition[-1].offset,
        TopicPartition(target, 1): stage.read(target, 1)[-1].offset,
    }
    again = stage.join(group, [topic])
    assert stage.receive(again, 3)[0].offset == 7


def test_stored_offsets_of_a_group_can_be_read(stage: Stage) -> None:
    """By anybody, of any partition; None where nothing was stored, or nobody knows the group."""
    consumer, topic, group = _owner(stage, partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    reader = stage.log.reader()
    before = reader.committed(group, first)

    stage.commit(stage.committer(), [], {first: 7}, consumer.member.ownership())

    eventually(lambda: reader.committed(group, first) == 7)
    others = [reader.committed(group, second), reader.committed(stage.name("nobody"), first)]
    reader.close()
    assert (before, others) == (None, [None, None])


def test_commit_reaches_members_of_other_groups(stage: Stage) -> None:
    """Committed records are delivered as any others, in the order of the commits."""
    consumer, topic, _ = _owner(stage)
    target = stage.topic()
    other = stage.join(stage.name("group"), [target])
    stage.own(other, TopicPartition(target, 0))
    committer = stage.committer()

    for number in range(5):
        writes = [Write(target, 0, b"k", b"%d-%d" % (number, at)) for at in range(3)]
        offsets = {TopicPartition(topic, 0): number + 1}
        stage.commit(committer, writes, offsets, consumer.member.ownership())
    stage.receive(other, 15)

    expected = [b"%d-%d" % (number, at) for number in range(5) for at in range(3)]
    assert other.values(target) == expected


def test_commit_returns_offsets_that_grow(stage: Stage) -> None:
    """The offset returned is the record's own, commit after commit."""
    consumer, topic, _ = _owner(stage)
    target, committer = stage.topic(), stage.committer()
    name = TopicPartition(target, 0)

    returned = [
        stage.commit(
            committer,
            [Write(target, 0, b"k", value)],
            {TopicPartition(topic, 0): 1},
            consumer.member.ownership(),
        )[name]
        for value in numbered(4)
    ]

    assert returned == [record.offset for record in stage.read(target)]
    assert returned == sorted(set(returned))


def test_commit_of_offsets_alone_stores_them(stage: Stage) -> None:
    """An idle task renews its proof by committing the offset it has already."""
    consumer, topic, group = _owner(stage)

    last = stage.commit(
        stage.committer(), [], {TopicPartition(topic, 0): 4}, consumer.member.ownership()
    )
    consumer.member.close()

    assert last == {}
    assert stage.receive(stage.join(group, [topic]), 6)[0].offset == 4


def test_commit_of_records_alone_stores_them(stage: Stage) -> None:
    """A write needs no offset to go with it."""
    consumer, _, _ = _owner(stage)
    target = stage.topic()

    stage.commit(stage.committer(), [Write(target, 0, b"k", b"v")], {}, consumer.member.ownership())

    assert [r.value for r in stage.read(target)] == [b"v"]


def test_commit_of_nothing_is_accepted(stage: Stage) -> None:
    """There is nothing to refuse."""
    consumer, _, _ = _owner(stage)

    assert stage.commit(stage.committer(), [], {}, consumer.member.ownership()) == {}


def test_commit_keeps_order_and_completeness_when_it_is_large(stage: Stage) -> None:
    """Thousands of records over several partitions, and offsets of several topics."""
    consumer, topic, group = _owner(stage, partitions=3)
    target = stage.topic(4)
    writes = [Write(target, n % 4, b"%d" % n, value) for n, value in enumerate(numbered(8_000))]
    offsets = {TopicPartition(topic, number): number + 2 for number in range(3)}

    last = stage.commit(stage.committer(), writes, offsets, consumer.member.ownership())
    consumer.member.close()

    for partition in range(4):
        records = stage.read(target, partition)
        assert [r.value for r in records] == numbered(8_000)[partition::4]
        assert last[TopicPartition(target, partition)] == records[-1].offset
    again = stage.join(group, [topic], resumes=False)
    stage.own(again, *offsets)
    assert again.positions_when_assigned == offsets


def test_commit_from_another_thread_while_the_member_polls(stage: Stage) -> None:
    """The commit must not stand in the loop's way, so it runs beside it."""
    consumer, topic, _ = _owner(stage, records=200)
    target, committer = stage.topic(), stage.committer()
    proofs = [consumer.member.ownership()]

    def commit_all() -> None:
        for number, value in enumerate(numbered(20)):
            offsets = {TopicPartition(topic, 0): number}
            stage.commit(committer, [Write(target, 0, b"k", value)], offsets, proofs[-1])

    thread = threading.Thread(target=commit_all)
    thread.start()
    while thread.is_alive():
        consumer.step(max_records=3)
        proofs.append(consumer.member.ownership())
    thread.join()

    assert [r.value for r in stage.read(target)] == numbered(20)


def test_compacted_topic_keeps_the_newest_record_of_each_key(stage: Stage) -> None:
    """Whatever compaction has done so far: who reads from the low watermark ends at the newest."""
    consumer, _, _ = _owner(stage)
    target = stage.topic(config={"cleanup.policy": "compact"})
    committer = stage.committer()

    for number in range(6):
        writes = [Write(target, 0, b"%d" % key, b"%d/%d" % (key, number)) for key in range(10)]
        writes.append(Write(target, 0, b"gone", None if number == 5 else b"still"))
        stage.commit(committer, writes, {}, consumer.member.ownership())

    newest = {record.key: record.value for record in stage.read(target)}
    assert newest == {b"%d" % key: b"%d/5" % key for key in range(10)} | {b"gone": None}
