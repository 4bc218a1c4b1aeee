import struct

import pytest

from cape_stream.adapters.kafka.ownership import KafkaOwnership
from cape_stream.errors import Fenced
from cape_stream.ports.log import TopicPartition

MINE = frozenset({TopicPartition("pings", 1)})


def metadata(epoch: int) -> bytes:
    return b"CGMDv2:" + struct.pack("=i", epoch) + b"group\0member\0\1"


def test_ownership_keeps_the_proof_and_what_was_owned() -> None:
    ownership = KafkaOwnership.of(metadata(7), MINE)

    assert ownership.metadata == metadata(7)
    assert ownership.partitions == MINE


@pytest.mark.parametrize("epoch", [-1, 0])
def test_ownership_is_refused_without_an_epoch(epoch: int) -> None:
    with pytest.raises(Fenced, match="has not joined"):
        KafkaOwnership.of(metadata(epoch), MINE)
