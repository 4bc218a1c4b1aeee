"""Progress and delivery tracking in one SQLite file, shared by the processes of one machine."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from cape_stream.errors import Retry
from cape_stream.ports.deliveries import DeliveryEvent, ReputationSignal

T = TypeVar("T")

KEEP_MS = 15 * 86_400_000
"""How long progress is kept after its last change: a day more than SQS keeps a message."""
CHANGES_PER_SWEEP = 10_000
"""So many changes lie between two looks for what is too old, which read the whole table."""
BUSY_S = 5.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS progress (name TEXT PRIMARY KEY, value INTEGER, changed_ms INTEGER);
CREATE TABLE IF NOT EXISTS delivery (
  message_id TEXT, kind TEXT, recipient TEXT, at_ms INTEGER, feedback_id TEXT, occurrence INTEGER,
  detail TEXT, is_certain INTEGER,
  UNIQUE (message_id, kind, recipient, occurrence), UNIQUE (feedback_id, recipient));
CREATE TABLE IF NOT EXISTS signal (
  account TEXT, alarm TEXT, metric TEXT, state TEXT, threshold REAL, at_ms INTEGER, reason TEXT,
  UNIQUE (account, alarm, state, at_ms));
"""

UPSERT = "INSERT INTO progress VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET value = "


class _SqliteFile:
    """One connection in one thread; every statement is its own transaction."""

    def __init__(self, path: Path | str) -> None:
        """Open or create a file.

        Args:
            path: of the file.
        """
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cape-sqlite")
        self._link = self._thread.submit(self._open, str(path)).result()

    @staticmethod
    def _open(path: str) -> sqlite3.Connection:
        link = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        link.execute("PRAGMA journal_mode=WAL")
        link.executescript(SCHEMA)
        return link

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


class SqliteProgress(_SqliteFile):
    """Implements `Progress`."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._changes = 0

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


class SqliteDeliveries(_SqliteFile):
    """Implements `DeliveryStore`."""

    async def record(self, events: Sequence[DeliveryEvent]) -> int:
        """See `DeliveryStore.record`."""
        rows = [
            (
                *(each.message_id, each.kind, each.recipient, each.at_ms, each.feedback_id),
                *(each.occurrence, each.detail, each.is_certain),
            )
            for each in events
        ]

        def work(link: sqlite3.Connection) -> int:
            link.execute("BEGIN IMMEDIATE")
            try:
                before = link.total_changes
                statement = "INSERT OR IGNORE INTO delivery VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                link.executemany(statement, rows)
                link.execute("COMMIT")
            except BaseException:
                link.execute("ROLLBACK")
                raise
            return link.total_changes - before

        return await self._do(work)

    async def record_signal(self, signal: ReputationSignal) -> bool:
        """See `DeliveryStore.record_signal`."""
        row = (
            *(signal.account, signal.alarm, signal.metric, signal.state),
            *(signal.threshold, signal.at_ms, signal.reason),
        )

        def work(link: sqlite3.Connection) -> bool:
            statement = "INSERT OR IGNORE INTO signal VALUES (?, ?, ?, ?, ?, ?, ?)"
            return link.execute(statement, row).rowcount == 1

        return await self._do(work)

    async def newest_signals(self, account: str | None = None) -> list[ReputationSignal]:
        """See `DeliveryStore.newest_signals`."""

        def work(link: sqlite3.Connection) -> list[ReputationSignal]:
            rows = link.execute(
                "SELECT account, alarm, metric, state, threshold, max(at_ms), reason FROM signal"
                " WHERE account = ? OR ? IS NULL GROUP BY account, alarm ORDER BY alarm",
                (account, account),
            )
            return [
                ReputationSignal(
                    account=row[0],
                    alarm=row[1],
                    metric=row[2],
                    state=row[3],
                    threshold=row[4],
                    at_ms=row[5],
                    reason=row[6],
                )
                for row in rows
            ]

        return await self._do(work)

    async def events(self) -> list[DeliveryEvent]:
        """Everything recorded, by time."""

        def work(link: sqlite3.Connection) -> list[DeliveryEvent]:
            rows = link.execute(
                "SELECT message_id, kind, recipient, at_ms, feedback_id, occurrence, detail,"
                " is_certain FROM delivery ORDER BY at_ms, recipient"
            )
            return [
                DeliveryEvent(
                    message_id=row[0],
                    kind=row[1],
                    recipient=row[2],
                    at_ms=row[3],
                    feedback_id=row[4],
                    occurrence=row[5],
                    detail=row[6],
                    is_certain=bool(row[7]),
                )
                for row in rows
            ]

        return await self._do(work)
