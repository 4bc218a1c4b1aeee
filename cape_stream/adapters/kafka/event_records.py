"""Records of a topic that holds events → events, with a reason for each that is none."""

from collections.abc import Mapping, Sequence
from typing import Literal

from confluent_kafka import Message

from cape_stream.adapters.kafka.event_index import Indexed
from cape_stream.model.event import NO_HEADERS
from cape_stream.model.sequence import BadSequenceError, check_sequence
from cape_stream.model.subject import BadSubjectError, subject_of_key

Keys = Literal["subject", "subject/sequence"]
DIGITS_MAX = 19


class BadRecordError(ValueError):
    """The record is no event; the message says why."""


def event_of(message: Message, keys: Keys, sequence_header: str | None) -> Indexed | None:
    """The event of a record; None for a record without a value that says nothing.

    Raises:
        BadRecordError: it is none.
    """
    key, value = message.key(), message.value()
    partition, offset = message.partition(), message.offset()
    assert partition is not None, "a record has a place"
    assert offset is not None, "a record has a place"
    if value is None and keys == "subject":
        return None
    try:
        headers = _headers(message.headers())
        if keys == "subject/sequence":
            name, _, digits = (key or b"").rpartition(b"/")
            subject, sequence = subject_of_key(name), _number(digits.decode(), "key")
        else:
            subject = subject_of_key(key)
            sequence = offset
            if sequence_header is not None:
                sequence = _number(headers.get(sequence_header), f"header {sequence_header}")
                headers = {k: v for k, v in headers.items() if k != sequence_header} or NO_HEADERS
    except (BadSubjectError, BadSequenceError, UnicodeDecodeError) as error:
        raise BadRecordError(str(error)) from error
    return Indexed(subject, sequence, partition, offset, value, headers)


def _number(text: str | None, field: str) -> int:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX:
        raise BadSequenceError(f"{field} must be a sequence id in digits, not {text!r:.40}")
    return check_sequence(int(text), field)


def _headers(
    found: Sequence[tuple[str, str | bytes | None]] | Mapping[str, str | bytes | None] | None,
) -> Mapping[str, str]:
    """Headers as text; of bytes that are none, what can be read. The last one of a name counts."""
    if not found:
        return NO_HEADERS
    pairs = found.items() if isinstance(found, Mapping) else found
    return {name: _text(value) for name, value in pairs}


def _text(value: str | bytes | None) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value or ""
