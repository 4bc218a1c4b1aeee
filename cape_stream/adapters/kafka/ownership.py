"""What a commit carries to prove that its member still belongs to the group."""

import struct
from dataclasses import dataclass
from typing import Self

from cape_stream.errors import Fenced
from cape_stream.ports.log import TopicPartition

MAGIC = b"CGMDv2:"
"""How librdkafka's serialised group metadata begins; the epoch follows as a native int32.

Source: `rd_kafka_consumer_group_metadata_write` in rdkafka_cgrp.c."""
EPOCH = struct.Struct("=i")


@dataclass(slots=True, frozen=True)
class KafkaOwnership:
    """A membership at one moment; see `cape_stream.ports.log.Ownership`."""

    metadata: bytes
    """Group, member and epoch, as the client library serialises them."""
    partitions: frozenset[TopicPartition]
    """What the member owned then."""

    @classmethod
    def of(cls, metadata: bytes, partitions: frozenset[TopicPartition]) -> Self:
        """Read the client library's words.

        Raises:
            Fenced: there is no epoch. Such metadata must not be sent: a broker takes an epoch
                below zero for a tool that works on an empty group, and accepts it.
        """
        if epoch_of(metadata) <= 0:
            raise Fenced("the member has not joined the group")
        return cls(metadata, partitions)


def epoch_of(metadata: bytes) -> int:
    """The member epoch (or generation, in the classic protocol); above 0 while it is in the group.

    Args:
        metadata: what ``Consumer.consumer_group_metadata`` returns.
    """
    assert metadata.startswith(MAGIC), "librdkafka has changed its group metadata"
    epoch: int = EPOCH.unpack_from(metadata, len(MAGIC))[0]
    return epoch
