from dataclasses import asdict

from cape_stream.core.effects import SchedulerCounters, SchedulerEffects
from tests.desk import Desk, topology


def test_effects_are_taken_once() -> None:
    desk = Desk(topology("T1"))
    desk.scheduler.on_ping("S", 5, None, desk.now_ms)

    first, second = desk.scheduler.take_effects(), desk.scheduler.take_effects()

    assert len(first.queries) == 1
    assert second == SchedulerEffects()


def test_counters_begin_at_zero() -> None:
    assert set(asdict(SchedulerCounters()).values()) == {0}
