"""Several members of a group, and several groups."""

from collections import Counter

import pytest

from cape_stream.errors import Fenced
from cape_stream.ports.log import Ownership, TopicPartition, Write
from tests.contract.implementations import needs
from tests.contract.log_stage import Consumer, Stage, numbered


def _pairs(topics: list[str], numbers: range) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic in topics for number in numbers}


def _joined(stage: Stage, group: str, topics: list[str], partitions: int) -> Consumer:
    """A first member that owns everything."""
    consumer = stage.join(group, topics, name="A")
    stage.own(consumer, *_pairs(topics, range(partitions)))
    return consumer


def test_members_share_evenly_and_hold_the_same_numbers_of_every_topic(stage: Stage) -> None:
    """Two topics of four partitions, two members: two numbers each, of both topics."""
    topics = [stage.topic(4), stage.topic(4)]
    group = stage.name("group")
    first = _joined(stage, group, topics, 4)
    second = stage.join(group, topics, name="B")

    stage.drive(first, second, until=lambda: len(first.owned) == len(second.owned) == 4)

    assert first.owned == _pairs(topics, range(4)) - second.owned
    for consumer in (first, second):
        assert len(consumer.numbers()) == 2
        assert consumer.owned == {
            TopicPartition(topic, number) for topic in topics for number in consumer.numbers()
        }


@needs("incremental moves")
def test_partitions_move_only_as_far_as_needed_when_a_member_joins(stage: Stage) -> None:
    """What the first member keeps is never taken away from it in between."""
    topic, group = stage.topic(4), stage.name("group")
    first = _joined(stage, group, [topic], 4)
    second = stage.join(group, [topic], name="B")

    stage.drive(first, second, until=lambda: len(second.owned) == 2)

    revoked = [told.partitions for told in stage.told if told.what == "revoked"]
    assert frozenset().union(*revoked) == second.owned


def test_partitions_are_revoked_before_somebody_else_gets_them(stage: Stage) -> None:
    """At no moment two members have the same partition, through joins and leaves."""
    topics = [stage.topic(6), stage.topic(6)]
    group = stage.name("group")
    first = _joined(stage, group, topics, 6)
    second = stage.join(group, topics, name="B")
    stage.drive(first, second, until=lambda: len(second.owned) == 6)
    third = stage.join(group, topics, name="C")
    stage.drive(first, second, third, until=lambda: len(third.owned) == 4)
    second.member.close()
    stage.drive(first, third, until=lambda: len(first.owned | third.owned) == 12)

    owner: dict[TopicPartition, str] = {}
    for told in stage.told:
        for name in told.partitions:
            if told.what == "assigned":
                assert name not in owner
                owner[name] = told.who
            else:
                assert owner.pop(name) == told.who
    assert Counter(owner.values()) == {"A": len(first.owned), "C": len(third.owned)}


def test_everything_goes_to_those_who_stay_when_a_member_leaves(stage: Stage) -> None:
    """The one that closes is asked first; the other goes on from what is committed."""
    topic, group = stage.topic(2), stage.name("group")
    for partition in range(2):
        stage.send(topic, numbered(10), partition)
    first = _joined(stage, group, [topic], 2)
    stage.receive(first, 20)
    second = stage.join(group, [topic], name="B")
    stage.drive(first, second, until=lambda: len(first.owned) == len(second.owned) == 1)
    (moved,) = second.owned
    stage.receive(second, 10)  # nothing was committed: it begins anew

    second.member.commit({moved: 8})
    second.member.close()
    first.records.clear()
    stage.drive(first, until=lambda: len(first.values(topic, moved.partition)) >= 2)
    stage.idle(first)

    assert first.owned == _pairs([topic], range(2))
    assert first.values(topic, moved.partition) == numbered(2, start=8)


def test_nothing_is_lost_or_doubled_when_the_last_commit_is_made_in_the_callback(
    stage: Stage,
) -> None:
    """A commit inside `revoked` is accepted and the new owner begins exactly behind it."""
    topic, group = stage.topic(4), stage.name("group")
    for partition in range(4):
        stage.send(topic, numbered(50), partition)
    committer = stage.committer()
    first = stage.join(group, [topic], name="A")

    def commit_all(leaving: frozenset[TopicPartition]) -> None:
        at = {name: first.member.position(name) for name in leaving}
        offsets = {name: offset for name, offset in at.items() if offset is not None}
        stage.commit(committer, [], offsets, first.member.ownership())

    first.when_revoked = commit_all
    while len(first.records) < 60:
        first.step(max_records=15)
    second = stage.join(group, [topic], name="B")
    stage.drive(first, second, until=lambda: len(first.owned) == len(second.owned) == 2)
    stage.drive(first, second, until=lambda: len(first.records) + len(second.records) >= 200)
    stage.idle(first, second)

    seen = Counter((r.partition, r.value) for r in first.records + second.records)
    assert len(seen) == 200
    assert set(seen.values()) == {1}


def test_commit_is_accepted_in_the_callback_when_a_member_closes(stage: Stage) -> None:
    """`close` asks the listener while the partitions are still its own."""
    topic, group = stage.topic(), stage.name("group")
    name = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    committer = stage.committer()
    first = _joined(stage, group, [topic], 1)
    stage.receive(first, 10)

    def commit_last(_: frozenset[TopicPartition]) -> None:
        stage.commit(committer, [], {name: 6}, first.member.ownership())

    first.when_revoked = commit_last
    first.member.close()
    second = stage.join(group, [topic], name="B")

    assert [r.offset for r in stage.receive(second, 4)] == [6, 7, 8, 9]


