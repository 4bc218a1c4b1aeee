"""What a subject is, and the partition that owns it.

A subject is a non-empty UTF-8 string of at most 1,024 bytes, compared byte for byte: no Unicode
normalising, no trimming, no case folding. Python strings without lone surrogates correspond
one to one with valid UTF-8, so the system holds subjects as ``str`` and turns them into bytes
only at its borders.
"""

from zlib import crc32

SUBJECT_BYTES_MAX = 1024
"""Longest subject in bytes; the bound of a key in the table, the changelog and every topic."""


class BadSubjectError(ValueError):
    """The text or bytes are not a subject; the message says why. Refuse the record."""


def check_subject(subject: object) -> str:
    """Return ``subject`` if it is one, else raise `BadSubjectError` naming the fault."""
    if not isinstance(subject, str):
        raise BadSubjectError(f"subject must be a string, not {type(subject).__name__}")
    if not subject:
        raise BadSubjectError("subject is empty")
    try:
        size = len(subject.encode())
    except UnicodeEncodeError as error:
        raise BadSubjectError(f"subject is not valid UTF-8 text: {error.reason}") from error
    if size > SUBJECT_BYTES_MAX:
        raise BadSubjectError(f"subject has {size} bytes, more than {SUBJECT_BYTES_MAX}")
    return subject


def subject_of_key(key: bytes | None) -> str:
    """Return the subject that a record key spells, else raise `BadSubjectError`."""
    if key is None:
        raise BadSubjectError("record has no key")
    if not key:
        raise BadSubjectError("subject is empty")
    if len(key) > SUBJECT_BYTES_MAX:
        raise BadSubjectError(f"subject has {len(key)} bytes, more than {SUBJECT_BYTES_MAX}")
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise BadSubjectError(f"subject is not UTF-8: {error.reason} at {error.start}") from error


def partition_of(key: bytes, partitions: int) -> int:
    """Partition that owns the subject with these bytes: CRC-32 modulo the number of partitions.

    The same rule as librdkafka's ``consistent`` partitioner, so any librdkafka client that sets it
    agrees with us.
    """
    return crc32(key) % partitions
