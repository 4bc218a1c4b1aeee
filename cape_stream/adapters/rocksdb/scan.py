"""A scan that survives writes, notices damage, and never keeps a closed store open."""

from collections.abc import Iterator
from pathlib import Path

from rocksdict import Rdict, RdictIter, ReadOptions

from cape_stream.adapters.rocksdb.store import retyped
from cape_stream.errors import Fatal

ROWS_PER_STEP = 512


class Scan:
    """One iterator over the keys in [lower, upper), read in steps.

    Three traps of rocksdict 0.3.29 are closed here. An open iterator keeps the folder locked after
    `Rdict.close`, so the table takes the iterator away from every scan when it closes. The item
    iterators stop silently at a damaged block; only `RdictIter.status` tells the end from the
    damage. And an iterator does not keep its read options alive: once they are freed, its upper
    bound is whatever the memory holds next.

    Args:
        store: where to read; the rows are those of this moment.
        lower: first key, inclusive.
        upper: end, exclusive.
        prefix_bytes: how much to cut from the front of every key.
        path: folder of the store, for messages.
    """

    __slots__ = ("__weakref__", "_cursor", "_options", "_path", "_prefix_bytes")

    def __init__(
        self, store: Rdict, lower: bytes, upper: bytes, *, prefix_bytes: int, path: Path
    ) -> None:
        self._options = ReadOptions()
        self._options.set_iterate_upper_bound(upper)
        self._path = path
        self._prefix_bytes = prefix_bytes
        try:
            cursor = store.iter(self._options)
            cursor.seek(lower)
        except Exception as error:
            raise retyped(error, path) from error
        self._cursor: RdictIter | None = cursor

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Key without the task prefix, and value."""
        try:
            while step := self._take():
                yield from step
        finally:
            self.close()

    def close(self) -> None:
        """Give the iterator back; a scan that goes on afterwards raises Fatal."""
        self._cursor = None

    def _take(self) -> list[tuple[bytes, bytes]]:
        cursor = self._cursor
        if cursor is None:
            raise Fatal(f"state folder {self._path} was closed during a scan")
        step: list[tuple[bytes, bytes]] = []
        prefix_bytes = self._prefix_bytes
        try:
            while len(step) < ROWS_PER_STEP and cursor.valid():
                step.append((cursor.key()[prefix_bytes:], cursor.value()))
                cursor.next()
            if not step:
                cursor.status()
        except Exception as error:
            raise retyped(error, self._path) from error
        return step
