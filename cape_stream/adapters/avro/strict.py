"""Reading a body by its schema, any schema, without believing a byte of it.

fastavro is quick and lenient: it takes a negative length for "all that is left", a varint of any
length, and bytes after the end. So every body that no quick path has read goes through here first.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

from cape_stream.adapters.avro.wire import (
    BAD_BLOCK_SIZE,
    BAD_BOOLEAN,
    BAD_ENUM_INDEX,
    BAD_UNION_INDEX,
    BEYOND_INT32,
    INT32_MAX,
    TRAILING_BYTES,
    TRUNCATED,
    read_bytes,
    read_long,
    read_text,
)
from cape_stream.errors import Reject

Schema = Any
"""A parsed schema: a type name, a union as a list, or a mapping with ``type``."""


def read_body(data: bytes, start: int, schema: Schema, names: Mapping[str, Schema]) -> Any:
    """Return the value that ``data`` holds from ``start`` to its very end.

    Args:
        data: the whole record value.
        start: offset of the body, >= 0.
        schema: what the body was written with, parsed.
        names: full name → definition, of every named type in ``schema``.

    Raises:
        Reject: the bytes are not exactly one value of the schema.
    """
    reader = _StrictReader(data, start, names)
    try:
        value = reader.read(schema)
    except IndexError as error:
        raise Reject(TRUNCATED) from error
    if reader.at != len(data):
        raise Reject(TRAILING_BYTES)
    return value


def named_types(schema: Schema) -> dict[str, Schema]:
    """Collect the records, enums and fixed types a parsed schema defines, by full name."""
    found: dict[str, Schema] = {}
    pending = [schema]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending.extend(each)
        elif isinstance(each, dict):
            if "name" in each:
                found[each["name"]] = each
            pending.extend(field["type"] for field in each.get("fields", ()))
            pending.extend(each[part] for part in ("type", "items", "values") if part in each)
    return found


class _StrictReader:
    def __init__(self, data: bytes, at: int, names: Mapping[str, Schema]) -> None:
        self.at = at
        self._data = data
        self._names = names

    def read(self, schema: Schema) -> Any:
        if isinstance(schema, list):
            return self._union(schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if not isinstance(kind, str):
            return self.read(kind)
        read = _READERS.get(kind)
        if read is None:
            return self.read(self._names[kind])
        return read(self, schema)

    def read_long(self, _schema: Schema = None) -> int:
        number, self.at = read_long(self._data, self.at)
        return number

    def read_int(self, _schema: Schema) -> int:
        number = self.read_long()
        if not -INT32_MAX - 1 <= number <= INT32_MAX:
            raise Reject(BEYOND_INT32)
        return number

    def read_null(self, _schema: Schema) -> None:
        return None

    def read_boolean(self, _schema: Schema) -> bool:
        byte = self._data[self.at]
        self.at += 1
        if byte > 1:
            raise Reject(BAD_BOOLEAN)
        return byte == 1

    def read_float(self, _schema: Schema) -> Any:
        return struct.unpack("<f", self._take(4))[0]

    def read_double(self, _schema: Schema) -> Any:
        return struct.unpack("<d", self._take(8))[0]

    def read_fixed(self, schema: Schema) -> bytes:
        return self._take(schema["size"])

    def read_bytes(self, _schema: Schema) -> bytes:
        octets, self.at = read_bytes(self._data, self.at)
        return octets

    def read_string(self, _schema: Schema) -> str:
        text, self.at = read_text(self._data, self.at)
        return text

    def read_enum(self, schema: Schema) -> Any:
        index = self.read_long()
        if not 0 <= index < len(schema["symbols"]):
            raise Reject(BAD_ENUM_INDEX)
        return schema["symbols"][index]

    def read_record(self, schema: Schema) -> dict[str, Any]:
        return {field["name"]: self.read(field["type"]) for field in schema["fields"]}

    def read_array(self, schema: Schema) -> list[Any]:
        items: list[Any] = []
        self._blocks(lambda: items.append(self.read(schema["items"])))
        return items

    def read_map(self, schema: Schema) -> dict[str, Any]:
        entries: dict[str, Any] = {}

        def entry() -> None:
            name = self.read_string(schema)
            entries[name] = self.read(schema["values"])

        self._blocks(entry)
        return entries

    def _union(self, branches: list[Schema]) -> Any:
        index = self.read_long()
        if not 0 <= index < len(branches):
            raise Reject(BAD_UNION_INDEX)
        return self.read(branches[index])

    def _blocks(self, read_item: Callable[[], None]) -> None:
        """Read blocks up to the empty one; a negative count has the block's size after it."""
        while (count := self.read_long()) != 0:
            end = None
            if count < 0:
                count, size = -count, self.read_long()
                end = self.at + size
                if not 0 <= size <= len(self._data) - self.at:
                    raise Reject(BAD_BLOCK_SIZE if size < 0 else TRUNCATED)
            # An item takes a byte at least, in all types but null and an empty record or fixed,
            # which nobody needs an array of: so a claimed count cannot exceed the bytes left.
            if count > len(self._data) - self.at:
                raise Reject(TRUNCATED)
            for _ in range(count):
                read_item()
            if end is not None and self.at != end:
                raise Reject(BAD_BLOCK_SIZE)

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self.at:
            raise Reject(TRUNCATED)
        self.at += size
        return self._data[self.at - size : self.at]


_READERS: dict[str, Callable[[_StrictReader, Schema], Any]] = {
    kind: getattr(_StrictReader, f"read_{kind}")
    for kind in (
        *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
        *("fixed", "enum", "record", "array", "map"),
    )
}
