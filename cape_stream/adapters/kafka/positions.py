"""How far a member has read each of its partitions, also when the log moved under it.

librdkafka knows the position after the last record it handed out, and nothing before the first. A
position that falls out of the log, because records were deleted faster than they were read or the
topic was created anew, is moved by librdkafka to the earliest record and mentioned in its log
(`client_log.OFFSET_RESET`); here it becomes a `Reset` to tell about.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from cape_stream.ports.log import TopicPartition, Watermarks

WATERMARKS_WAIT_S = 1.0


class Reset(NamedTuple):
    """A partition that is read on at ``kept.low`` although it stood at ``at``."""

    partition: TopicPartition
    at: int
    kept: Watermarks


class Positions:
    """Positions of the partitions a member owns; used by its thread only."""

    def __init__(self) -> None:
        self._start: dict[TopicPartition, int] = {}
        self._void: dict[TopicPartition, int] = {}
        """What librdkafka goes on to say about a position that has moved."""
        self._fallen: dict[TopicPartition, int] = {}

    @property
    def has_fallen(self) -> bool:
        """There is a reset to ask `resets` for."""
        return bool(self._fallen)

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """These are ours and will be read from there."""
        self._start.update(starts)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They have left."""
        for partition in partitions:
            self._start.pop(partition, None)
            self._void.pop(partition, None)
            self._fallen.pop(partition, None)

    def of(self, consumer: Consumer, partition: TopicPartition) -> int:
        """Next offset of ``partition``, which must be one of ours."""
        reached = _reached(consumer, partition)
        if reached < 0 or reached == self._void.get(partition):
            return self._start[partition]
        return reached

    def fell(self, partition: TopicPartition, at: int) -> None:
        """librdkafka has moved ``partition``, which stood at ``at``, to the earliest record."""
        if partition in self._start:
            self._fallen[partition] = at

    def resets(self, consumer: Consumer) -> list[Reset]:
        """What fell, with what the log keeps; one whose answer does not come is kept for later."""
        fallen, self._fallen = self._fallen, {}
        resets = []
        for partition, at in fallen.items():
            asked = KafkaPartition(*partition)
            try:
                kept = Watermarks(*consumer.get_watermark_offsets(asked, WATERMARKS_WAIT_S))
            except (KafkaException, TypeError):  # None is how a timeout is told.
                self._fallen[partition] = at
                continue
            self._start[partition] = kept.low
            reached = _reached(consumer, partition)
            if not kept.low <= reached <= kept.high:
                self._void[partition] = reached
            resets.append(Reset(partition, at, kept))
        return resets


def _reached(consumer: Consumer, partition: TopicPartition) -> int:
    return consumer.position([KafkaPartition(*partition)])[0].offset
