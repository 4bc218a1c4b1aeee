"""The log on Apache Kafka, by confluent-kafka (librdkafka)."""

from cape_stream.adapters.kafka.log import KafkaLog
from cape_stream.adapters.kafka.settings import GroupProtocol, KafkaSettings

__all__ = ["GroupProtocol", "KafkaLog", "KafkaSettings"]
