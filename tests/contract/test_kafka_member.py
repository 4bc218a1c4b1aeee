"""What only a real Kafka can show about members; the shared promises are in the log contract."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from cape_stream.adapters.kafka.log import KafkaLog
from cape_stream.adapters.kafka.settings import GroupProtocol
from cape_stream.errors import Fatal, Fenced
from cape_stream.ports.log import TopicPartition, TopicSpec, Watermarks, Write
from tests.contract.kafka_seats import (
    Seat,
    new_name,
    new_topic,
    poll_until,
    send_all,
    settings,
)

PROTOCOLS: list[GroupProtocol] = ["consumer", "classic"]


@pytest.fixture(params=PROTOCOLS)
def log(request: pytest.FixtureRequest, kafka_bootstrap: str) -> Iterator[KafkaLog]:
    log = KafkaLog(settings(kafka_bootstrap, group_protocol=request.param))
    yield log
    log.close()


@pytest.fixture
def modern(kafka_bootstrap: str) -> Iterator[KafkaLog]:
    """Where the group protocol makes no difference."""
    log = KafkaLog(settings(kafka_bootstrap))
    yield log
    log.close()


@pytest.fixture
def log_with_short_patience(kafka_bootstrap: str) -> Iterator[KafkaLog]:
    log = KafkaLog(settings(kafka_bootstrap, max_poll_interval_ms=6_000))
    yield log
    log.close()


def sharing(seats: list[Seat], count: int) -> Callable[[], bool]:
    """Whether each has so many partitions."""
    return lambda: all(len(seat.owned) == count for seat in seats)


def delete_below(bootstrap: str, partition: TopicPartition, low: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([KafkaPartition(*partition, low)]).values():
        future.result()


def test_members_get_the_same_partition_numbers_of_all_topics(log: KafkaLog) -> None:
    """Pings and statuses of a partition land on one member, whoever joins or leaves (issue B73)."""
    group, topics = new_name("group"), [new_topic(log, 6), new_topic(log, 6)]
    seats = [Seat(log, group, topics)]
    poll_until(lambda: len(seats[0].owned) == 12, *seats)

    for size in (2, 3):
        seats.append(Seat(log, group, topics))
        poll_until(sharing(seats, 12 // size), *seats)
        for seat in seats:
            assert all(
                {TopicPartition(topic, n) for topic in topics} <= seat.owned for n in seat.numbers
            )
        assert sorted(n for seat in seats for n in seat.numbers) == list(range(6))

    seats.pop(0).member.close()
    poll_until(lambda: sum(len(s.owned) for s in seats) == 12, *seats)
    for seat in seats:
        assert len(seat.owned) == 2 * len(seat.numbers)
        seat.member.close()


def test_member_keeps_reading_what_does_not_move_when_another_joins(modern: KafkaLog) -> None:
    """The broker's protocol is incremental: what stays is not taken away for a moment."""
    group, topic = new_name("group"), new_topic(modern, 4)
    first = Seat(modern, group, [topic])
    poll_until(lambda: len(first.owned) == 4, first)

    second = Seat(modern, group, [topic])
    poll_until(lambda: len(first.owned) == len(second.owned) == 2, first, second)

    taken = [partition for kind, some in first.events if kind == "revoked" for partition in some]
    assert set(taken) == second.owned
    for seat in (first, second):
        seat.member.close()


def test_member_commits_from_inside_revoked(log: KafkaLog) -> None:
    """The next owner starts where the last commit of the former one says."""
    group, topic, changelog = new_name("group"), new_topic(log), new_topic(log)
    partition = TopicPartition(topic, 0)
    send_all(log, topic, 0, [b"a", b"b", b"c"])
    first, committer = Seat(log, group, [topic]), log.committer(new_name("committer"))
    poll_until(lambda: len(first.records) == 3, first)
    first.on_revoked = lambda: committer.commit(
        [Write(changelog, 0, b"k", b"v")], {partition: 2}, first.member.ownership()
    )

    first.member.close()
    second = Seat(log, group, [topic])
    poll_until(lambda: bool(second.records), second)

    assert [kind for kind, _ in first.events] == ["assigned", "revoked"]
    assert second.values() == [b"c"]
    second.member.close()
    committer.close()


