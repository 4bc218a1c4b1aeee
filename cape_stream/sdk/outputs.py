"""Outputs of a lambda as bytes, and back for the lambdas that take them as input.

Bytes travel behind one NUL byte, everything else as JSON text, which never begins with NUL. So
outputs are readable in the log, and bytes come back as bytes. A third kind, claims, is put in and
taken out again by the worker; see `cape_stream.runtime.worker_claims`.
"""

from typing import Any

import msgspec

_RAW = b"\x00"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode_output(value: object) -> bytes:
    """Bytes of an output that is not None.

    Args:
        value: bytes, or anything JSON has a place for: text, numbers, lists, dicts, and what
            msgspec turns into those (dataclasses, datetimes, UUIDs, enums, Decimals, Structs).

    Raises:
        TypeError: JSON has no place for it; the message names the type.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return _RAW + value
    return _encoder.encode(value)


def decode_output(output: bytes | None) -> Any:
    """What `encode_output` was given, with the types JSON knows: a dataclass returns as a dict."""
    if output is None:
        return None
    if output[:1] == _RAW:
        return output[1:]
    return _decoder.decode(output)


def decode_json(payload: bytes) -> Any:
    """The value a JSON text spells; raises ValueError where it is none."""
    return _decoder.decode(payload)
