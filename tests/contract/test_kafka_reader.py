"""Reading beside open and aborted transactions, and from a log that is away."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer as KafkaClient

from cape_stream.adapters.kafka.log import KafkaLog
from cape_stream.errors import Retry
from cape_stream.ports.log import TopicPartition, Watermarks
from tests.contract.kafka_seats import new_name, new_topic, send_all, settings, wait_until


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[KafkaLog]:
    log = KafkaLog(settings(kafka_bootstrap, request_timeout_ms=1_000))
    yield log
    log.close()


@pytest.fixture
def transactional(kafka_bootstrap: str) -> KafkaClient:
    client = KafkaClient(
        {"bootstrap.servers": kafka_bootstrap, "transactional.id": new_name("writer")}
    )
    client.init_transactions()
    return client


def test_read_ends_behind_records_that_were_aborted(
    log: KafkaLog, transactional: KafkaClient
) -> None:
    """The last record and its marker will never be shown; the range is done all the same."""
    topic = new_topic(log)
    partition = TopicPartition(topic, 0)
    send_all(log, topic, 0, [b"good"])
    transactional.begin_transaction()
    transactional.produce(topic, b"aborted", b"k", 0)
    transactional.flush()
    transactional.abort_transaction()
    reader = log.reader()

    wait_until(lambda: reader.watermarks(partition) == Watermarks(0, 3))  # 2 is the abort's mark
    records = [r.value for batch in reader.read(partition, 0, 3) for r in batch]

    assert records == [b"good"]
    reader.close()


def test_read_says_retry_while_a_transaction_stays_open(
    log: KafkaLog, transactional: KafkaClient
) -> None:
    """What was yielded stands; the rest is read once the transaction is decided."""
    topic = new_topic(log)
    partition = TopicPartition(topic, 0)
    send_all(log, topic, 0, [b"good"])
    transactional.begin_transaction()
    transactional.produce(topic, b"late", b"k", 0)
    transactional.flush()
    reader = log.reader()

    batches = reader.read(partition, 0, 2)
    first = [record.value for record in next(batches)]
    with pytest.raises(Retry, match="stands at 1 of 2"):
        next(batches)
    transactional.commit_transaction()
    rest = [record.value for batch in reader.read(partition, 1, 2) for record in batch]

    assert (first, rest) == ([b"good"], [b"late"])
    reader.close()
