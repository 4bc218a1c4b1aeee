import pytest

from cape_stream.adapters.kafka.start_positions import Start
from cape_stream.ports.log import TopicPartition, Watermarks

KEPT = Watermarks(100, 200)


@pytest.mark.parametrize(
    ("committed", "offset"),
    [(None, 100), (99, 100), (100, 100), (150, 150), (200, 200), (201, 100)],
)
def test_start_is_the_committed_offset_or_the_earliest_record(
    committed: int | None, offset: int
) -> None:
    assert Start(TopicPartition("pings", 0), committed, KEPT).offset == offset
