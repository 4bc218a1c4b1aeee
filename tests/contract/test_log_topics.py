"""Topics of a log."""

from cape_stream.ports.log import TopicPartition, TopicSpec
from tests.contract.log_stage import Stage, numbered


def test_create_topics_makes_each_with_its_partitions(stage: Stage) -> None:
    """Several topics at once; a topic never asked for is left out of the counts."""
    first, second, missing = stage.name("a"), stage.name("b"), stage.name("c")

    stage.log.create_topics(
        [
            TopicSpec(name=first, partitions=1, config={}),
            TopicSpec(name=second, partitions=3, config={"cleanup.policy": "compact"}),
        ]
    )

    counts = stage.log.partition_counts([first, second, missing])
    assert counts == {first: 1, second: 3}


def test_create_topics_leaves_existing_ones_as_they_are_when_repeated(stage: Stage) -> None:
    """Other settings for a name that exists change nothing, and new names beside it are made."""
    old, new = stage.topic(partitions=2), stage.name("new")
    stage.send(old, [b"kept"], partition=1)

    for _ in range(2):
        stage.log.create_topics(
            [
                TopicSpec(name=old, partitions=5, config={"cleanup.policy": "compact"}),
                TopicSpec(name=new, partitions=1, config={}),
            ]
        )

    assert stage.log.partition_counts([old, new]) == {old: 2, new: 1}
    assert [record.value for record in stage.read(old, 1)] == [b"kept"]


def test_create_topics_accepts_none_at_all(stage: Stage) -> None:
    """An App without topics is nobody's problem."""
    stage.log.create_topics([])

    assert stage.log.partition_counts([]) == {}


def test_log_keeps_everything_when_reopened(stage: Stage) -> None:
    """Topics, records, low watermarks and committed offsets are there for the next process."""
    topic, group = stage.topic(partitions=2), stage.name("group")
    stage.send(topic, numbered(10))
    stage.under_test.truncate(TopicPartition(topic, 0), 3)
    consumer = stage.join(group, [topic])
    stage.receive(consumer, 7)
    consumer.member.commit({TopicPartition(topic, 0): 6})
    consumer.member.close()

    stage.under_test.reopen()

    assert stage.log.partition_counts([topic]) == {topic: 2}
    assert stage.watermarks(topic) == (3, 10)
    assert [record.value for record in stage.read(topic)] == numbered(7, start=3)
    again = stage.join(group, [topic])
    assert [record.offset for record in stage.receive(again, 4)] == [6, 7, 8, 9]


def test_log_continues_offsets_when_reopened_after_everything_was_deleted(stage: Stage) -> None:
    """B03: low = high > 0 survives a restart, or offsets would be given out twice."""
    topic = stage.topic()
    stage.send(topic, numbered(5))
    stage.under_test.truncate(TopicPartition(topic, 0), 5)

    stage.under_test.reopen()

    assert stage.watermarks(topic) == (5, 5)
    stage.send(topic, [b"next"])
    assert [(r.offset, r.value) for r in stage.read(topic)] == [(5, b"next")]
