import pytest

from cape_stream.core.retry import backoff_ms
from cape_stream.model.topology import RetrySpec

SPEC = RetrySpec(first_ms=1_000, max_ms=300_000, floor_ms=10)


@pytest.mark.parametrize(
    ("failures", "ceiling_ms"), [(1, 1_000), (2, 2_000), (5, 16_000), (9, 256_000), (10, 300_000)]
)
def test_backoff_lies_between_floor_and_a_ceiling_that_doubles(
    failures: int, ceiling_ms: int
) -> None:
    waits = [backoff_ms(SPEC, failures, f"S{number}") for number in range(2_000)]

    assert min(waits) >= 10
    assert max(waits) <= ceiling_ms
    assert max(waits) > ceiling_ms * 0.99
    assert 0.45 < sum(waits) / len(waits) / ceiling_ms < 0.55


@pytest.mark.parametrize("failures", [100, 10_000, 10**9])
def test_backoff_stays_bounded_however_often_it_failed(failures: int) -> None:
    assert 10 <= backoff_ms(SPEC, failures, "S") <= 300_000


def test_backoff_is_the_same_for_the_same_and_differs_for_others() -> None:
    assert backoff_ms(SPEC, 3, "S") == backoff_ms(SPEC, 3, "S")
    assert len({backoff_ms(SPEC, 3, f"S{number}") for number in range(100)}) > 90
    assert len({backoff_ms(SPEC, failures, "S") for failures in range(10, 110)}) > 90


def test_backoff_is_the_floor_where_the_ceiling_is_lower() -> None:
    spec = RetrySpec(first_ms=5, max_ms=5, floor_ms=50)

    assert backoff_ms(spec, 1, "S") == 50
