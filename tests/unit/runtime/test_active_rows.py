"""Active rows survive storage, the next release, and the way back."""

import pytest
from msgspec import msgpack

from cape_stream.errors import Corrupt
from cape_stream.model.active_row import ActiveRow, JobRow, LambdaRow, ParkedRow
from cape_stream.runtime.active_rows import decode_active_row, encode_active_row

ROW = ActiveRow(
    "acct-7",
    2**63 - 1,
    1_700_000_000_000,
    [
        LambdaRow(
            "t",
            "first",
            -1,
            [3, 5],
            [JobRow("0-1-1", [0, 1], 2, 1, 30_000)],
            [ParkedRow(2, 1, 1, 1_700_000_000_500, "transient", "a", "b", 1, 2)],
            {3: b"out"},
        ),
        LambdaRow("t", "second", 9_007_199_254_740_993, [], [], [], {}),
    ],
)


def test_row_comes_back_as_it_was() -> None:
    assert decode_active_row(encode_active_row(ROW)) == ROW


def test_row_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    fields = msgpack.decode(encode_active_row(ROW))
    fields.append("a field of tomorrow")
    fields[3][0].append({"more": 1})
    fields[3][0][4][0].append(None)

    assert decode_active_row(msgpack.encode(fields)) == ROW


def test_row_of_an_earlier_release_has_defaults_for_what_it_lacks() -> None:
    fields = ["acct-7", 4, 5, [["t", "first", 3]]]

    row = decode_active_row(msgpack.encode(fields))

    assert row.lambdas == [LambdaRow("t", "first", 3, (), [], [], {})]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        encode_active_row(ROW)[:-1],
        encode_active_row(ROW) + b"\x00",
        msgpack.encode({"subject": "a"}),
        msgpack.encode(["a", 1]),
        msgpack.encode([1, 1, 1, []]),
        msgpack.encode(["a", "1", 1, []]),
        msgpack.encode(["a", 1, 1, [["t", "l"]]]),
        msgpack.encode(["a", 1, 1, [["t", "l", 1, [], [["0-1-1"]]]]]),
        msgpack.encode(["a", 1, 1, [["t", "l", 1, [], 7]]]),
    ],
)
def test_row_that_is_none_is_corrupt(value: bytes) -> None:
    with pytest.raises(Corrupt, match="active row does not decode"):
        decode_active_row(value)
