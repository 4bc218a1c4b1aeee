import pytest

from cape_stream.adapters.simulated import CALM, Dice, Faults, SimProcess, SimSource, Timeline
from cape_stream.adapters.simulated.source import SourceDownError
from cape_stream.model.event import Event
from cape_stream.model.request import EventPage, EventQuery, QueryFault


def sequences(source: SimSource, start: int = 0, limit: int = 10) -> list[int]:
    (answer,) = source.fetch_many([EventQuery("s", start, limit)])
    assert isinstance(answer, EventPage)
    return [event.sequence for event in answer.events]


def test_source_answers_from_the_start_up_to_the_limit() -> None:
    source = SimSource()
    for sequence in (0, 3, 4, 9):
        source.publish("s", Event(sequence, b""))

    assert sequences(source, start=1, limit=2) == [3, 4]
    assert source.changed_since(None, 10).subjects == [("s", 9)]


def test_source_never_shows_an_event_before_those_below_it() -> None:
    timeline = Timeline()
    source = SimSource(timeline)
    source.publish("s", Event(1, b""), visible_after_ms=100)
    source.publish("s", Event(2, b""))

    timeline.run_until(timeline.now_ms + 99)
    assert sequences(source) == []
    watermark = source.changed_since(None, 10).watermark
    timeline.run_until(timeline.now_ms + 1)

    assert sequences(source) == [1, 2]
    assert source.changed_since(watermark, 10).subjects == [("s", 2)]


def test_source_sweeps_in_parts_until_there_is_no_more() -> None:
    source = SimSource()
    for number in range(5):
        source.publish(f"s{number}", Event(0, b""))

    swept, watermark, more = [], None, True
    while more:
        changes = source.changed_since(watermark, 2)
        swept += [subject for subject, _ in changes.subjects]
        watermark, more = changes.watermark, changes.more

    assert swept == ["s0", "s1", "s2", "s3", "s4"]


def test_source_raises_while_it_is_down_or_by_chance() -> None:
    timeline = Timeline()
    source = SimSource(timeline)
    source.go_down(50)
    with pytest.raises(SourceDownError):
        source.fetch_many([])
    timeline.run_until(timeline.now_ms + 50)
    assert source.fetch_many([]) == []
    with pytest.raises(SourceDownError):
        SimSource(dice=Dice(1, Faults(source_raise=1.0))).changed_since(None, 1)


def test_source_hangs_for_as_long_as_drawn() -> None:
    with Timeline(start_ms=0) as timeline:
        dice = Dice(1, Faults(source_hang=1.0, hang_ms=(70_000, 70_000)))
        source = SimSource(timeline, dice)
        answered_ms: list[int] = []

        def loop() -> None:
            source.fetch_many([])
            answered_ms.append(timeline.now_ms)

        SimProcess(timeline, "p").start(loop)
        timeline.run_until(69_999)
        assert answered_ms == []
        timeline.run_until(70_000)

        assert answered_ms == [70_000]


def test_source_answers_with_a_fault_a_part_or_garbage_by_chance() -> None:
    dice = Dice(1)
    source = SimSource(dice=dice)
    for sequence in range(5, 10):
        source.publish("s", Event(sequence, b""))

    dice.faults = Faults(source_fault=1.0)
    assert isinstance(source.fetch_many([EventQuery("s", 0, 9)])[0], QueryFault)
    dice.faults = Faults(source_partial=1.0)
    assert all(len(sequences(source)) < 5 for _ in range(20))
    dice.faults = Faults(source_garbage=1.0)
    spoilt = [sequences(source, 5, 4) for _ in range(40)]
    assert all(
        answer != sorted(set(answer)) or answer[0] < 5 or len(answer) > 4 for answer in spoilt
    )
    assert {len(answer) for answer in spoilt} >= {5, 9}
    dice.faults = CALM
    assert sequences(source) == [5, 6, 7, 8, 9]
