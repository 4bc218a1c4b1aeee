import pytest

from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.source_pacing import ConcurrencyLimit, SourceBreaker, SourceState

SETTINGS = EngineSettings(
    source_calls_max=8,
    source_window_ms=1_000,
    source_failing_subjects=3,
    source_backoff_ms=1_000,
    source_backoff_max_ms=4_000,
)


def test_limit_begins_at_the_maximum_and_halves_down_to_one() -> None:
    limit = ConcurrencyLimit(SETTINGS)
    seen = [limit.calls]
    for now_ms in range(1_000, 6_000, 1_000):
        limit.cut(now_ms, now_ms)
        seen.append(limit.calls)

    assert seen == [8, 4, 2, 1, 1, 1]
    assert limit.cuts == 5


def test_limit_is_cut_once_a_window() -> None:
    limit = ConcurrencyLimit(SETTINGS)
    for now_ms in (1_000, 1_001, 1_999):
        limit.cut(now_ms, now_ms)

    assert limit.calls == 4
    limit.cut(2_000, 2_000)
    assert limit.calls == 2


def test_limit_is_not_cut_for_calls_of_before_the_last_cut() -> None:
    limit = ConcurrencyLimit(SETTINGS)
    limit.cut(0, 1_000)
    limit.cut(999, 9_000)

    assert limit.calls == 4
    limit.cut(1_000, 9_000)
    assert limit.calls == 2


def test_limit_grows_by_about_one_a_round_and_not_over_the_maximum() -> None:
    limit = ConcurrencyLimit(SETTINGS)
    limit.restart()
    rounds = []
    for _ in range(10):
        rounds.append(limit.calls)
        for _ in range(limit.calls):
            limit.grow()

    assert rounds[:4] == [1, 2, 2, 3]
    assert rounds == sorted(rounds)
    assert rounds[-1] == 8


def open_breaker() -> SourceBreaker:
    breaker = SourceBreaker(SETTINGS)
    for subject in "ABC":
        breaker.failed(subject, 10_000)
    return breaker


def test_breaker_opens_when_so_many_subjects_fail_in_a_row() -> None:
    breaker = SourceBreaker(SETTINGS)
    assert not breaker.failed("A", 10_000)
    assert not breaker.failed("B", 10_000)
    assert breaker.failed("C", 10_000)
    assert breaker.state is SourceState.OPEN
    assert breaker.opens_until_ms is not None
    assert 10_500 <= breaker.opens_until_ms <= 11_000
    assert breaker.openings == 1


def test_breaker_stays_closed_however_often_one_subject_fails() -> None:
    breaker = SourceBreaker(SETTINGS)
    for now_ms in range(1_000):
        breaker.failed("A", now_ms)
        breaker.failed("B", now_ms)

    assert breaker.state is SourceState.CLOSED


def test_breaker_stays_closed_while_others_are_answered() -> None:
    breaker = SourceBreaker(SETTINGS)
    for subject in "ABCDEFGH":
        breaker.failed(subject, 0)
        breaker.failed(subject.lower(), 0)
        breaker.answered()

    assert breaker.state is SourceState.CLOSED


def test_breaker_lets_one_probe_through_when_its_time_is_over() -> None:
    breaker = open_breaker()
    until_ms = breaker.opens_until_ms or 0

    assert not breaker.may_probe(until_ms - 1)
    assert breaker.may_probe(until_ms)
    breaker.probe()
    assert breaker.state is SourceState.HALF_OPEN
    assert not breaker.may_probe(until_ms + 1_000_000)


def test_breaker_waits_longer_after_each_probe_that_fails_up_to_the_longest_wait() -> None:
    breaker = open_breaker()
    now_ms, waits = 10_000, []
    for _ in range(60):
        assert breaker.opens_until_ms is not None
        waits.append(breaker.opens_until_ms - now_ms)
        now_ms = breaker.opens_until_ms
        breaker.probe()
        breaker.probe_failed(now_ms)

    assert breaker.state is SourceState.OPEN
    assert all(500 <= wait <= 4_000 for wait in waits)
    assert waits[0] <= 1_000
    assert waits[1] <= 2_000
    assert max(waits) > 2_000
    assert len(set(waits)) > 10, "waits are jittered"
    assert breaker.openings == 1


@pytest.mark.parametrize("probing", [False, True])
def test_breaker_closes_when_any_call_is_answered(probing: bool) -> None:
    breaker = open_breaker()
    if probing:
        breaker.probe()
    breaker.answered()

    assert breaker.state is SourceState.CLOSED
    assert breaker.opens_until_ms is None
    breaker.failed("A", 20_000)
    breaker.failed("B", 20_000)
    assert breaker.state is SourceState.CLOSED, "what failed before counts no more"


def test_breaker_stays_closed_when_the_probe_fails_after_another_call_was_answered() -> None:
    breaker = open_breaker()
    breaker.probe()
    breaker.answered()
    breaker.probe_failed(20_000)

    assert breaker.state is SourceState.CLOSED


def test_breaker_does_not_move_its_time_for_calls_that_fail_while_it_is_open() -> None:
    breaker = open_breaker()
    until_ms = breaker.opens_until_ms
    for subject in "DEFGH":
        breaker.failed(subject, 10_400)

    assert breaker.opens_until_ms == until_ms
