"""A source whose rows are there for delivery only: it tells of news, and forgets what is done."""

from collections.abc import Callable, Collection
from typing import Protocol, runtime_checkable


@runtime_checkable
class Outbox(Protocol):
    """What an `EventSource` has beside its own methods if it is an outbox."""

    prune_every_ms: int | None
    """How often to forget what is done; None: never."""
    retired: Collection[str]
    """Topologies that have ended for good: their cursors, which move no more, hold nothing back."""

    def news(self, timeout_ms: int) -> list[tuple[str, int]]:
        """(subject, its newest sequence id) of what has come; waits up to ``timeout_ms`` for the
        first of it. Called by one thread. What is missed is missed: refresh finds it.

        Raises:
            Retry: nobody can tell now.
        """
        ...

    def prune(self, done_through: Callable[[str], int]) -> int:
        """Forget events that everybody has done, and that have been kept long enough.

        Args:
            done_through: (subject) → cursor of the slowest topology, `NO_CURSOR` where one has
                none; nothing beyond it is forgotten.

        Returns:
            How many.

        Raises:
            Retry: not all of it could be done now.
        """
        ...
