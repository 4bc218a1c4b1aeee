"""Keys of objects that are events: ``prefix/subject/sequence``, sorted as the events are.

A subject is percent-encoded, its dots too, so that no tool takes ``..`` for a folder above; a
sequence id has 19 digits, so that S3's order of bytes is that of numbers.
"""

from urllib.parse import quote, unquote_to_bytes

from cape_stream.model.sequence import SEQUENCE_MAX

DIGITS = len(str(SEQUENCE_MAX))
KEY_BYTES_MAX = 1_024


class BadKeyError(ValueError):
    """The key names no event; the message has it."""


def folder_of(prefix: str, subject: str) -> str:
    """What the keys of a subject begin with."""
    return f"{prefix}{quote(subject, safe='').replace('.', '%2E')}/"


def key_of(prefix: str, subject: str, sequence: int) -> str:
    """Where an event lies; writers use it."""
    return f"{folder_of(prefix, subject)}{sequence:0{DIGITS}d}"


def fits(prefix: str, subject: str) -> bool:
    """True if keys of that subject are short enough for S3."""
    return len(key_of(prefix, subject, 0).encode()) <= KEY_BYTES_MAX


def parse_key(prefix: str, key: str) -> tuple[str, int]:
    """(subject, sequence id) of a key below the prefix.

    Raises:
        BadKeyError: it is not spelled as `key_of` spells it.
    """
    name, _, digits = key[len(prefix) :].rpartition("/")
    try:
        subject = unquote_to_bytes(name).decode()
        sequence = int(digits) if digits.isdecimal() else SEQUENCE_MAX + 1
        if subject and sequence <= SEQUENCE_MAX and key == key_of(prefix, subject, sequence):
            return subject, sequence
    except (UnicodeDecodeError, ValueError):
        pass  # said below
    raise BadKeyError(f"key {key!r} is not {prefix}SUBJECT/{'n' * DIGITS}, percent-encoded")
