"""Commits whose answer is late, whose transaction was ended by others, or that were interrupted."""

import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer as KafkaClient
from confluent_kafka import TopicPartition as KafkaPartition

from cape_stream.adapters.kafka.committer import STATE_BYTES_MAX
from cape_stream.adapters.kafka.log import KafkaLog
from cape_stream.adapters.kafka.ownership import EPOCH, MAGIC, KafkaOwnership
from cape_stream.errors import Fatal, Fenced
from cape_stream.ports.log import TopicPartition, Watermarks, Write
from tests.contract.kafka_seats import (
    Seat,
    new_name,
    new_topic,
    poll_until,
    read_values,
    send_all,
    settings,
)


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[KafkaLog]:
    log = KafkaLog(settings(kafka_bootstrap))
    yield log
    log.close()


def test_commit_is_refused_when_its_record_is_too_large(log: KafkaLog) -> None:
    """A state row that can never be stored is for a person to see; the next commit passes."""
    topic, changelog = new_topic(log), new_topic(log)
    seat, committer = Seat(log, new_name("group"), [topic]), log.committer(new_name("committer"))
    poll_until(lambda: bool(seat.owned), seat)
    offsets = {TopicPartition(topic, 0): 0}
    ownership = seat.member.ownership()

    with pytest.raises(Fatal, match="over 8388608 bytes"):
        committer.commit(
            [Write(changelog, 0, b"k", b"ok"), Write(changelog, 0, b"k", bytes(8_388_608))],
            offsets,
            ownership,
        )
    committer.commit([Write(changelog, 0, b"k", b"small")], offsets, ownership)

    assert read_values(log, changelog) == [b"small"]
    seat.member.close()
    committer.close()


def test_commit_stores_a_row_as_large_as_its_topic_takes(log: KafkaLog) -> None:
    """A subject with much put aside has one of megabytes, and a restore reads it back."""
    topic = new_topic(log)
    changelog = new_topic(log, max_message_bytes=str(STATE_BYTES_MAX))
    seat, committer = Seat(log, new_name("group"), [topic]), log.committer(new_name("committer"))
    poll_until(lambda: bool(seat.owned), seat)
    row = random.Random(1).randbytes(STATE_BYTES_MAX - 100_000)

    committer.commit(
        [Write(changelog, 0, b"k", row), Write(changelog, 0, b"k", b"small")],
        {TopicPartition(topic, 0): 0},
        seat.member.ownership(),
    )

    assert read_values(log, changelog) == [row, b"small"]
    seat.member.close()
    committer.close()


def test_records_of_a_refused_commit_are_invisible(log: KafkaLog) -> None:
    """They are in the log, aborted; neither a reader nor a member ever shows them."""
    topic, changelog = new_topic(log), new_topic(log)
    partition = TopicPartition(topic, 0)
    seat, committer = Seat(log, new_name("group"), [topic]), log.committer(new_name("committer"))
    poll_until(lambda: bool(seat.owned), seat)
    metadata = seat.member.ownership().metadata
    of_another_epoch = metadata[: len(MAGIC)] + EPOCH.pack(99) + metadata[len(MAGIC) + EPOCH.size :]
    strange = KafkaOwnership(of_another_epoch, frozenset({partition}))

    with pytest.raises(Fenced):
        committer.commit([Write(changelog, 0, b"k", b"zombie")], {partition: 7}, strange)
    committer.commit([Write(changelog, 0, b"k", b"owner")], {partition: 0}, seat.member.ownership())
    other = Seat(log, new_name("group"), [changelog])
    poll_until(lambda: bool(other.records), other)

    assert read_values(log, changelog) == [b"owner"]
    assert other.values() == [b"owner"]
    for each in (seat, other):
        each.member.close()
    committer.close()


