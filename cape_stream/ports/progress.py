"""Small facts about messages that must outlive the process that holds them."""

from typing import Protocol


class Progress(Protocol):
    """Counters by name; a name is forgotten some days after its last change, as a queue would.

    Every method raises Retry when the store is away.
    """

    async def read(self, name: str) -> int:
        """How far it is; 0 for a name nobody knows."""
        ...

    async def advance(self, name: str, to: int) -> int:
        """Raise the counter to ``to`` unless it is further; the counter after that."""
        ...

    async def add(self, name: str) -> int:
        """Raise the counter by one; the counter after that."""
        ...

    async def forget(self, name: str) -> None:
        """The name is not needed any more."""
        ...
