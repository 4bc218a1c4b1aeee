import json
from pathlib import Path
from typing import Any

import pytest

from cape_stream.model.sequence import NO_CURSOR, SEQUENCE_MAX, BadSequenceError, check_sequence

CASES = json.loads((Path(__file__).parents[2] / "data" / "int64-cases.json").read_text())


@pytest.mark.parametrize("value", [0, *CASES["accept"]])
def test_check_sequence_accepts(value: int) -> None:
    """B28; 0 is a sequence id."""
    assert check_sequence(value, "latest") == value


@pytest.mark.parametrize("value", [case["value"] for case in CASES["refuse"]])
def test_check_sequence_refuses_naming_field_and_value(value: Any) -> None:
    with pytest.raises(BadSequenceError) as caught:
        check_sequence(value, "latest")

    assert str(caught.value).startswith("latest ")
    assert str(value) in str(caught.value)


def test_no_cursor_is_no_sequence_id() -> None:
    assert NO_CURSOR < 0
    assert SEQUENCE_MAX == 2**63 - 1
    with pytest.raises(BadSequenceError):
        check_sequence(NO_CURSOR, "cursor")