def test_new_owner_waits_for_a_commit_that_is_undecided(
    log: KafkaLog, kafka_bootstrap: str
) -> None:
    """Neither the start offset nor the end of the changelog is told before the commit is decided.

    The former owner has sent records and offsets and then stands still; when it commits after all,
    the new owner must have seen it. The same partition of the other topic waits with it.
    """
    group, topic, changelog = new_name("group"), new_topic(log), new_topic(log)
    other = new_topic(log)
    state = TopicPartition(changelog, 0)
    send_all(log, topic, 0, [b"a", b"b", b"c"])
    former = Seat(log, group, [topic, other])
    poll_until(lambda: len(former.records) == 3, former)
    half_way = KafkaClient(
        {"bootstrap.servers": kafka_bootstrap, "transactional.id": new_name("half-way")}
    )
    half_way.init_transactions()
    half_way.begin_transaction()
    half_way.produce(changelog, b"state", b"k", 0)
    half_way.flush()
    half_way.send_offsets_to_transaction(
        [KafkaPartition(topic, 0, 2)],
        former.member.ownership().metadata,
    )
    former.member.close()

    owner, reader = Seat(log, group, [topic, other]), log.reader()
    for _ in range(100):
        owner.poll()
    assert owner.events == []
    assert reader.watermarks(state) == Watermarks(0, 1)
    restore = reader.read(state, 0, 1)
    decided = threading.Timer(0.5, half_way.commit_transaction)
    decided.start()
    restored = [record.value for batch in restore for record in batch]
    decided.join()
    poll_until(lambda: bool(owner.records), owner)

    assert restored == [b"state"]
    assert owner.events == [
        ("assigned", sorted([TopicPartition(topic, 0), TopicPartition(other, 0)]))
    ]
    assert owner.values() == [b"c"]
    reader.close()
    owner.member.close()


ZOMBIE = textwrap.dedent(
    """
    import sys
    from cape_stream.adapters.kafka import KafkaLog, KafkaSettings
    from cape_stream.errors import CapeError
    from cape_stream.ports.log import TopicPartition, Write

    bootstrap, group, topic, changelog = sys.argv[1:]
    log = KafkaLog(KafkaSettings(bootstrap_servers=bootstrap))
    told = []


    class Listener:
        def assigned(self, partitions):
            told.append("assigned")

        def revoked(self, partitions):
            told.append("revoked")

        def lost(self, partitions):
            told.append("lost")


    member = log.member(group, [topic], Listener())
    committer = log.committer(group + "-zombie")
    while not told:
        member.poll(100, 100)
    partition = TopicPartition(topic, 0)
    committer.commit([Write(changelog, 0, b"k", b"alive")], {partition: 1}, member.ownership())
    ownership = member.ownership()
    print("owns", flush=True)
    sys.stdin.readline()  # stopped here, and woken up when another one owns the partition
    try:
        committer.commit([Write(changelog, 0, b"k", b"zombie")], {partition: 9}, ownership)
    except CapeError as error:
        print(type(error).__name__, flush=True)
    else:
        print("stored", flush=True)
    while "lost" not in told and "revoked" not in told:
        member.poll(100, 100)
    print(told[1], flush=True)
    """
)


def test_process_that_was_stopped_cannot_commit_when_it_wakes_up(
    log: KafkaLog, kafka_bootstrap: str
) -> None:
    """SIGSTOP past the session, a new owner, SIGCONT: refused, and the member is told."""
    group, topic, changelog = new_name("group"), new_topic(log), new_topic(log)
    partition = TopicPartition(topic, 0)
    with subprocess.Popen(
        [sys.executable, "-c", ZOMBIE, kafka_bootstrap, group, topic, changelog],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as zombie:
        assert zombie.stdout is not None
        assert zombie.stdin is not None
        assert zombie.stdout.readline() == "owns\n"
        zombie.send_signal(signal.SIGSTOP)
        owner, committer = Seat(log, group, [topic]), log.committer(new_name("committer"))
        poll_until(lambda: bool(owner.owned), owner)
        assert owner.member.position(partition) in (0, 1)
        committer.commit(
            [Write(changelog, 0, b"k", b"owner")], {partition: 2}, owner.member.ownership()
        )

        zombie.send_signal(signal.SIGCONT)
        zombie.stdin.write("go on\n")
        zombie.stdin.flush()
        answers = [zombie.stdout.readline().strip(), zombie.stdout.readline().strip()]
        zombie.kill()

    assert answers == ["Fenced", "lost"]
    assert read_values(log, changelog) == [b"alive", b"owner"]
    owner.member.close()
    committer.close()
