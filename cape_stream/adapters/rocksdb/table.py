"""`RocksTable`: the rows of all tasks of a process in one RocksDB.

Row key = marker, length of the task name, task name, key. The length in front keeps tasks apart
whose names begin alike. Positions live under their own marker and travel in the same write batch
as the rows they cover.

Writes go to the write-ahead log without fsync. A killed process loses nothing; a crashed machine
may fall back to an earlier write, rows and position together, and replays the changelog from there.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from weakref import WeakSet

from rocksdict import DbClosedError, WriteBatch

from cape_stream.adapters.rocksdb.bulk import BulkLoad
from cape_stream.adapters.rocksdb.scan import Scan
from cape_stream.adapters.rocksdb.store import open_store, retyped

POSITION_MARKER = b"\x00"
ROW_MARKER = b"\x01"
POSITION_BYTES = 8
DEFAULT_MEMORY_BUDGET_BYTES = 128 << 20
INCOMING_FOLDER = "incoming"
"""Where bulk loads build their files; whatever a crash leaves there is removed on open."""


class RocksTable:
    """`cape_stream.ports.table.Table` on RocksDB. Safe to share by threads.

    Args:
        path: folder of the store; made if missing; one process at a time.
        memory_budget_bytes: block cache, filters, indexes and write buffers together, whatever
            the number of tasks; at least 8 MiB.

    Raises:
        Fatal: the folder is in use by another process or table, or not writable.
        Corrupt: the store is damaged; `wipe_table`, open again, restore from the changelog.
    """

    def __init__(
        self, path: str | Path, *, memory_budget_bytes: int = DEFAULT_MEMORY_BUDGET_BYTES
    ) -> None:
        self._path = Path(path)
        self._store = open_store(self._path, memory_budget_bytes)
        self._scans: WeakSet[Scan] = WeakSet()
        self._row_prefixes: dict[str, bytes] = {}
        self._incoming = self._path / INCOMING_FOLDER
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir()

    def get_many(self, task: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of ``keys``."""
        if not keys:
            return []
        prefix = self._row_prefix(task)
        try:
            return list(self._store.get([prefix + key for key in keys]) or ())
        except Exception as error:
            raise retyped(error, self._path) from error

    def write(self, task: str, rows: Mapping[bytes, bytes | None], position: int) -> None:
        """Put or delete rows and move the task's position, in one write batch."""
        batch = WriteBatch(raw_mode=True)
        prefix = self._row_prefix(task)
        for key, value in rows.items():
            if value is None:
                batch.delete(prefix + key)
            else:
                batch.put(prefix + key, value)
        batch.put(_position_key(task), position.to_bytes(POSITION_BYTES, "big"))
        self._apply(batch)

    def load(self, task: str, batches: Iterable[Mapping[bytes, bytes | None]]) -> None:
        """Put or delete many rows without moving the position, at about 2 us a row."""
        bulk = BulkLoad(self._store, self._incoming, self._row_prefix(task))
        for rows in batches:
            try:
                bulk.add(rows)
            except Exception as error:
                raise retyped(error, self._path) from error
        try:
            bulk.finish()
        except Exception as error:
            raise retyped(error, self._path) from error

    def scan(self, task: str, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows as they are at this call, ascending; later writes do not show."""
        task_prefix = self._row_prefix(task)
        scan = Scan(
            self._store,
            task_prefix + max(prefix, start),
            _after_all(task_prefix + prefix),
            prefix_bytes=len(task_prefix),
            path=self._path,
        )
        self._scans.add(scan)
        return scan.rows()

    def position(self, task: str) -> int | None:
        """Next changelog offset the rows do not cover; None for an unknown task."""
        try:
            stored: bytes | None = self._store.get(_position_key(task))
        except Exception as error:
            raise retyped(error, self._path) from error
        return None if stored is None else int.from_bytes(stored, "big")

    def clear(self, task: str) -> None:
        """Forget all rows and the position of the task, whatever their number, at once."""
        prefix = self._row_prefix(task)
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(prefix, _after_all(prefix))
        batch.delete(_position_key(task))
        self._apply(batch)

    def close(self) -> None:
        """Free all; scans under way end with Fatal. May be called twice."""
        for scan in list(self._scans):
            scan.close()
        try:
            self._store.close()
        except DbClosedError:
            return
        except Exception as error:
            raise retyped(error, self._path) from error

    def _apply(self, batch: WriteBatch) -> None:
        try:
            self._store.write(batch)
        except Exception as error:
            raise retyped(error, self._path) from error

    def _row_prefix(self, task: str) -> bytes:
        prefix = self._row_prefixes.get(task)
        if prefix is None:
            name = task.encode()
            prefix = ROW_MARKER + len(name).to_bytes(2, "big") + name
            self._row_prefixes[task] = prefix
        return prefix


def wipe_table(path: str | Path) -> None:
    """Remove a damaged store, so that every task is restored from its changelog."""
    shutil.rmtree(path, ignore_errors=True)


def _position_key(task: str) -> bytes:
    return POSITION_MARKER + task.encode()


def _after_all(prefix: bytes) -> bytes:
    """Smallest key greater than every key that begins with ``prefix``.

    It exists because every prefix here begins with a marker below 0xFF.
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,))
