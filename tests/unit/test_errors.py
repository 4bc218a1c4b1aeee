"""The error tree: five families, told apart by what the caller does."""

import pytest

from cape_stream import errors
from cape_stream.errors import CapeError, Corrupt, Fatal, Fenced, Reject, Retry

FAMILIES = [Retry, Reject, Fenced, Corrupt, Fatal]


@pytest.mark.parametrize("family", FAMILIES)
def test_family_carries_its_reason_when_raised(family: type[CapeError]) -> None:
    error = family("the broker is away")

    assert error.reason == str(error) == "the broker is away"
    assert [other for other in FAMILIES if isinstance(error, other)] == [family]


def test_root_refuses_to_be_raised_itself() -> None:
    with pytest.raises(TypeError, match="one of its five families"):
        CapeError("something")


def test_retry_says_when_to_come_back() -> None:
    assert Retry("throttled").after_ms is None
    assert Retry("throttled", after_ms=0).after_ms == 0
    with pytest.raises(ValueError, match="after_ms must be >= 0, got -1"):
        Retry("throttled", after_ms=-1)


def test_docstring_prints_the_whole_tree() -> None:
    text = errors.__doc__ or ""

    assert [family.__name__ for family in FAMILIES if f"── {family.__name__}" not in text] == []
    assert set(errors.__all__) == {"CapeError", *(family.__name__ for family in FAMILIES)}
