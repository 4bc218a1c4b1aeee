"""Cursor infos as bytes and back."""

from cape_stream.adapters.avro.fields import (
    SUBJECT_SIZES,
    checked_cursor,
    checked_subject,
    checked_text,
    text_bytes,
)
from cape_stream.adapters.avro.framing import HEADER_BYTES, Framing, remember
from cape_stream.adapters.avro.registry import FileRegistry
from cape_stream.adapters.avro.wire import (
    END,
    MINUS_ONE,
    NATURAL,
    NATURAL_END,
    QUICK_MISSES,
    UnusualError,
    natural_bytes,
    read_long,
    read_text,
)
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.sequence import NO_CURSOR
from cape_stream.model.subject import SUBJECT_BYTES_MAX

_VERSION = 1
_FINGERPRINT = "c7d546fad1f8f0ba4061783eeaf4d40993c7fb7f287d167c34c9ed9719255b8f"

_TWO_BYTES_END = 1 << 14
"""First number that a varint of two bytes does not hold."""


def _cursor_bytes(value: object, field: str) -> bytes:
    number = checked_cursor(value, field)
    return MINUS_ONE if number == NO_CURSOR else natural_bytes(number)


class _TopologyBytes(dict[str, bytes]):
    """Topology name → the name as it stands in the map; made when first asked for."""

    def __missing__(self, topology: str) -> bytes:
        octets = text_bytes(topology, "topology")
        remember(self, topology, octets)
        return octets


class CursorCodec:
    """The part of the codec for cursor infos."""

    def __init__(self, registry: FileRegistry) -> None:
        self._cursor_framing = Framing(registry, "cursor_info", _VERSION, _FINGERPRINT)
        header = self._cursor_framing.header
        self._cursor_heads = {size: header + octets for size, octets in SUBJECT_SIZES.items()}
        """Header and length of the subject, by that length."""
        self._topology_bytes = _TopologyBytes()
        self._topology_names: dict[bytes, str] = {}
        """The same the other way round."""

    def encode_cursors(self, info: CursorInfo) -> bytes:
        """Return a cursor info as a row. Raises Reject naming field and value."""
        latest = info.latest
        cursors = info.cursors
        names = self._topology_bytes
        try:
            subject = info.subject.encode()
            parts = [self._cursor_heads[len(subject)], subject]
        except (AttributeError, KeyError, UnicodeEncodeError):
            checked_subject(info.subject)
            raise
        if type(latest) is int and 0 <= latest < NATURAL_END:
            parts.append(NATURAL[latest])
        else:
            parts.append(_cursor_bytes(latest, "latest"))
        if not cursors:
            return b"".join((*parts, END))
        parts.append(natural_bytes(len(cursors)))
        for topology, cursor in cursors.items():
            parts.append(names[topology])
            # The type first: True and 1.0 would find their way into the table, too.
            if type(cursor) is int and 0 <= cursor < NATURAL_END:
                parts.append(NATURAL[cursor])
            else:
                parts.append(_cursor_bytes(cursor, f"cursor of {topology}"))
        parts.append(END)
        return b"".join(parts)

    def decode_cursors(self, value: bytes | None) -> CursorInfo:
        """Return the cursor info of a row. Raises Reject with a short stable reason."""
        if value and value.startswith(self._cursor_framing.header):
            try:
                return self._quick_cursors(value)
            except QUICK_MISSES:
                pass  # the plain path reads it, or says what is wrong
        return self._plain_cursors(value)

    def _quick_cursors(self, value: bytes) -> CursorInfo:
        names = self._topology_names
        size, at = read_long(value, HEADER_BYTES)
        end = at + size
        if not 0 < size <= SUBJECT_BYTES_MAX:
            raise UnusualError
        subject = value[at:end].decode()
        latest, at = read_long(value, end)
        count, at = read_long(value, at)
        cursors: dict[str, int] = {}
        for _ in range(count):
            end = at + 1 + (value[at] >> 1)
            # Bytes that were read as one name before are that name: no need to look at the length.
            topology = names.get(value[at:end])
            if topology is None:
                topology, end = self._new_topology(value, at)
            # One and two bytes are read on the spot: the call would cost more than the reading.
            number = value[end]
            at = end + 1
            if number > 127:
                number += (value[at] << 7) - 128
                at += 1
            if number & 1 or number >= _TWO_BYTES_END:
                cursors[topology], at = read_long(value, end)
            else:
                cursors[topology] = number >> 1
        rest = value[at:]
        if rest != (END if count else b"") or len(cursors) != count:
            raise UnusualError
        if latest < NO_CURSOR or (cursors and min(cursors.values()) < NO_CURSOR):
            raise UnusualError
        return CursorInfo(subject, latest, cursors)

    def _new_topology(self, value: bytes, at: int) -> tuple[str, int]:
        topology, end = read_text(value, at)
        if not topology:
            raise UnusualError
        remember(self._topology_names, value[at:end], topology)
        return topology, end

    def _plain_cursors(self, value: bytes | None) -> CursorInfo:
        fields = self._cursor_framing.fields(value)
        return CursorInfo(
            checked_subject(fields["subject"]),
            checked_cursor(fields["latest"], "latest"),
            {
                checked_text(topology, "topology"): checked_cursor(cursor, f"cursor of {topology}")
                for topology, cursor in fields["cursors"].items()
            },
        )
