from cape_stream.core.inflight.buffer import EventBuffer
from tests.desk import event


def filled(*pages: tuple[int, int, list[int]]) -> EventBuffer:
    buffer = EventBuffer()
    for start, end, sequences in pages:
        buffer.add(start, end, [event(sequence) for sequence in sequences])
    return buffer


def between(buffer: EventBuffer, start: int, end: int) -> list[int]:
    return [each.sequence for each in buffer.between(start, end)]


def test_buffer_knows_nothing_at_first() -> None:
    buffer = EventBuffer()

    assert buffer.covered_to(0) is None
    assert buffer.get(0) is None
    assert between(buffer, 0, 10) == []
    buffer.drop_through(5)
    buffer.keep_only([])
    assert buffer.intervals == []


def test_buffer_covers_an_interval_whatever_gaps_the_events_have() -> None:
    buffer = filled((91, 100, [91, 99, 100]))

    assert [buffer.covered_to(at) for at in (90, 91, 95, 100, 101)] == [None, 100, 100, 100, None]
    assert between(buffer, 92, 99) == [99]
    assert buffer.get(95) is None
    found = buffer.get(99)
    assert found is not None
    assert found.payload == b"e99"


def test_buffer_covers_an_interval_without_events() -> None:
    buffer = filled((11, 90, []))

    assert buffer.covered_to(11) == 90
    assert between(buffer, 0, 100) == []


def test_buffer_merges_what_touches_or_overlaps() -> None:
    assert filled((11, 20, [11]), (21, 30, [21])).intervals == [(11, 30)]
    assert filled((21, 30, [21]), (11, 20, [11])).intervals == [(11, 30)]
    assert filled((11, 25, [11, 22]), (21, 30, [22])).intervals == [(11, 30)]
    assert filled((11, 20, []), (31, 40, []), (15, 35, [])).intervals == [(11, 40)]
    assert filled((11, 20, []), (22, 30, [])).intervals == [(11, 20), (22, 30)]
    assert filled((22, 30, []), (11, 20, [])).intervals == [(11, 20), (22, 30)]


def test_buffer_believes_the_newest_page_about_its_interval() -> None:
    buffer = filled((1, 9, [1, 2, 9]), (2, 5, [3]))

    assert between(buffer, 0, 100) == [1, 3, 9]


def test_buffer_drops_up_to_and_including() -> None:
    buffer = filled((1, 9, [1, 2, 9]), (20, 30, [25]))
    buffer.drop_through(2)

    assert buffer.intervals == [(3, 9), (20, 30)]
    assert buffer.sequences == [9, 25]
    buffer.drop_through(9)
    assert buffer.intervals == [(20, 30)]
    assert [each.sequence for each in buffer.events] == [25]


def test_buffer_keeps_only_the_given_windows() -> None:
    buffer = filled((1, 100, [1, 10, 50, 99]))
    buffer.keep_only([(5, 20), (60, 70)])

    assert buffer.intervals == [(5, 20), (60, 70)]
    assert buffer.sequences == [10]
    assert buffer.covered_to(50) is None


def test_buffers_do_not_share_what_they_learn() -> None:
    first, second = filled((1, 1, [1])), EventBuffer()

    assert second.intervals == []
    assert second.sequences == []
    assert first.sequences == [1]
