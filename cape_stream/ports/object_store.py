"""Objects by bucket and key: S3, or a twin of it."""

from typing import Protocol


class ObjectStore(Protocol):
    """Reads and writes whole objects. Every method raises Retry when the store is away."""

    async def put(self, bucket: str, key: str, value: bytes) -> None:
        """Write an object, in the place of the one that is there."""
        ...

    async def get(self, bucket: str, key: str) -> bytes | None:
        """The object; None if there is none of exactly that key."""
        ...
