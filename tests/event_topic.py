"""A new topic on the tests' broker that holds events, and the way into it."""

from collections.abc import Mapping
from secrets import token_hex

from confluent_kafka import Producer

from cape_stream.adapters.kafka import KafkaLog, KafkaSettings
from cape_stream.model.event import NO_HEADERS
from cape_stream.model.subject import partition_of
from cape_stream.ports.log import TopicSpec

PARTITIONS = 3
PATIENCE_S = 30


class EventTopic:
    """One topic of one test."""

    def __init__(self, bootstrap: str) -> None:
        self.settings = KafkaSettings(bootstrap_servers=bootstrap)
        self.name = f"events-{token_hex(6)}"
        spec = TopicSpec(name=self.name, partitions=PARTITIONS, config={})
        KafkaLog(self.settings).create_topics([spec])
        self.producer = Producer(self.settings.producer())

    def produce(
        self,
        subject: str,
        key: bytes | None,
        value: bytes | None,
        headers: Mapping[str, str | bytes] = NO_HEADERS,
    ) -> None:
        """One record, acknowledged, in the partition of its subject."""
        partition = partition_of(subject.encode(), PARTITIONS)
        self.producer.produce(self.name, value, key, partition=partition, headers=dict(headers))
        self.flush()

    def send(self, subject: str, value: bytes, headers: Mapping[str, str | bytes]) -> None:
        """One of many records, acknowledged by the next `flush`."""
        partition = partition_of(subject.encode(), PARTITIONS)
        self.producer.produce(
            self.name, value, subject.encode(), partition=partition, headers=dict(headers)
        )
        self.producer.poll(0)

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        assert self.producer.flush(PATIENCE_S) == 0
