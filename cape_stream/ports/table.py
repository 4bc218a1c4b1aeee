"""The local state of all tasks of a process: one store, one memory budget.

Rows are bytes; a task's rows are apart from every other task's. The changelog position is
written in the same batch as the rows it covers, so a restart replays only the tail.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol


class Table(Protocol):
    """Rows of tasks. ``task`` is a stable name such as ``flights-3``. Safe to share by threads.

    Raises (all methods): Corrupt when the store is damaged; opening one whose folder another
    process uses raises Fatal naming the folder.
    """

    def get_many(self, task: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``."""
        ...

    def write(self, task: str, rows: Mapping[bytes, bytes | None], position: int) -> None:
        """Put (or, for None, delete) rows and move the task's changelog position, atomically."""
        ...

    def load(self, task: str, batches: Iterable[Mapping[bytes, bytes | None]]) -> None:
        """Bulk version of `write` for restore, without a position: call `write` with the final
        one after it. A crash in between leaves the old position, so the tail is replayed."""
        ...

    def scan(self, task: str, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key begins with ``prefix``, ascending by key; none below ``start``."""
        ...

    def position(self, task: str) -> int | None:
        """Next changelog offset that the rows do not cover yet; None if the task is unknown."""
        ...

    def clear(self, task: str) -> None:
        """Forget all rows and the position of the task."""
        ...

    def close(self) -> None:
        """Free all, so that another process can open the folder."""
        ...
