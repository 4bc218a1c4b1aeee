"""Rows by the time at which they are due: prefix, eight bytes of Unix milliseconds, and a name.

Big-endian, so that the order of the keys is the order of time, and a scan ends at the first row
that is not due.
"""

from collections.abc import Iterator

TIME_BYTES = 8


def due_key(prefix: bytes, due_ms: int, name: bytes) -> bytes:
    """Key of the index row of ``name``."""
    return prefix + due_ms.to_bytes(TIME_BYTES, "big") + name


def names_due(keys: Iterator[bytes], prefix: bytes, until_ms: int) -> Iterator[bytes]:
    """Names of the rows due by ``until_ms``, from ascending keys of the index."""
    start = len(prefix) + TIME_BYTES
    for key in keys:
        if int.from_bytes(key[len(prefix) : start], "big") > until_ms:
            return
        yield key[start:]
