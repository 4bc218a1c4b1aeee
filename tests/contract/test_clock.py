"""The clock that everything reads."""

import pytest

from cape_stream.adapters.simulated import SimClock
from cape_stream.adapters.simulated.timeline import Timeline
from cape_stream.ports.clock import Clock
from cape_stream.runtime.steady import SteadyClock

YEAR_2020_MS = 1_577_836_800_000


@pytest.fixture(params=["steady", "simulated", "simulated-ahead"])
def clock(request: pytest.FixtureRequest) -> Clock:
    if request.param == "steady":
        return SteadyClock()
    skew_ms = 5_000 if request.param == "simulated-ahead" else 0
    return SimClock(Timeline(YEAR_2020_MS + 1), skew_ms)


def test_time_is_whole_unix_milliseconds(clock: Clock) -> None:
    now_ms = clock.now_ms()

    assert type(now_ms) is int
    assert now_ms > YEAR_2020_MS


def test_time_never_goes_back(clock: Clock) -> None:
    seen = []
    for number in range(200):
        seen.append(clock.now_ms())
        clock.sleep_ms(number % 3)

    assert seen == sorted(seen)


@pytest.mark.parametrize("duration_ms", [0, 1, 30])
def test_sleep_lets_at_least_that_time_pass(clock: Clock, duration_ms: int) -> None:
    before_ms = clock.now_ms()
    clock.sleep_ms(duration_ms)

    assert clock.now_ms() - before_ms >= duration_ms
