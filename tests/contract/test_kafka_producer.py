"""The producer against a broker that is away, late, or too small for a record."""

import os

import pytest
from confluent_kafka import KafkaError

from cape_stream.adapters.kafka.log import KafkaLog
from cape_stream.adapters.kafka.producer import KafkaProducer
from cape_stream.errors import Reject
from cape_stream.ports.log import TopicPartition, TopicSpec
from tests.contract.kafka_seats import (
    arrival,
    new_name,
    new_topic,
    read_values,
    settings,
    settle,
    wait_until,
)


def test_send_names_size_and_limit_of_a_record_that_is_too_large(kafka_bootstrap: str) -> None:
    """Issue B16: refused by itself, with both numbers."""
    log = KafkaLog(settings(kafka_bootstrap, record_bytes_max=100_000))
    topic, producer = new_topic(log), log.producer()

    with pytest.raises(Reject, match=r"120003 bytes for .* over the limit of 100000 bytes"):
        producer.send(topic, 0, b"key", b"x" * 120_000)

    producer.close()
    log.close()


def test_record_over_the_limit_of_its_topic_is_given_up_alone(kafka_bootstrap: str) -> None:
    """Issue B16: the broker says no after the client said yes; the records around it arrive."""
    log = KafkaLog(settings(kafka_bootstrap))
    topic, producer = new_topic(log, max_message_bytes="10000"), log.producer()

    wait_until(arrival(producer, topic, b"before"))
    assert producer.send(topic, 0, b"key", os.urandom(50_000))
    settle(producer)
    (failed,) = producer.take_failed()
    wait_until(arrival(producer, topic, b"after"))

    assert failed.reason.startswith("MSG_SIZE_TOO_LARGE: ")
    assert read_values(log, topic) == [b"before", b"after"]
    producer.close()
    log.close()


def test_records_for_a_topic_created_late_arrive_without_a_restart(kafka_bootstrap: str) -> None:
    """Issue B15: what was sent too early is given up or waits; what is sent later arrives."""
    log = KafkaLog(settings(kafka_bootstrap))
    topic, producer = new_name("late"), log.producer()
    assert producer.send(topic, 0, b"key", b"too early")
    settle(producer)
    assert [failed.value for failed in producer.take_failed()] == [b"too early"]

    log.create_topics([TopicSpec(name=topic, partitions=1, config={})])

    wait_until(arrival(producer, topic, b"in time"))
    assert read_values(log, topic) == [b"in time"]
    producer.close()
    log.close()


def test_producer_survives_a_fatal_error_of_its_client(kafka_bootstrap: str) -> None:
    """What is outstanding is given up, told once, and the next record goes out."""
    log = KafkaLog(settings(kafka_bootstrap, linger_ms=100))
    topic, producer = new_topic(log), KafkaProducer(settings(kafka_bootstrap, linger_ms=100))
    wait_until(arrival(producer, topic, b"first"))
    settled_before = producer.settled[TopicPartition(topic, 0)]
    for value in (b"lost 1", b"lost 2"):
        assert producer.send(topic, 0, b"key", value)

    # No broker can be made to refuse a sequence number, so the client's word for it is given here.
    producer._on_error(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "gap", fatal=True))
    producer.poll(0)
    assert {failed.value for failed in producer.take_failed()} == {b"lost 1", b"lost 2"}
    assert producer.send(topic, 0, b"key", b"second")
    settle(producer)

    assert read_values(log, topic) == [b"first", b"second"]
    assert producer.settled[TopicPartition(topic, 0)] == settled_before + 3
    producer.close()
    log.close()
