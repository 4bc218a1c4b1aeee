"""An outage opens the breaker, poison does not, and a probe tells when it is over."""

import pytest

from cape_stream.core.breaker import Breaker, BreakerSettings, BreakerState

SETTINGS = BreakerSettings(breaker_subjects=10, breaker_cooldown_ms=1_000)


def outage(breaker: Breaker, subjects: int = 40, now_ms: int = 0) -> None:
    for number in range(subjects):
        breaker.on_failure(f"S{number}", 1, now_ms, now_ms)


def opened() -> Breaker:
    breaker = Breaker(SETTINGS)
    outage(breaker)
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_breaker_opens_when_the_first_attempts_of_many_subjects_fail() -> None:
    breaker = opened()

    assert not breaker.lets_through(999)
    assert breaker.opens == 1


def test_breaker_does_not_open_for_subjects_that_fail_for_ever() -> None:
    """A crowd of poison comes back with later attempts, and tells nothing new."""
    breaker = Breaker(SETTINGS)
    for attempt in range(2, 50):
        for number in range(100):
            breaker.on_failure(f"S{number}", attempt, 0, 0)

    assert breaker.state is BreakerState.CLOSED


def test_breaker_does_not_open_while_most_subjects_succeed() -> None:
    breaker = Breaker(SETTINGS)
    for number in range(1_000):
        breaker.on_failure(f"S{number}", 1, 0, 0)
        for _ in range(2):
            breaker.on_success(0)

    assert breaker.state is BreakerState.CLOSED


def test_breaker_needs_many_subjects_and_not_many_events_of_one() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(100):
        breaker.on_failure("S", 1, 0, 0)

    assert breaker.state is BreakerState.CLOSED


def test_breaker_lets_one_probe_out_after_the_cooldown_and_closes_when_it_succeeds() -> None:
    breaker = opened()
    assert breaker.lets_through(1_000)
    breaker.on_issue()
    assert breaker.state is BreakerState.HALF_OPEN
    assert not breaker.lets_through(5_000)
    breaker.on_success(issued_ms=1_000)

    assert breaker.is_closed
    assert breaker.lets_through(1_001)


def test_breaker_waits_twice_as_long_after_each_probe_that_fails_up_to_a_bound() -> None:
    breaker = opened()
    pauses = []
    now_ms = breaker.reopens_ms
    for _ in range(8):
        assert breaker.lets_through(now_ms)
        breaker.on_issue()
        breaker.on_failure("S", 1, now_ms, now_ms)
        pauses.append(breaker.reopens_ms - now_ms)
        now_ms = breaker.reopens_ms

    assert pauses == [2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000, 30_000]


def test_probe_that_had_failed_before_says_nothing_new() -> None:
    breaker = opened()
    for now_ms in (1_000, 2_000, 3_000):
        assert breaker.lets_through(now_ms)
        breaker.on_issue()
        breaker.on_failure("poison", 7, now_ms, now_ms)
        assert breaker.reopens_ms == now_ms + 1_000


def test_breaker_takes_no_word_from_jobs_that_went_out_before_it_opened() -> None:
    breaker = opened()
    breaker.on_success(issued_ms=0)
    assert not breaker.is_closed
    assert breaker.lets_through(1_000)
    breaker.on_issue()
    breaker.on_failure("S", 1, 0, 1_001)
    breaker.on_success(issued_ms=0)

    assert breaker.state is BreakerState.HALF_OPEN


def test_breaker_sends_another_probe_when_one_is_handed_back() -> None:
    breaker = opened()
    assert breaker.lets_through(1_000)
    breaker.on_issue()
    breaker.on_no_news(issued_ms=1_000)

    assert breaker.lets_through(1_001)


@pytest.mark.parametrize("share", [1.1, 2.0])
def test_breaker_that_is_switched_off_never_opens(share: float) -> None:
    breaker = Breaker(BreakerSettings(breaker_share=share))
    outage(breaker, 500)

    assert breaker.is_closed
