"""Progress in one SQLite file, shared by the processes of one machine."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from cape_stream.errors import Retry

T = TypeVar("T")

KEEP_MS = 15 * 86_400_000
"""How long progress is kept after its last change: a day more than SQS keeps a message."""
CHANGES_PER_SWEEP = 10_000
"""So many changes lie between two looks for what is too old, which read the whole table."""
BUSY_S = 5.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS progress (name TEXT PRIMARY KEY, value INTEGER, changed_ms INTEGER)
"""

UPSERT = "INSERT INTO progress VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET value = "


class SqliteProgress:
    """Implements `Progress`. One connection in one thread; every statement is its own transaction.

    Args:
        path: of the file, which is made if there is none.
    """

    def __init__(self, path: Path | str) -> None:
        self._changes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cape-sqlite")
        self._link = self._thread.submit(_open, str(path)).result()

    async def read(self, name: str) -> int:
        """See `Progress.read`."""

        def work(link: sqlite3.Connection) -> int:
            row = link.execute("SELECT value FROM progress WHERE name = ?", (name,)).fetchone()
            return row[0] if row else 0

        return await self._do(work)

    async def advance(self, name: str, to: int) -> int:
        """See `Progress.advance`."""
        return await self._change(name, to, "max(value, excluded.value)")

    async def add(self, name: str) -> int:
        """See `Progress.add`."""
        return await self._change(name, 1, "value + 1")

    async def forget(self, name: str) -> None:
        """See `Progress.forget`."""
        await self._do(lambda link: link.execute("DELETE FROM progress WHERE name = ?", (name,)))

    async def _change(self, name: str, value: int, new: str) -> int:
        now_ms = time.time_ns() // 1_000_000
        statement = UPSERT + new + ", changed_ms = excluded.changed_ms RETURNING value"

        def work(link: sqlite3.Connection) -> int:
            if self._changes % CHANGES_PER_SWEEP == 0:
                link.execute("DELETE FROM progress WHERE changed_ms < ?", (now_ms - KEEP_MS,))
            self._changes += 1
            found: int = link.execute(statement, (name, value, now_ms)).fetchone()[0]
            return found

        return await self._do(work)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work, self._link)
        except sqlite3.Error as error:
            raise Retry(f"the SQLite file: {error}") from error

    def close(self) -> None:
        """Free all."""
        self._thread.submit(self._link.close).result()
        self._thread.shutdown()


def _open(path: str) -> sqlite3.Connection:
    link = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    link.execute("PRAGMA journal_mode=WAL")
    link.executescript(SCHEMA)
    return link
