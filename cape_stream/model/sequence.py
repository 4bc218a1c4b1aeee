"""What a sequence id is: an int64 from 0, strictly increasing within a subject, gaps allowed."""

SEQUENCE_MAX = 2**63 - 1
"""Largest sequence id, the end of Avro's ``long``."""

NO_CURSOR = -1
"""The cursor before the first event; 0 is a valid sequence id, so the absence has its own value."""


class BadSequenceError(ValueError):
    """The value is not a sequence id; the message names the field and the value."""


def check_sequence(value: object, field: str) -> int:
    """Return ``value`` if it is a sequence id, else raise `BadSequenceError` naming ``field``.

    ``True``, ``1.0`` and ``"7"`` are refused: a value that changes its type on the way in has
    changed its meaning somewhere else already.
    """
    if type(value) is not int:
        raise BadSequenceError(f"{field} must be an integer, not {value!r}")
    if value < 0:
        raise BadSequenceError(f"{field} is negative: {value}")
    if value > SEQUENCE_MAX:
        raise BadSequenceError(f"{field} is beyond int64: {value}")
    return value
