"""Commits of offsets outside of transactions, in the background, until they are stored.

librdkafka tells what became of each; one that failed for now, and is still the newest of its
partition, is sent again.
"""

import logging
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from cape_stream.adapters.kafka.client_log import LOGGER, ClientLog
from cape_stream.adapters.kafka.failures import OUTDATED_MEMBERSHIP, kafka_error
from cape_stream.ports.log import TopicPartition

AGAIN_AFTER_S = 0.1


class OffsetCommits:
    """Offsets of one member on their way to the group; used by the member's thread only."""

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._newest: dict[TopicPartition, int] = {}
        self._again: dict[TopicPartition, int] = {}
        self._again_at_s = 0.0

    def send(self, consumer: Consumer, offsets: Mapping[TopicPartition, int]) -> None:
        """Store these, in place of older ones on their way."""
        self._newest.update(offsets)
        for partition in offsets:
            self._again.pop(partition, None)
        sent = [KafkaPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            consumer.commit(offsets=sent, asynchronous=True)
        except KafkaException as exception:
            self.answered(kafka_error(exception), sent)

    def send_again(self, consumer: Consumer) -> None:
        """Send what failed, once it has waited a little."""
        if self._again and time.monotonic() >= self._again_at_s:
            self.send(consumer, dict(self._again))

    def answered(self, error: KafkaError | None, partitions: list[KafkaPartition]) -> None:
        """The client's callback: what became of a commit."""
        for partition in partitions:
            failure = partition.error or error
            if failure is None:
                continue
            if failure.code() in OUTDATED_MEMBERSHIP:
                LOGGER.debug("commit of a membership that has ended: %s", failure.str())
                continue
            ours = TopicPartition(partition.topic, partition.partition)
            if self._newest.get(ours) == partition.offset:
                self._log.say(logging.WARNING, failure.name(), f"commit: {failure.str()}")
                self._again[ours] = partition.offset
                self._again_at_s = time.monotonic() + AGAIN_AFTER_S

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They have left: what is not stored yet is the next owner's to find out."""
        for partition in partitions:
            self._newest.pop(partition, None)
            self._again.pop(partition, None)
