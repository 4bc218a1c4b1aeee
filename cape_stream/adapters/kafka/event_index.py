"""A local index of a topic that holds events: subject → its events, in a SQLite file.

It is a copy that can be thrown away; the topic is the truth. One thread fills it, others read.
Several processes of one machine may share a file: what one has written the others leave out.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from cape_stream.errors import Retry
from cape_stream.model.event import NO_HEADERS, NO_INPUTS, Event
from cape_stream.model.request import EventQuery

BUSY_S = 10.0
TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS topic (identity TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS position (partition INTEGER PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS event (
    subject BLOB NOT NULL, sequence INTEGER NOT NULL, partition INTEGER NOT NULL,
    offset INTEGER NOT NULL, payload BLOB NOT NULL, headers TEXT,
    PRIMARY KEY (subject, sequence)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS event_by_place ON event (partition, offset);
"""


class Indexed(NamedTuple):
    """One event of the topic; without a payload, the news that there is none any more."""

    subject: str
    sequence: int
    partition: int
    offset: int
    payload: bytes | None
    headers: Mapping[str, str]


class Added(NamedTuple):
    """What came of a batch."""

    repeated: int
    """Events whose (subject, sequence id) was there already: the first one counts."""
    late: int
    """Events below the newest one of their subject, which may have been passed by."""


class EventIndex:
    """See the module. Raises `Retry` when the file cannot be used now.

    Args:
        path: of the file; its folder is made.
        identity: names the topic and how it is read; a file of another one is emptied.
    """

    def __init__(self, path: Path, identity: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = Lock()
        try:
            self._writer = self._open(path)
            self._reader = self._open(path)
            self._writer.executescript(TABLES)
            with self._writer:
                self._writer.execute("BEGIN IMMEDIATE")
                found = self._writer.execute("SELECT identity FROM topic").fetchone()
                if found != (identity,):
                    for table in ("topic", "position", "event"):
                        self._writer.execute(f"DELETE FROM {table}")  # noqa: S608  # names above
                    self._writer.execute("INSERT INTO topic VALUES (?)", (identity,))
        except sqlite3.Error as error:
            raise Retry(f"index {path} cannot be opened: {error}") from error

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)

    def positions(self) -> dict[int, int]:
        """Partition → next offset that the index does not cover yet."""
        with self._reading() as db:
            return dict(db.execute("SELECT partition, next FROM position"))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock:
                yield self._reader
        except sqlite3.Error as error:
            raise Retry(f"the index cannot be read: {error}") from error

    def add(self, records: Iterable[Indexed], positions: Mapping[int, int]) -> Added:
        """Take in records in the order of their offsets, and how far each partition is covered."""
        repeated = late = 0
        db = self._writer
        try:
            with db:
                db.execute("BEGIN IMMEDIATE")
                known = dict(db.execute("SELECT partition, next FROM position"))
                for each in records:
                    if each.offset < known.get(each.partition, 0):
                        continue  # another process has
                    is_new, is_late = self._add(each)
                    repeated += not is_new
                    late += is_late
                db.executemany(
                    "INSERT INTO position VALUES (?, ?) ON CONFLICT (partition) "
                    "DO UPDATE SET next = max(next, excluded.next)",
                    positions.items(),
                )
        except sqlite3.Error as error:
            raise Retry(f"the index cannot be written: {error}") from error
        return Added(repeated, late)

    def _add(self, each: Indexed) -> tuple[bool, bool]:
        db, subject = self._writer, each.subject.encode()
        if each.payload is None:
            db.execute(
                "DELETE FROM event WHERE subject = ? AND sequence = ?", (subject, each.sequence)
            )
            return True, False
        headers = json.dumps(dict(each.headers)) if each.headers else None
        done = db.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (subject, each.sequence, each.partition, each.offset, each.payload, headers),
        )
        if not done.rowcount:
            return False, False
        ((newest,),) = db.execute("SELECT max(sequence) FROM event WHERE subject = ?", (subject,))
        return True, newest > each.sequence

    def events(self, query: EventQuery) -> Sequence[Event]:
        """The first events of a subject from a sequence id on."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT sequence, payload, headers FROM event "
                "WHERE subject = ? AND sequence >= ? ORDER BY sequence LIMIT ?",
                (query.subject.encode(), query.start, query.limit),
            ).fetchall()
        return [
            Event(sequence, payload, json.loads(headers) if headers else NO_HEADERS, NO_INPUTS)
            for sequence, payload, headers in rows
        ]

    def since(self, partition: int, offset: int, limit: int) -> list[tuple[str, int, int]]:
        """(subject, sequence id, offset) of the events of a partition from an offset on."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT subject, sequence, offset FROM event "
                "WHERE partition = ? AND offset >= ? ORDER BY offset LIMIT ?",
                (partition, offset, limit),
            ).fetchall()
        return [(subject.decode(), sequence, at) for subject, sequence, at in rows]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._reader.close()
            self._writer.close()