def test_groups_do_not_know_each_other(stage: Stage) -> None:
    """Each group gets every record and has offsets of its own."""
    topic = stage.topic()
    stage.send(topic, numbered(10))
    names = [stage.name("group"), stage.name("group")]
    first, second = (stage.join(group, [topic]) for group in names)
    stage.receive(first, 10)
    stage.receive(second, 10)
    first.member.commit({TopicPartition(topic, 0): 10})
    first.member.close()
    second.member.close()

    again = stage.join(names[1], [topic])

    assert len(stage.receive(again, 10)) == 10


def test_members_get_only_topics_they_asked_for(stage: Stage) -> None:
    """Workers of one group may serve different queues."""
    topics = [stage.topic(2), stage.topic(2)]
    group = stage.name("group")
    first = stage.join(group, topics[:1], name="A")
    second = stage.join(group, topics[1:], name="B")

    stage.drive(first, second, until=lambda: len(first.owned) + len(second.owned) == 4)

    assert first.owned == _pairs(topics[:1], range(2))
    assert second.owned == _pairs(topics[1:], range(2))


def test_topics_of_different_size_are_all_assigned(stage: Stage) -> None:
    """Nobody owns half a topic for ever because another one is smaller."""
    topics = [stage.topic(1), stage.topic(5)]
    group = stage.name("group")
    everything = {TopicPartition(topics[0], 0)} | _pairs(topics[1:], range(5))
    first = stage.join(group, topics, name="A")
    second = stage.join(group, topics, name="B")

    stage.drive(first, second, until=lambda: first.owned | second.owned == everything)

    stage.drive(first, second, until=lambda: min(len(first.owned), len(second.owned)) >= 2)
    assert first.owned.isdisjoint(second.owned)


def test_member_beyond_the_number_of_partitions_waits_for_one_to_leave(stage: Stage) -> None:
    """The refresh leader's stand-by: nothing now, everything when the leader goes."""
    topic, group = stage.topic(1), stage.name("group")
    name = TopicPartition(topic, 0)
    first = _joined(stage, group, [topic], 1)
    second = stage.join(group, [topic], name="B")
    stage.idle(first, second)
    owned_meanwhile = (set(first.owned), set(second.owned))

    first.member.close()
    stage.own(second, name)

    assert owned_meanwhile == ({name}, set())


def _moved(stage: Stage) -> tuple[Consumer, Consumer, TopicPartition, Ownership, str]:
    """Two members, a partition that went from A to B, and A's proof from before."""
    topic, group = stage.topic(2), stage.name("group")
    for partition in range(2):
        stage.send(topic, numbered(10), partition)
    first = _joined(stage, group, [topic], 2)
    proof = first.member.ownership()
    second = stage.join(group, [topic], name="B")
    stage.drive(first, second, until=lambda: len(first.owned) == len(second.owned) == 1)
    (moved,) = second.owned
    return first, second, moved, proof, group


def test_commit_is_fenced_when_its_partition_has_moved(stage: Stage) -> None:
    """Neither the old proof nor a new one lets A commit what is B's, and nothing is stored."""
    first, second, moved, proof, _ = _moved(stage)
    target = stage.topic()
    committer = stage.committer()
    writes = [Write(target, 0, b"k", b"zombie")]

    for ownership in (proof, first.member.ownership()):
        with pytest.raises(Fenced):
            stage.commit(committer, writes, {moved: 9}, ownership)

    assert stage.read(target) == []
    stage.receive(second, 10)  # B began at the earliest record: no offset was stored
    (kept,) = first.owned
    stage.commit(committer, [], {kept: 5}, first.member.ownership())


@needs("proof of one claim")
def test_commit_is_fenced_when_the_proof_is_from_before_the_partition_came_back(
    stage: Stage,
) -> None:
    """B had the partition in between, so what A knew of it then counts no more."""
    first, second, moved, proof, _ = _moved(stage)
    second.member.close()
    stage.own(first, moved)
    committer = stage.committer()

    with pytest.raises(Fenced):
        stage.commit(committer, [], {moved: 9}, proof)

    stage.commit(committer, [], {moved: 3}, first.member.ownership())


@needs("silence")
def test_silent_member_is_put_out_and_comes_back(stage: Stage) -> None:
    """Its commits are refused, it is told `lost`, never `revoked`, and gets partitions again."""
    first, second, _, _, _ = _moved(stage)
    committer = stage.committer()
    (kept,) = first.owned
    proof = first.member.ownership()
    told_before = len(stage.told)

    stage.under_test.pass_session_timeout(meanwhile=lambda: stage.idle(second, rounds=1))
    stage.drive(second, until=lambda: len(second.owned) == 2)
    with pytest.raises(Fenced):
        stage.commit(committer, [], {kept: 9}, proof)
    stage.drive(first, second, until=lambda: len(first.owned) == 1 and len(second.owned) == 1)

    of_first = [told.what for told in stage.told[told_before:] if told.who == "A"]
    assert of_first == ["lost", "assigned"]
    with pytest.raises(Fenced):
        stage.commit(committer, [], {kept: 9}, proof)
