"""The five bytes in front of every record, and the plain way through what follows them.

A record value is 0x00, the schema id as four bytes big endian, and the body. Source: Confluent
Schema Registry documentation, "Wire format".
"""

import struct
from collections.abc import Mapping, MutableMapping
from io import BytesIO
from typing import Any, TypeVar

from fastavro import schemaless_reader

from cape_stream.adapters.avro.registry import FileRegistry, SchemaVersion
from cape_stream.adapters.avro.strict import read_body
from cape_stream.adapters.avro.wire import TRUNCATED, read_natural
from cape_stream.errors import Fatal, Reject

MAGIC = 0
HEADER_BYTES = 5
_HEADER = struct.Struct(">BI")

NULL_VALUE = "null value"
BAD_MAGIC = "bad magic byte"

_MEMORY_ENTRIES_MAX = 65_536
"""Room for 50 topologies of 3 lambdas on 100 partitions, in some 20 MB at the worst."""

K = TypeVar("K")
V = TypeVar("V")


def remember(memory: MutableMapping[K, V], key: K, value: V) -> None:
    """Note something a quick path may need again; when the memory is full it starts anew.

    What is remembered comes from the wire, so without a bound a stranger could fill us up.
    """
    if len(memory) >= _MEMORY_ENTRIES_MAX:
        memory.clear()
    memory[key] = value


STAMP_BYTES = 6
"""Length of Unix milliseconds as a ``long``, from 1978 to 2039."""


def read_stamp(stamps: dict[bytes, int], value: bytes, at: int) -> tuple[int, int]:
    """Read Unix milliseconds for a quick path that has not found their bytes among ``stamps``.

    Many records carry the same millisecond when there are many, and then looking it up is five
    times as quick as reading it.
    """
    stamp_ms, end = read_natural(value, at)
    if end == at + STAMP_BYTES:
        remember(stamps, value[at:end], stamp_ms)
    return stamp_ms, end


class Framing:
    """One record type on the wire: what this release writes, and every other known version."""

    def __init__(self, registry: FileRegistry, record: str, version: int, fingerprint: str) -> None:
        """Tie the hand-written code of a record to the schema it was written for.

        Args:
            registry: knows all schemas.
            record: such as ``job_status``.
            version: the version that the quick paths write and read.
            fingerprint: of that version's schema.

        Raises:
            Fatal: the registry holds something else under that version.
        """
        self._registry = registry
        self._own = registry.version(record, version)
        if self._own.fingerprint != fingerprint:
            raise Fatal(
                f"version {version} of {record} in the registry is not the one this release "
                f"writes: its fingerprint is {self._own.fingerprint}, not {fingerprint}"
            )
        self.header = _HEADER.pack(MAGIC, self._own.schema_id)

    def fields(self, value: bytes | None) -> Mapping[str, Any]:
        """Return the record's fields as this release knows them, by name.

        Raises:
            Reject: the bytes are not one record of this type, whole and without a rest.
        """
        data, written = self._unframe(value)
        fields: dict[str, Any] = read_body(data, HEADER_BYTES, written.schema, written.names)
        if written is not self._own:
            fields = self._resolve(data, written)
        return fields

    def _unframe(self, value: bytes | None) -> tuple[bytes, SchemaVersion]:
        if value is None:
            raise Reject(NULL_VALUE)
        if value[:1] not in {b"", b"\x00"}:
            raise Reject(BAD_MAGIC)
        if len(value) < HEADER_BYTES:
            raise Reject(TRUNCATED)
        _, schema_id = _HEADER.unpack_from(value)
        written = self._own if value.startswith(self.header) else self._registry.find(schema_id)
        if written is None:
            raise Reject(f"unknown schema id {schema_id}")
        if written.record != self._own.record:
            raise Reject(
                f"foreign schema id {schema_id} ({written.record}, expected {self._own.record})"
            )
        return value, written

    def _resolve(self, data: bytes, written: SchemaVersion) -> dict[str, Any]:
        body = BytesIO(data[HEADER_BYTES:])
        try:
            fields: Any = schemaless_reader(body, written.schema, self._own.schema)
        except Exception as error:
            # fastavro raises whatever its parts raise; to us it all means the same.
            raise Reject(
                f"schema id {written.schema_id} does not resolve to {written.record} version "
                f"{self._own.version}: {error}"
            ) from error
        resolved: dict[str, Any] = fields
        return resolved
