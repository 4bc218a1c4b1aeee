"""Sending at once, acknowledged in the background."""

import pytest

from cape_stream.errors import Reject
from cape_stream.ports.log import TopicPartition
from tests.contract.implementations import needs
from tests.contract.log_stage import PATIENCE_S, Stage, numbered

FLUSH_MS = int(PATIENCE_S * 1_000)


def test_send_keeps_the_order_of_each_partition(stage: Stage) -> None:
    """Thousands of records over several partitions arrive complete and in order."""
    topic, producer = stage.topic(3), stage.producer()

    for number, value in enumerate(numbered(6_000)):
        while not producer.send(topic, number % 3, b"k", value):
            producer.poll(10)
    assert producer.flush(FLUSH_MS)

    for partition in range(3):
        assert [r.value for r in stage.read(topic, partition)] == numbered(6_000)[partition::3]


def test_counters_follow_the_records(stage: Stage) -> None:
    """Sent counts at once, settled only what is acknowledged, and both are per partition."""
    topic, producer = stage.topic(2), stage.producer()
    names = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    for value in numbered(30):
        producer.send(topic, 0, b"k", value)
        producer.poll(0)
        assert producer.settled.get(names[0], 0) <= producer.sent[names[0]]
    producer.send(topic, 1, b"k", b"one")
    sent = dict(producer.sent)

    assert producer.flush(FLUSH_MS)

    assert sent == {names[0]: 30, names[1]: 1}
    assert dict(producer.settled) == sent
    assert dict(producer.acked_offset) == {name: stage.read(*name)[-1].offset for name in names}


def test_settled_records_are_in_the_log(stage: Stage) -> None:
    """Whenever the counter says n, the first n records can be read."""
    topic, producer = stage.topic(), stage.producer()
    name = TopicPartition(topic, 0)

    for value in numbered(200):
        producer.send(topic, 0, b"k", value)
        producer.poll(1)
        settled = producer.settled.get(name, 0)
        if settled:
            assert stage.watermarks(topic).high >= settled
            assert producer.acked_offset[name] == settled - 1

    assert producer.flush(FLUSH_MS)
    assert [r.value for r in stage.read(topic)] == numbered(200)


def test_send_arrives_though_nobody_polls_the_producer(stage: Stage) -> None:
    """A pinger sends and goes away to its own business."""
    topic, producer = stage.topic(), stage.producer()
    consumer = stage.join(stage.name("group"), [topic])

    producer.send(topic, 0, b"k", b"alone")

    assert stage.receive(consumer, 1)[0].value == b"alone"


def test_close_flushes(stage: Stage) -> None:
    """What was accepted is not forgotten; closing twice is fine."""
    topic, producer = stage.topic(), stage.producer()
    for value in numbered(500):
        producer.send(topic, 0, b"k", value)

    producer.close()
    producer.close()

    assert [r.value for r in stage.read(topic)] == numbered(500)


def test_send_rejects_a_record_that_is_too_large(stage: Stage) -> None:
    """B16: it alone, uncounted; the records around it are untouched."""
    topic, producer = stage.topic(), stage.producer()
    name = TopicPartition(topic, 0)
    producer.send(topic, 0, b"k", b"before")

    with pytest.raises(Reject):
        producer.send(topic, 0, b"k", bytes(8 << 20))
    producer.send(topic, 0, b"k", b"after")

    assert producer.flush(FLUSH_MS)
    assert [r.value for r in stage.read(topic)] == [b"before", b"after"]
    assert (producer.sent[name], producer.settled[name]) == (2, 2)
    assert producer.take_failed() == []


def test_send_accepts_a_record_of_half_a_megabyte(stage: Stage) -> None:
    """Large is not too large: a job record may hold many events."""
    topic, producer = stage.topic(), stage.producer()
    value = b"x" * 500_000

    producer.send(topic, 0, b"k", value)
    assert producer.flush(FLUSH_MS)

    assert [r.value for r in stage.read(topic)] == [value]


def test_failed_sends_come_back_when_they_cannot_be_delivered(stage: Stage) -> None:
    """Given up counts as settled, so nobody waits for it for ever, and it is told once."""
    topic, producer = stage.topic(2), stage.producer()
    missing = TopicPartition(topic, 7)

    producer.send(topic, 0, b"k", b"good")
    producer.send(*missing, b"key", b"value")
    producer.send(*missing, None, None)
    assert producer.flush(FLUSH_MS)
    failed, again = producer.take_failed(), producer.take_failed()

    assert [record[:4] for record in failed] == [
        (topic, 7, b"key", b"value"),
        (topic, 7, None, None),
    ]
    assert all(record.reason for record in failed)
    assert again == []
    assert producer.sent[missing] == producer.settled[missing] == 2
    assert missing not in producer.acked_offset
    assert [r.value for r in stage.read(topic)] == [b"good"]


def test_producers_do_not_mix_up_each_other(stage: Stage) -> None:
    """Two of them on one partition: all records, each one's in its order, counters apart."""
    topic = stage.topic()
    name = TopicPartition(topic, 0)
    producers = [stage.producer(), stage.producer()]

    for value in numbered(100):
        for number, producer in enumerate(producers):
            producer.send(topic, 0, b"%d" % number, value)
        producers[0].poll(0)
    for producer in producers:
        assert producer.flush(FLUSH_MS)

    records = stage.read(topic)
    assert len(records) == 200
    for number, producer in enumerate(producers):
        own = [record for record in records if record.key == b"%d" % number]
        assert [record.value for record in own] == numbered(100)
        assert producer.settled[name] == 100
        assert producer.acked_offset[name] == own[-1].offset


def test_flush_of_nothing_returns_at_once(stage: Stage) -> None:
    """No record, nothing to wait for."""
    producer = stage.producer()

    assert producer.flush(0)
    assert (dict(producer.sent), dict(producer.settled)) == ({}, {})


@needs("full queue")
def test_send_says_no_when_the_local_queue_is_full(stage: Stage) -> None:
    """B16: back-pressure, not loss: what was refused is not counted and not settled."""
    topic = stage.topic()
    producer = stage.under_test.stalled_producer()
    name = TopicPartition(topic, 0)

    accepted = 0
    while accepted < 5_000 and producer.send(topic, 0, b"k", b"v"):
        accepted += 1

    assert 0 < accepted < 5_000
    assert producer.sent[name] == accepted
    assert producer.settled.get(name, 0) == 0
