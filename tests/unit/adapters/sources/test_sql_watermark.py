"""Watermarks: exact there and back, and nothing to another sweep."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cape_stream.adapters.sources.sql_watermark import Sweep

SWEEP = Sweep("departures", ("id",))
BY_TIME = Sweep("departures", ("at", "subject", "leg"))
TEXTS = st.text(st.characters(codec="utf-8"))


@given(st.tuples(*[st.integers(-(2**63), 2**63 - 1) | TEXTS | st.floats(allow_nan=False)] * 3))
def test_watermark_is_exact_there_and_back(place: tuple[int | float | str, ...]) -> None:
    assert BY_TIME.decode(BY_TIME.encode(place)) == place
    assert BY_TIME.decode(BY_TIME.encode(())) == ()


def test_watermark_keeps_a_text_that_is_no_unicode() -> None:
    text = b"caf\xc3".decode("utf-8", "surrogateescape")

    assert SWEEP.decode(SWEEP.encode((text,))) == (text,)


@pytest.mark.parametrize(
    "other", [Sweep("arrivals", ("id",)), Sweep("departures", ("changed",)), BY_TIME]
)
def test_watermark_means_nothing_to_another_sweep(other: Sweep) -> None:
    assert other.decode(SWEEP.encode((7,))) == ()


@pytest.mark.parametrize(
    "read",
    [
        {"version": 2, "table": "departures", "columns": ["id"], "after": [7]},
        {"version": 1, "table": "departures", "columns": ["id"]},
        {"version": 1, "table": "departures", "columns": ["id"], "after": 7},
        {"version": 1, "table": "departures", "columns": ["id"], "after": [[7]]},
        {"version": 1, "table": "departures", "columns": ["id"], "after": [True]},
        {"version": 1, "table": "departures", "columns": ["id"], "after": [None]},
        {"version": 1, "table": "departures", "columns": ["id"], "after": [7, 8]},
        [7],
        None,
    ],
)
def test_watermark_that_cannot_be_read_starts_over(read: object) -> None:
    assert SWEEP.decode(json.dumps(read)) == ()


def test_watermark_that_is_no_json_starts_over() -> None:
    assert SWEEP.decode("{") == ()
    assert SWEEP.decode(None) == ()