def test_ownership_is_refused_before_joining_and_after_leaving(log: KafkaLog) -> None:
    seat = Seat(log, new_name("group"), [new_topic(log)])
    with pytest.raises(Fenced):
        seat.member.ownership()

    poll_until(lambda: bool(seat.owned), seat)
    seat.member.ownership()
    seat.member.close()

    with pytest.raises(Fenced):
        seat.member.ownership()


@pytest.mark.parametrize("committed", [50, 1_200])
def test_member_reads_from_the_earliest_record_when_the_committed_offset_is_outside(
    modern: KafkaLog, kafka_bootstrap: str, committed: int
) -> None:
    """Issue B08: both sides of the kept range, one notice, and never the end of the log."""
    group, topic = new_name("group"), new_topic(modern)
    partition = TopicPartition(topic, 0)
    send_all(modern, topic, 0, [b"%d" % n for n in range(200)])
    before = Seat(modern, group, [topic], resumes=False)
    poll_until(lambda: bool(before.owned), before)
    before.member.commit({partition: committed})
    before.member.close()
    delete_below(kafka_bootstrap, partition, 100)

    seat = Seat(modern, group, [topic])
    poll_until(lambda: len(seat.records) == 100, seat)

    assert seat.repositions == [(partition, committed, Watermarks(100, 200))]
    assert seat.records[0].offset == 100
    seat.member.close()


def test_member_waits_at_the_end_when_everything_was_deleted(
    modern: KafkaLog, kafka_bootstrap: str
) -> None:
    """Issue B03: low and high are both 100; nothing to read, and nothing wrong."""
    topic = new_topic(modern)
    partition = TopicPartition(topic, 0)
    send_all(modern, topic, 0, [b"old"] * 100)
    delete_below(kafka_bootstrap, partition, 100)

    seat = Seat(modern, new_name("group"), [topic])
    poll_until(lambda: bool(seat.owned), seat)
    assert seat.member.position(partition) == 100
    send_all(modern, topic, 0, [b"new"])
    poll_until(lambda: bool(seat.records), seat)

    assert seat.values() == [b"new"]
    assert seat.repositions == []
    seat.member.close()


def test_member_is_told_when_records_vanish_before_it_read_them(
    modern: KafkaLog, kafka_bootstrap: str
) -> None:
    """Retention overtook a paused partition. Guards the one line of librdkafka's log we rely on."""
    topic = new_topic(modern)
    partition = TopicPartition(topic, 0)
    seat = Seat(modern, new_name("group"), [topic], resumes=False)
    poll_until(lambda: bool(seat.owned), seat)
    send_all(modern, topic, 0, [b"%d" % n for n in range(50)])
    delete_below(kafka_bootstrap, partition, 40)

    seat.member.resume([partition])
    poll_until(lambda: len(seat.records) == 10, seat)

    assert seat.repositions == [(partition, 0, Watermarks(40, 50))]
    assert seat.member.position(partition) == 50
    seat.member.close()


def test_position_is_true_when_all_records_vanish_before_they_were_read(
    modern: KafkaLog, kafka_bootstrap: str
) -> None:
    topic = new_topic(modern)
    partition = TopicPartition(topic, 0)
    send_all(modern, topic, 0, [b"%d" % n for n in range(10)])
    seat = Seat(modern, new_name("group"), [topic])
    poll_until(lambda: len(seat.records) == 10, seat)
    seat.member.pause([partition])
    send_all(modern, topic, 0, [b"%d" % n for n in range(10)])
    delete_below(kafka_bootstrap, partition, 20)

    seat.member.resume([partition])
    poll_until(lambda: bool(seat.repositions), seat)

    assert seat.repositions == [(partition, 10, Watermarks(20, 20))]
    assert seat.member.position(partition) == 20
    seat.member.close()


def test_member_loses_and_regains_everything_when_it_has_polled_too_late(
    log_with_short_patience: KafkaLog,
) -> None:
    """Issue B13: a step that outlives the poll interval costs the partitions, not the member."""
    partition = TopicPartition(new_topic(log_with_short_patience), 0)
    seat = Seat(log_with_short_patience, new_name("group"), [partition.topic])
    poll_until(lambda: bool(seat.owned), seat)

    time.sleep(6.5)
    poll_until(lambda: len(seat.events) == 3, seat)

    assert [kind for kind, _ in seat.events] == ["assigned", "lost", "assigned"]
    seat.member.close()


