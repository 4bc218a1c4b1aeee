"""The events of a job as bytes and back, in both ways: quick, and plain."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from cape_stream.adapters.avro.fields import (
    checked_bytes,
    checked_sequence,
    checked_text,
    sequence_bytes,
)
from cape_stream.adapters.avro.wire import (
    END,
    NATURAL,
    NATURAL_END,
    UnusualError,
    length_prefixed,
    natural_bytes,
    read_bytes,
    read_long,
    read_natural,
    read_text,
)
from cape_stream.errors import Reject
from cape_stream.model.event import NO_HEADERS, NO_INPUTS, Event

_TWO_EMPTY_MAPS = END + END
_TWO_BYTES_END = 1 << 14
"""First number that a varint of two bytes does not hold."""

V = TypeVar("V")


def add_events(parts: list[bytes], events: Sequence[Event]) -> None:
    """Append the items of the array, without its count and its end."""
    for event in events:
        sequence = event.sequence
        payload = event.payload
        size = len(payload)
        # The type first: True and 1.0 would find their way into the table, too.
        if type(sequence) is int and 0 <= sequence < NATURAL_END:
            parts.append(NATURAL[sequence])
        else:
            parts.append(sequence_bytes(sequence))
        parts.append(NATURAL[size] if size < NATURAL_END else natural_bytes(size))
        parts.append(payload)
        if event.headers or event.inputs:
            parts.append(_map_bytes(event.headers, "header", _text_value_bytes))
            parts.append(_map_bytes(event.inputs, "input", _bytes_value_bytes))
        else:
            parts.append(_TWO_EMPTY_MAPS)


def _map_bytes(
    entries: Mapping[str, V], field: str, value_bytes: Callable[[V, str], bytes]
) -> bytes:
    if not entries:
        return END
    parts = [natural_bytes(len(entries))]
    for name, value in entries.items():
        parts.append(length_prefixed(checked_text(name, f"{field} name", least_chars=0).encode()))
        parts.append(value_bytes(value, f"{field} {name}"))
    parts.append(END)
    return b"".join(parts)


def _text_value_bytes(value: object, field: str) -> bytes:
    return length_prefixed(checked_text(value, field, least_chars=0).encode())


def _bytes_value_bytes(value: object, field: str) -> bytes:
    return length_prefixed(checked_bytes(value, field))


def quick_events(value: bytes, at: int) -> tuple[list[Event], int]:
    """Read the one block that our own encoder writes; at its end, the array's end is still due."""
    count, at = read_natural(value, at)
    events: list[Event] = []
    last = -1
    for _ in range(count):
        sequence, at = read_long(value, at)
        if sequence <= last:
            raise UnusualError
        last = sequence
        # A payload's length has two bytes as a rule: read on the spot, the call would cost more.
        start = at
        size = value[at]
        at += 1
        if size > 127:
            size += (value[at] << 7) - 128
            at += 1
        if size & 1 or size >= _TWO_BYTES_END:
            size, at = read_natural(value, start)
        else:
            size >>= 1
        end = at + size
        payload = value[at:end]
        at = end + 2
        if value[end:at] == _TWO_EMPTY_MAPS:
            events.append(Event(sequence, payload, NO_HEADERS, NO_INPUTS))
        else:
            headers, at = _quick_map(value, end, read_text)
            inputs, at = _quick_map(value, at, read_bytes)
            events.append(Event(sequence, payload, headers, inputs))
    if not events:
        raise UnusualError
    return events, at


def _quick_map(
    value: bytes, at: int, read: Callable[[bytes, int], tuple[V, int]]
) -> tuple[dict[str, V], int]:
    entries: dict[str, V] = {}
    count, at = read_natural(value, at)
    while count:
        for _ in range(count):
            name, at = read_text(value, at)
            entries[name], at = read(value, at)
        count, at = read_natural(value, at)
    return entries, at


def plain_events(items: Sequence[Mapping[str, Any]]) -> list[Event]:
    """Return what the strict reader found. Raises Reject unless ascending and not empty."""
    events = [
        Event(
            checked_sequence(item["sequence"], "sequence"),
            item["payload"],
            item["headers"] or NO_HEADERS,
            item["inputs"] or NO_INPUTS,
        )
        for item in items
    ]
    if not events:
        raise Reject("events is empty")
    if any(later.sequence <= sooner.sequence for sooner, later in pairwise(events)):
        raise Reject("events are not ascending")
    return events
