"""Rows of the embedded log: what goes in comes out, by the plain and by the quick way."""

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.adapters.embedded.rows import (
    RECORD_MARKER,
    committed_prefix,
    decode_bounds,
    decode_record,
    decode_records,
    decode_topic,
    encode_bounds,
    encode_record,
    encode_topic,
    offset_of,
    pack_offset,
    place,
    split_committed,
)
from cape_stream.ports.log import Record, TopicSpec

OFFSETS = st.integers(0, 2**63 - 1)
MAYBE_BYTES = st.none() | st.binary(max_size=300)
NUMBERS = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(OFFSETS, OFFSETS, MAYBE_BYTES, MAYBE_BYTES), max_size=20), NUMBERS)
def test_records_come_back_by_both_ways(
    fields: list[tuple[int, int, bytes | None, bytes | None]], partition: int
) -> None:
    prefix = RECORD_MARKER + place(7, partition)
    rows = [
        (prefix + pack_offset(offset), encode_record(timestamp_ms, key, value))
        for offset, timestamp_ms, key, value in fields
    ]
    expected = [Record("t", partition, *each) for each in fields]

    quick = decode_records("t", partition, rows)
    plain = [decode_record("t", partition, offset_of(key), row) for key, row in rows]

    assert quick == plain == expected
    assert all(type(record) is Record for record in quick)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, OFFSETS), max_size=20))
def test_row_keys_sort_by_partition_and_offset(places: list[tuple[int, int, int]]) -> None:
    keys = {each: place(*each[:2]) + pack_offset(each[2]) for each in places}

    assert sorted(places, key=lambda each: keys[each]) == sorted(places)


@given(st.text(max_size=80), st.text(max_size=80), NUMBERS, NUMBERS)
def test_committed_offsets_name_their_group(
    group: str, other: str, number: int, partition: int
) -> None:
    """And no group's rows begin with those of another one."""
    key = committed_prefix(group) + place(number, partition)

    assert split_committed(key) == (group, number, partition)
    assert key.startswith(committed_prefix(other)) == (group == other)


@given(OFFSETS, OFFSETS)
def test_bounds_come_back(low: int, high: int) -> None:
    assert decode_bounds(encode_bounds(low, high)) == (low, high)


@given(NUMBERS, st.text(min_size=1), st.integers(1, 1_000), st.dictionaries(st.text(), st.text()))
def test_topics_come_back(number: int, name: str, partitions: int, config: dict[str, str]) -> None:
    spec = TopicSpec(name=name, partitions=partitions, config=config)

    assert decode_topic(b"\x01" + name.encode(), encode_topic(number, spec)) == (number, spec)