def test_commits_of_a_member_that_polled_too_late_are_refused(
    log_with_short_patience: KafkaLog,
) -> None:
    """Issue B13: the partition has another owner; neither an old proof nor a last commit passes."""
    log = log_with_short_patience
    group, topic, changelog = new_name("group"), new_topic(log), new_topic(log)
    partition, write = TopicPartition(topic, 0), Write(changelog, 0, b"k", b"stale")
    slow, committer = Seat(log, group, [topic]), log.committer(new_name("committer"))
    poll_until(lambda: bool(slow.owned), slow)
    stale = slow.member.ownership()
    quick = Seat(log, group, [topic])

    poll_until(lambda: bool(quick.owned), quick)  # meanwhile the slow one does not poll

    with pytest.raises(Fenced):
        committer.commit([write], {partition: 1}, stale)
    refused: list[Fenced] = []

    def commit_once_more() -> None:
        try:
            committer.commit([write], {partition: 1}, slow.member.ownership())
        except Fenced as error:
            refused.append(error)

    slow.on_revoked = commit_once_more
    poll_until(lambda: not slow.owned, slow)
    assert slow.events[-1][0] == "lost" or refused
    quick.member.close()
    poll_until(lambda: bool(slow.owned), slow)
    assert slow.member.position(partition) == 0
    committer.commit([], {partition: 1}, slow.member.ownership())
    slow.on_revoked = None
    slow.member.close()
    committer.close()


def test_member_ignores_calls_for_a_partition_that_has_left(log: KafkaLog) -> None:
    """Issue B01: a queued pause, resume or commit after the move is not an accident."""
    group, topic = new_name("group"), new_topic(log, 2)
    first = Seat(log, group, [topic])
    poll_until(lambda: len(first.owned) == 2, first)
    second = Seat(log, group, [topic])
    poll_until(lambda: len(first.owned) == len(second.owned) == 1, first, second)
    (gone,) = second.owned

    first.member.pause([gone])
    first.member.resume([gone])
    first.member.commit({gone: 99})
    first.poll()

    assert first.member.position(gone) is None
    (kept,) = first.owned
    send_all(log, topic, gone.partition, [b"for the second"])
    send_all(log, topic, kept.partition, [b"for the first"])
    poll_until(lambda: bool(first.records and second.records), first, second)
    assert (first.values(), second.values()) == ([b"for the first"], [b"for the second"])
    for seat in (first, second):
        seat.member.close()


def test_member_waits_for_a_topic_that_is_created_late(log: KafkaLog) -> None:
    topic = new_name("late")
    seat = Seat(log, new_name("group"), [topic])
    for _ in range(5):
        assert seat.poll() == []

    log.create_topics([TopicSpec(name=topic, partitions=1, config={})])
    send_all(log, topic, 0, [b"at last"])
    poll_until(lambda: bool(seat.records), seat)

    assert seat.values() == [b"at last"]
    seat.member.close()


def test_member_refuses_a_session_shorter_than_its_lease(kafka_bootstrap: str) -> None:
    """The broker ends sessions after 6 s; a lease cut for 20 s would outlive the ownership."""
    log = KafkaLog(settings(kafka_bootstrap, session_timeout_ms=20_000))
    seat = Seat(log, new_name("group"), [new_topic(log)])

    with pytest.raises(Fatal, match="is 6000, below our session_timeout_ms of 20000"):
        poll_until(lambda: bool(seat.owned), seat)
    seat.member.close()
    log.close()


def test_poll_takes_no_longer_than_asked_while_nothing_comes(modern: KafkaLog) -> None:
    seat = Seat(modern, new_name("group"), [new_topic(modern)])
    poll_until(lambda: bool(seat.owned), seat)

    began_s = time.monotonic()
    assert seat.poll(timeout_ms=100) == []

    assert time.monotonic() - began_s >= 0.09, "it must wait, not spin"
    seat.member.close()
