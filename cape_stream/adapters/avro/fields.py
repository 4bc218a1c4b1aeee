"""What a value must be to cross the wire: checks that name the field and the value.

Both sides use them: an encoder before it writes, a plain decoder after it has read.
"""

from cape_stream.adapters.avro.wire import (
    INT32_MAX,
    INT64_MAX,
    NATURAL,
    NATURAL_END,
    length_prefixed,
    natural_bytes,
)
from cape_stream.errors import Reject
from cape_stream.model.sequence import NO_CURSOR, BadSequenceError, check_sequence
from cape_stream.model.subject import (
    SUBJECT_BYTES_MAX,
    BadSubjectError,
    check_subject,
    subject_of_key,
)

KEY_DIFFERS = "key differs from subject"

SUBJECT_SIZES = {size: NATURAL[size] for size in range(1, SUBJECT_BYTES_MAX + 1)}
"""Length of a subject → its bytes; nothing else is the length of a subject."""

LANES = ("live", "backlog")
"""In the order of the schema's symbols."""
LANE_OF = {NATURAL[index][0]: lane for index, lane in enumerate(LANES)}
"""Byte on the wire → lane."""


def checked_sequence(value: object, field: str) -> int:
    """Return a sequence id, else raise Reject."""
    try:
        return check_sequence(value, field)
    except BadSequenceError as error:
        raise Reject(str(error)) from error


def checked_cursor(value: object, field: str) -> int:
    """Return a sequence id or `NO_CURSOR`, else raise Reject."""
    if type(value) is int and value == NO_CURSOR:
        return NO_CURSOR
    return checked_sequence(value, field)


def checked_count(value: object, field: str, least: int = 0, most: int = INT64_MAX) -> int:
    """Return an integer in [least, most], else raise Reject."""
    if type(value) is not int:
        raise Reject(f"{field} must be an integer, not {value!r}")
    if not least <= value <= most:
        raise Reject(f"{field} is not in {least} to {most}: {value}")
    return value


def checked_partition(value: object) -> int:
    """Return a partition number, else raise Reject."""
    return checked_count(value, "partition", most=INT32_MAX)


def checked_attempt(value: object) -> int:
    """Return an attempt number, else raise Reject."""
    return checked_count(value, "attempt", least=1, most=INT32_MAX)


def checked_subject(value: object) -> str:
    """Return a subject, else raise Reject."""
    try:
        return check_subject(value)
    except BadSubjectError as error:
        raise Reject(str(error)) from error


def checked_key(key: bytes | None, subject: str) -> None:
    """Raise Reject unless ``key`` spells ``subject``."""
    try:
        spelled = subject_of_key(key)
    except BadSubjectError as error:
        raise Reject(str(error)) from error
    if spelled != subject:
        raise Reject(KEY_DIFFERS)


def checked_text(value: object, field: str, least_chars: int = 1) -> str:
    """Return text that UTF-8 can spell, else raise Reject."""
    if not isinstance(value, str):
        raise Reject(f"{field} must be text, not {value!r}")
    if len(value) < least_chars:
        raise Reject(f"{field} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Reject(f"{field} is not valid UTF-8 text: {error.reason}") from error
    return value


def checked_bytes(value: object, field: str) -> bytes:
    """Return bytes, else raise Reject."""
    if not isinstance(value, bytes):
        raise Reject(f"{field} must be bytes, not {type(value).__name__}")
    return value


def checked_lane(value: object) -> str:
    """Return a lane, else raise Reject."""
    if value not in LANES:
        raise Reject(f"lane must be one of {', '.join(LANES)}, not {value!r}")
    return str(value)


def subject_bytes(value: object) -> bytes:
    """Return a subject as an Avro ``string``, else raise Reject."""
    return length_prefixed(checked_subject(value).encode())


def text_bytes(value: object, field: str) -> bytes:
    """Return text of one character or more as an Avro ``string``, else raise Reject."""
    return length_prefixed(checked_text(value, field).encode())


def sequence_bytes(value: object, field: str = "sequence") -> bytes:
    """Return a sequence id as a ``long``, else raise Reject."""
    number = checked_sequence(value, field)
    return NATURAL[number] if number < NATURAL_END else natural_bytes(number)


def count_bytes(value: object, field: str, least: int = 0, most: int = INT64_MAX) -> bytes:
    """Return an integer in [least, most] as an ``int`` or ``long``, else raise Reject."""
    return natural_bytes(checked_count(value, field, least, most))


def lane_bytes(lane: object) -> bytes:
    """Return a lane as an ``enum``, else raise Reject."""
    return NATURAL[LANES.index(checked_lane(lane))]
