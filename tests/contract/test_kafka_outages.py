"""Everything beside a broker that is paused, stopped or killed under it."""

import threading
from collections.abc import Callable, Iterator

import pytest

from cape_stream.adapters.kafka.log import KafkaLog
from cape_stream.errors import Fenced, Retry
from cape_stream.ports.log import Committer, TopicPartition, Watermarks, Write
from deploy.local.broker import LocalBroker
from tests.contract.kafka_seats import (
    Seat,
    arrival,
    new_name,
    new_topic,
    poll_until,
    read_values,
    send_all,
    settings,
    settle,
    wait_until,
)

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """One that nobody else uses; every test leaves it running."""
    with LocalBroker() as broker:
        yield broker


def grown(stored: list[bytes]) -> Callable[[], bool]:
    """Whether some more have been stored since now."""
    enough = len(stored) + 3
    return lambda: len(stored) >= enough


def is_stored(committer: Committer, seat: Seat, writes: list[Write], offset: int) -> bool:
    """Commit for all the seat owns, if the log lets us now."""
    seat.poll()
    try:
        committer.commit(writes, dict.fromkeys(seat.owned, offset), seat.member.ownership())
    except (Retry, Fenced):
        return False
    return True


def test_producer_gives_up_what_a_paused_broker_does_not_answer(broker: LocalBroker) -> None:
    """Rule 3 of fencing: nothing waits in the client longer than the message timeout."""
    log = KafkaLog(settings(broker.bootstrap, message_timeout_ms=1_500))
    topic, producer = new_topic(log), log.producer()
    wait_until(arrival(producer, topic, b"before"))
    settled_before = producer.settled[TopicPartition(topic, 0)]

    broker.pause()
    for number in range(100):
        assert producer.send(topic, 0, b"key", b"%d" % number)
        producer.poll(0)
    settle(producer)
    failed = producer.take_failed()
    broker.resume()

    assert [record.value for record in failed] == [b"%d" % number for number in range(100)]
    assert producer.settled[TopicPartition(topic, 0)] == settled_before + 100
    wait_until(arrival(producer, topic, b"after"))
    producer.close()
    log.close()


def test_full_queue_is_back_pressure_while_the_broker_is_paused(broker: LocalBroker) -> None:
    """Issue B16: 5,000 records, a queue of 1,000, the broker stops for a while: none is lost."""
    log = KafkaLog(settings(broker.bootstrap, queue_records_max=1_000, session_timeout_ms=60_000))
    topic, producer = new_topic(log), log.producer()
    wait_until(arrival(producer, topic, b"first"))

    broker.pause()
    refused = 0
    for number in range(5_000):
        while not producer.send(topic, 0, b"key", b"%d" % number):
            refused += 1
            if refused == 1:
                broker.resume()
            producer.poll(10)
    settle(producer)

    assert refused
    assert producer.take_failed() == []
    assert read_values(log, topic) == [b"first", *(b"%d" % number for number in range(5_000))]
    producer.close()
    log.close()


def test_everything_goes_on_when_the_broker_comes_back(broker: LocalBroker) -> None:
    """Issue B15: producer, member and committer survive a restart of the broker by themselves."""
    log = KafkaLog(settings(broker.bootstrap))
    topic, group = new_topic(log), new_name("group")
    partition = TopicPartition(topic, 0)
    seat, producer, committer = (
        Seat(log, group, [topic]),
        log.producer(),
        log.committer(new_name("committer")),
    )
    wait_until(arrival(producer, topic, b"before"))
    poll_until(lambda: bool(seat.records), seat)
    committer.commit([], {partition: 1}, seat.member.ownership())

    broker.restart()

    wait_until(arrival(producer, topic, b"after"))
    poll_until(lambda: seat.values()[-1:] == [b"after"], seat)

    def commits() -> bool:
        seat.poll()
        try:
            committer.commit([], {partition: 2}, seat.member.ownership())
        except (Retry, Fenced):
            return False
        return True

    wait_until(commits)
    producer.close()
    seat.member.close()
    committer.close()
    log.close()


def test_commit_is_stored_once_when_the_broker_stops_answering(broker: LocalBroker) -> None:
    """Paused in the middle of commits: each is reported stored exactly if it is."""
    log = KafkaLog(settings(broker.bootstrap))
    topic, changelog = new_topic(log), new_topic(log)
    seat, committer = Seat(log, new_name("group"), [topic]), log.committer(new_name("committer"))
    poll_until(lambda: bool(seat.owned), seat)
    committer.commit([], {TopicPartition(topic, 0): 0}, seat.member.ownership())
    stored: list[bytes] = []
    ends = threading.Event()

    def commit_all() -> None:
        number = 0
        while not ends.is_set():
            value = b"%d" % number
            if is_stored(committer, seat, [Write(changelog, 0, b"k", value)], number):
                stored.append(value)
            number += 1

    committing = threading.Thread(target=commit_all)
    committing.start()
    for pause_s in (1.0, 3.0):
        wait_until(grown(stored))
        broker.pause()
        ends.wait(pause_s)
        broker.resume()
    wait_until(grown(stored))
    ends.set()
    committing.join()

    assert read_values(log, changelog) == stored
    seat.member.close()
    committer.close()
    log.close()


def test_commit_is_repeated_safely_when_the_coordinator_aborted_it(
    broker: LocalBroker,
) -> None:
    """The broker was away longer than the transaction may last: Retry, and then it passes."""
    log = KafkaLog(settings(broker.bootstrap, transaction_timeout_ms=2_000))
    topic, changelog = new_topic(log), new_topic(log)
    seat, committer = Seat(log, new_name("group"), [topic]), log.committer(new_name("committer"))
    poll_until(lambda: bool(seat.owned), seat)
    write = Write(changelog, 0, b"k", b"once")
    committer.commit([], {TopicPartition(topic, 0): 0}, seat.member.ownership())

    broker.kill()
    with pytest.raises(Retry):
        committer.commit([write], {TopicPartition(topic, 0): 1}, seat.member.ownership())
    broker.start()
    wait_until(lambda: is_stored(committer, seat, [write], 1))

    assert read_values(log, changelog) == [b"once"]
    seat.member.close()
    committer.close()
    log.close()


def test_reader_says_retry_while_the_broker_is_away(broker: LocalBroker) -> None:
    """And goes on by itself when it is back."""
    topic = new_topic(KafkaLog(settings(broker.bootstrap)))
    log = KafkaLog(settings(broker.bootstrap, request_timeout_ms=1_000))
    partition = TopicPartition(topic, 0)
    send_all(log, topic, 0, [b"kept"])
    reader = log.reader()
    assert reader.watermarks(partition) == Watermarks(0, 1)

    broker.stop()
    with pytest.raises(Retry):
        reader.watermarks(partition)
    with pytest.raises(Retry):
        list(reader.read(partition, 0, 1))
    with pytest.raises(Retry):
        log.partition_counts([topic])
    broker.start()

    def is_read() -> bool:
        try:
            return [r.value for b in reader.read(partition, 0, 1) for r in b] == [b"kept"]
        except Retry:
            return False

    wait_until(is_read)
    reader.close()
    log.close()
