"""Reading by schema, strictly: every Avro type, every fault; fastavro says what is right."""

import struct
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from cape_stream.adapters.avro.strict import named_types, read_body
from cape_stream.errors import Reject
from tests.unit.adapters.avro.anatomy import varint

LONGS = {"type": "array", "items": "long"}
TEXTS = {"type": "map", "values": "string"}
SUIT = {"type": "enum", "name": "Suit", "symbols": ["hearts", "spades"]}
PAIR = {
    "type": "record",
    "name": "Pair",
    "fields": [{"name": "a", "type": SUIT}, {"name": "b", "type": "Suit"}],
}
NESTED = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "value", "type": {"type": "long"}},
        {"name": "below", "type": {"type": "array", "items": "Tree"}},
    ],
}


def read(schema: Any, body: bytes) -> Any:
    parsed: Any = parse_schema(schema)
    return read_body(b"head " + body, 5, parsed, named_types(parsed))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("null", None),
        ("boolean", True),
        ("boolean", False),
        ("int", -(2**31)),
        ("int", 2**31 - 1),
        ("long", -(2**63)),
        ("long", 2**63 - 1),
        ("float", 0.5),
        ("double", 1e300),
        ("bytes", b"\x00\xff"),
        ("string", "é\u0000"),
        ({"type": "fixed", "name": "Four", "size": 4}, b"abcd"),
        (SUIT, "spades"),
        (PAIR, {"a": "spades", "b": "hearts"}),
        (["null", "string"], None),
        (["null", "string"], "x"),
        (LONGS, []),
        (LONGS, list(range(-300, 300))),
        (TEXTS, {}),
        (TEXTS, {"a": "b", "": ""}),
        (NESTED, {"value": 1, "below": [{"value": 2, "below": []}]}),
    ],
    ids=repr,
)
def test_reader_reads_what_fastavro_writes(schema: Any, value: Any) -> None:
    body = BytesIO()
    schemaless_writer(body, parse_schema(schema), value)

    assert read(schema, body.getvalue()) == value
    for cut in range(len(body.getvalue())):
        with pytest.raises(Reject, match=r"^truncated$"):
            read(schema, body.getvalue()[:cut])
    with pytest.raises(Reject, match=r"^trailing bytes$"):
        read(schema, body.getvalue() + b"\x00")


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (b"\x80\x00", 0),
        (b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", 0),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", -(2**63)),
        (b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 2**63 - 1),
    ],
)
def test_reader_takes_a_varint_of_at_most_ten_bytes(body: bytes, number: int) -> None:
    """Also one that is longer than it need be: Avro does not forbid it."""
    assert read("long", body) == number


@pytest.mark.parametrize("size", range(1, 11))
def test_reader_takes_every_length_of_varint(size: int) -> None:
    edges = (
        {n for bits in (7 * size - 8, 7 * size - 1) for n in (2**bits - 1, 2**bits)}
        if (size > 1)
        else {0, 63}
    )

    for number in edges:
        for signed in (number, -number - 1):
            if -(2**63) <= signed < 2**63:
                assert read("long", varint(signed)) == signed


@pytest.mark.parametrize(
    ("schema", "body", "reason"),
    [
        ("long", b"\x80" * 10 + b"\x00", "varint longer than 10 bytes"),
        ("long", b"\xff" * 9 + b"\x02", "integer beyond int64"),
        ("int", varint(2**31), "integer beyond int32"),
        ("int", varint(-(2**31) - 1), "integer beyond int32"),
        ("boolean", b"\x02", "bad boolean"),
        ("bytes", varint(-1), "negative length"),
        ("string", varint(-1), "negative length"),
        ("string", varint(2) + b"\xc3\x28", "text is not UTF-8"),
        ("string", varint(3) + b"\xed\xa0\x80", "text is not UTF-8"),
        (SUIT, varint(2), "bad enum index"),
        (SUIT, varint(-1), "bad enum index"),
        (["null", "string"], varint(2), "bad union index"),
        (["null", "string"], varint(-1), "bad union index"),
        (LONGS, varint(2**60), "truncated"),
        (LONGS, varint(-(2**63)) + varint(0), "truncated"),
        (LONGS, varint(-1) + varint(-1) + varint(5) + b"\x00", "bad block size"),
        (LONGS, varint(-1) + varint(2) + varint(5) + b"\x00", "bad block size"),
        (LONGS, varint(-1) + varint(0) + varint(5) + b"\x00", "bad block size"),
        (LONGS, varint(-1) + varint(2**60) + varint(5) + b"\x00", "truncated"),
        (TEXTS, varint(2**60), "truncated"),
        ({"type": "array", "items": "null"}, varint(2**60) + b"\x00", "truncated"),
        ({"type": "fixed", "name": "Four", "size": 4}, b"abc", "truncated"),
        ("float", struct.pack("<f", 1.0)[:3], "truncated"),
    ],
)
def test_reader_rejects_what_is_not_avro(schema: Any, body: bytes, reason: str) -> None:
    with pytest.raises(Reject) as refused:
        read(schema, body)

    assert refused.value.reason == reason


def test_reader_takes_blocks_with_and_without_their_size() -> None:
    sized = varint(-2) + varint(3) + varint(5) + varint(64)
    plain = varint(1) + varint(-7)

    assert read(LONGS, sized + plain + sized + b"\x00") == [5, 64, -7, 5, 64]


def test_reader_takes_a_map_in_several_blocks() -> None:
    first = varint(-1) + varint(4) + b"\x02a" + b"\x02b"
    second = varint(1) + b"\x02c" + b"\x02d"

    assert read(TEXTS, first + second + b"\x00") == {"a": "b", "c": "d"}


def test_named_types_finds_types_at_any_depth() -> None:
    schema: Any = parse_schema(
        {"type": "array", "items": ["null", {"type": "map", "values": PAIR}]}
    )

    assert sorted(named_types(schema)) == ["Pair", "Suit"]
