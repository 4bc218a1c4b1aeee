"""Where the demo's handlers write to: one SQLite file, shared by all workers.

Every write is idempotent by (aircraft, leg), as a user's sink has to be: an event that is delivered
again changes nothing, and is counted.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

SCHEMA = """
CREATE TABLE IF NOT EXISTS delays (
    tail_number TEXT, leg INTEGER, flown INTEGER, cancelled INTEGER, late_sum INTEGER,
    PRIMARY KEY (tail_number, leg)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rotations (
    tail_number TEXT, leg INTEGER, departed INTEGER, arrived INTEGER, turn_round INTEGER,
    PRIMARY KEY (tail_number, leg)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS alerts (
    tail_number TEXT, leg INTEGER, alarming INTEGER,
    PRIMARY KEY (tail_number, leg)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (
    topology TEXT, what TEXT, count INTEGER,
    PRIMARY KEY (topology, what)
) WITHOUT ROWID;
"""

STORE = {
    "delays": "INSERT OR IGNORE INTO delays VALUES (?, ?, ?, ?, ?)",
    "rotations": "INSERT OR IGNORE INTO rotations VALUES (?, ?, ?, ?, ?)",
    "alerts": "INSERT OR IGNORE INTO alerts VALUES (?, ?, ?)",
}
STORED, REPEATED = "stored", "repeated"

Row = Sequence[object]


class Ledger:
    """One connection to the file; safe to share by threads."""

    def __init__(self, path: Path) -> None:
        self._lock = Lock()
        self._database = sqlite3.connect(
            path, timeout=60, isolation_level=None, check_same_thread=False
        )
        self._database.execute("PRAGMA journal_mode = WAL")
        # Safe against the death of the process; that of the machine is not this demo's subject.
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.executescript(SCHEMA)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction; nobody else writes meanwhile."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def store(self, database: sqlite3.Connection, topology: str, rows: Sequence[Row]) -> None:
        """Add what is not there yet; count what is."""
        before = database.total_changes
        database.executemany(STORE[topology], rows)
        stored = database.total_changes - before
        self.note(database, topology, STORED, stored)
        if stored < len(rows):
            self.note(database, topology, REPEATED, len(rows) - stored)

    def note(self, database: sqlite3.Connection, topology: str, what: str, count: int) -> None:
        """Count something for the summary."""
        database.execute(
            "INSERT INTO notes VALUES (?, ?, ?)"
            " ON CONFLICT (topology, what) DO UPDATE SET count = count + excluded.count",
            (topology, what, count),
        )

    def counts(self) -> dict[str, int]:
        """Different events each topology has done."""
        notes = self.notes()
        return {topology: notes.get((topology, STORED), 0) for topology in STORE}

    def notes(self) -> dict[tuple[str, str], int]:
        """(topology, what) → count."""
        with self._lock:
            rows = self._database.execute("SELECT topology, what, count FROM notes").fetchall()
        return {(topology, what): count for topology, what, count in rows}

    def close(self) -> None:
        """Close the file."""
        self._database.close()
