"""Avro's primitive values as bytes: tables for writing, strict functions for reading.

Readers take the data and an offset and return the value and the next offset. They never trust a
length: it is held against the bytes that are left before anything is made of it.

Source: Apache Avro 1.12 specification, "Binary encoding".
"""

from cape_stream.errors import Reject

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_UINT64_MAX = 2**64 - 1
_MORE_1 = 128
_MORE_2 = 128 + (128 << 7)
_MORE_3 = 128 + (128 << 7) + (128 << 14)

TRUNCATED = "truncated"
TRAILING_BYTES = "trailing bytes"
VARINT_TOO_LONG = "varint longer than 10 bytes"
BEYOND_INT32 = "integer beyond int32"
BEYOND_INT64 = "integer beyond int64"
NEGATIVE_LENGTH = "negative length"
NOT_UTF8 = "text is not UTF-8"
BAD_UNION_INDEX = "bad union index"
BAD_ENUM_INDEX = "bad enum index"
BAD_BOOLEAN = "bad boolean"
BAD_BLOCK_SIZE = "bad block size"

MINUS_ONE = b"\x01"
"""-1 as a ``long``: no cursor, no offset."""
END = b"\x00"
"""Ends an array or a map; alone, the empty one."""
NULL = b"\x00"
"""Union index of null, which comes first in all our unions."""
SOME = b"\x02"
"""Union index of the other branch."""

SIGNS = 0x81
"""Bits that the first byte of a one-byte varint >= 0 has not: "more follows" and "negative"."""


class UnusualError(Exception):
    """The quick path does not read this, legal or not: the plain path decides."""


QUICK_MISSES = (IndexError, UnusualError, UnicodeDecodeError, Reject)
"""What a quick path runs into when the bytes are not what it was written for. It refuses nothing
itself: the reason then would depend on what was read before."""


def _unsigned(number: int) -> bytes:
    septets = bytearray()
    while number > 127:
        septets.append(number & 127 | 128)
        number >>= 7
    septets.append(number)
    return bytes(septets)


_SHORT = tuple(_unsigned(number) for number in range(1 << 14))
"""Varints of at most two bytes, by value."""
_MORE = tuple(bytes((number & 127 | 128, number >> 7 | 128)) for number in range(1 << 14))
"""Two septets that others follow: with it a varint takes one step for every two bytes."""

NATURAL = _SHORT[::2]
"""The ``long`` n as bytes, for n in [0, `NATURAL_END`); also the length or count n."""
NATURAL_END = len(NATURAL)
POSITIVE = dict(enumerate(NATURAL[1:], 1))
"""The same as a mapping from 1 on: it fails for 0 and less, where a tuple would count back."""


def natural_bytes(number: int) -> bytes:
    """Return an integer in [0, 2^63) as a ``long``."""
    rest = number + number
    head = b""
    while rest >> 14:
        head += _MORE[rest & 0x3FFF]
        rest >>= 14
    return head + _SHORT[rest]


def length_prefixed(data: bytes) -> bytes:
    """Return ``data`` as Avro ``bytes``."""
    size = len(data)
    return (NATURAL[size] if size < NATURAL_END else natural_bytes(size)) + data


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a ``long``. Raises IndexError at the end of the data, Reject for a bad one."""
    number = data[at]
    if number < 128:
        return (number >> 1) ^ -(number & 1), at + 1
    # Two and three bytes hold most of what there is, so they are read without a loop. A byte with
    # its "more follows" bit is 128 too large; these are taken back in one go.
    second = data[at + 1]
    if second < 128:
        number += (second << 7) - _MORE_1
        return (number >> 1) ^ -(number & 1), at + 2
    third = data[at + 2]
    if third < 128:
        number += (second << 7) + (third << 14) - _MORE_2
        return (number >> 1) ^ -(number & 1), at + 3
    return _read_long_of_many(data, at + 3, number + (second << 7) + (third << 14) - _MORE_3)


def _read_long_of_many(data: bytes, at: int, number: int) -> tuple[int, int]:
    """Go on with a ``long`` of which ``number`` is what its first three bytes say."""
    shift = 21
    while (byte := data[at]) > 127:
        number += (byte - 128) << shift
        at += 1
        shift += 7
        if shift > 63:
            raise Reject(VARINT_TOO_LONG)
    number += byte << shift
    if number > _UINT64_MAX:
        raise Reject(BEYOND_INT64)
    return (number >> 1) ^ -(number & 1), at + 1


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """Read the length of what follows and hold it against the bytes left."""
    length, at = read_long(data, at)
    if length < 0:
        raise Reject(NEGATIVE_LENGTH)
    if length > len(data) - at:
        raise Reject(TRUNCATED)
    return length, at


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Read Avro ``bytes``."""
    length, at = read_length(data, at)
    end = at + length
    return data[at:end], end


def read_text(data: bytes, at: int) -> tuple[str, int]:
    """Read an Avro ``string``."""
    length, at = read_length(data, at)
    end = at + length
    try:
        return data[at:end].decode(), end
    except UnicodeDecodeError as error:
        raise Reject(NOT_UTF8) from error


def read_natural(data: bytes, at: int) -> tuple[int, int]:
    """Read a ``long`` >= 0 for a quick path; UnusualError when it is not."""
    number, at = read_long(data, at)
    if number < 0:
        raise UnusualError
    return number, at


def quick_text(data: bytes, at: int) -> tuple[str, int]:
    """Read an Avro ``string`` for a quick path, one that checks the end of the data itself."""
    size = data[at]
    if size & SIGNS:
        return read_text(data, at)
    end = at + 1 + (size >> 1)
    return data[at + 1 : end].decode(), end
