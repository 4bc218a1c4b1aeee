"""How cached values are written. A codec's change is a new version of its namespace."""

import json
from typing import Any, Protocol, TypeVar

Value = TypeVar("Value")


class CacheCodec(Protocol[Value]):
    """Values as bytes and back."""

    def encode(self, value: Value) -> bytes:
        """The bytes of a value."""
        ...

    def decode(self, data: bytes) -> Value:
        """The value of bytes.

        Raises:
            ValueError: the bytes are none of ours; the value is loaded anew.
        """
        ...


class JsonCodec:
    """What JSON knows: dicts, lists, text, numbers, booleans."""

    def encode(self, value: Any) -> bytes:
        """See `CacheCodec.encode`."""
        return json.dumps(value, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> Any:
        """See `CacheCodec.decode`."""
        return json.loads(data)


class BytesCodec:
    """Bytes as they are."""

    def encode(self, value: bytes) -> bytes:
        """See `CacheCodec.encode`."""
        return value

    def decode(self, data: bytes) -> bytes:
        """See `CacheCodec.decode`."""
        return data
