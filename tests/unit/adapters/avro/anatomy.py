"""Where the parts of an encoded body stand. Knows Avro, and nothing of the code under test."""

from collections.abc import Iterator
from typing import Any, NamedTuple


class Part(NamedTuple):
    """One primitive of a body."""

    kind: str
    """``string-length``, ``string``, ``bytes-length``, ``bytes``, ``long``, ``int``, ``union``,
    ``enum``, ``array-count``, ``map-count``."""
    start: int
    end: int
    """It is ``body[start:end]``."""


def varint(number: int) -> bytes:
    """Zigzag varint of an int64."""
    rest = (number << 1) ^ (number >> 63)
    septets = []
    while rest > 127:
        septets.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*septets, rest])


def _varint_at(body: bytes, at: int) -> tuple[int, int]:
    end = at
    while body[end] & 128:
        end += 1
    number = sum((byte & 127) << (7 * place) for place, byte in enumerate(body[at : end + 1]))
    return (number >> 1) ^ -(number & 1), end + 1


def parts(schema: Any, body: bytes, at: int = 0) -> Iterator[Part]:
    """Yield the parts of a valid body in order; ``schema`` is the file's JSON, types inlined."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        index, end = _varint_at(body, at)
        yield Part("union", at, end)
        yield from parts(kind[index], body, end)
    elif isinstance(kind, dict):
        yield from parts(kind, body, at)
    elif kind in {"int", "long", "enum"}:
        yield Part(kind, at, _varint_at(body, at)[1])
    elif kind in {"string", "bytes"}:
        length, end = _varint_at(body, at)
        yield Part(f"{kind}-length", at, end)
        yield Part(kind, end, end + length)
    elif kind == "record":
        yield from _sequence([field["type"] for field in schema["fields"]], body, at)
    elif kind in {"array", "map"}:
        yield from _blocks(schema, body, at)
    else:
        assert kind == "null", kind


def _sequence(schemas: list[Any], body: bytes, at: int) -> Iterator[Part]:
    for schema in schemas:
        for part in parts(schema, body, at):
            yield part
            at = part.end


def _blocks(schema: Any, body: bytes, at: int) -> Iterator[Part]:
    item = ["string", schema["values"]] if schema["type"] == "map" else [schema["items"]]
    count = -1
    while count:
        count, end = _varint_at(body, at)
        assert count >= 0, "our encoder writes no block sizes"
        yield Part(f"{schema['type']}-count", at, end)
        at = end
        for part in _sequence(item * count, body, at):
            yield part
            at = part.end
