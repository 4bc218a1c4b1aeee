"""Backoff: bounded, repeatable, and spread."""

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.core.retry import backoff_ms
from cape_stream.model.topology import RetrySpec

specs = st.builds(
    RetrySpec,
    first_ms=st.integers(1, 10**6),
    max_ms=st.integers(1, 10**9),
    floor_ms=st.integers(0, 10**4),
)


@given(specs, st.integers(1, 10**12), st.text())
def test_backoff_lies_between_its_floor_and_its_ceiling(
    spec: RetrySpec, failures: int, salt: str
) -> None:
    """Full jitter: anything up to the ceiling, never below the floor."""
    wait_ms = backoff_ms(spec, failures, salt)
    ceiling_ms = min(spec.max_ms, spec.first_ms * 2 ** min(failures - 1, 200))

    assert spec.floor_ms <= wait_ms <= max(spec.floor_ms, ceiling_ms)
    assert wait_ms == backoff_ms(spec, failures, salt)
