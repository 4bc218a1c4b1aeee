"""The SQL source on a SQLite file: writers beside it, settle times, bad rows, slow statements."""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.errors import Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery
from tests.integration.sources.asking import ask, sweep

TABLE = (
    "CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, subject TEXT NOT NULL, "
    "payload TEXT NOT NULL DEFAULT '')"
)
NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture
def connect(path: Path) -> Iterator[Callable[[], sqlite3.Connection]]:
    """Opens connections of a writer, each in its own transactions."""
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
        connection.execute("PRAGMA synchronous = OFF")
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def owner(connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    return connect()


@pytest.fixture
def open_source(path: Path) -> Iterator[Callable[..., SqlEventSource]]:
    opened: list[SqlEventSource] = []

    def open_source(**settings: Any) -> SqlEventSource:
        given = {"sequence": "id", "changed": "id", **settings}
        opened.append(SqlEventSource(f"sqlite:///{path}", **given))
        return opened[-1]

    yield open_source
    for source in opened:
        source.close()


# ------------------------------------------------------------------ writers beside the reader


def test_source_sees_rows_only_when_they_are_committed_and_in_order(
    connect: Callable[[], sqlite3.Connection], open_source: Callable[..., SqlEventSource]
) -> None:
    """One writer at a time: a second one cannot draw an id before the first has committed."""
    first, second = connect(), connect()
    first.execute("PRAGMA journal_mode = WAL")
    first.execute(TABLE)
    source = open_source()
    first.execute("BEGIN IMMEDIATE")
    first.execute("INSERT INTO events (subject) VALUES ('S')")

    assert ask(source, "S") == []
    assert sweep(source, None)[0] == []
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        second.execute("INSERT INTO events (subject) VALUES ('S')")
    first.execute("COMMIT")
    second.execute("INSERT INTO events (subject) VALUES ('S')")

    assert ask(source, "S") == [1, 2]
    assert sweep(source, None)[0] == [("S", 2)]


def test_readers_miss_nothing_beside_two_writers(
    connect: Callable[[], sqlite3.Connection], open_source: Callable[..., SqlEventSource]
) -> None:
    """Two connections write to one subject, a reader follows it and a sweep follows the ids."""
    owner = connect()
    owner.execute("PRAGMA journal_mode = WAL")
    owner.execute(TABLE)
    owner.execute("CREATE UNIQUE INDEX k ON events (subject, id)")
    source = open_source()

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA busy_timeout = 30000")
        for number in range(150):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO events (subject) VALUES ('S')")
            connection.execute("INSERT INTO events (subject) VALUES ('S')")
            connection.execute("ROLLBACK" if number % 5 == 0 else "COMMIT")

    writers = [threading.Thread(target=write, args=(connect(),)) for _ in range(2)]
    seen: list[int] = []
    swept: list[int] = []
    watermark: str | None = None
    for thread in writers:
        thread.start()
    while any(thread.is_alive() for thread in writers) or len(swept) < 480:
        page = ask(source, "S", seen[-1] + 1 if seen else 0)
        assert isinstance(page, list)
        seen += page
        changes = source.changed_since(watermark, 1)
        swept += [sequence for _, sequence in changes.subjects]
        watermark = changes.watermark
    seen += list(ask(source, "S", seen[-1] + 1))  # type: ignore[arg-type]  # a page, as above

    committed = [number for (number,) in owner.execute("SELECT id FROM events ORDER BY id")]
    assert len(committed) == 480
    assert seen == committed
    assert swept == committed


def test_source_serves_beside_a_writer_that_does_not_commit(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """Also without a write-ahead log, as long as the writer does not lock readers out."""
    owner.execute(TABLE)
    owner.execute("INSERT INTO events (subject) VALUES ('S')")
    source = open_source()
    owner.execute("BEGIN IMMEDIATE")
    owner.execute("INSERT INTO events (subject) VALUES ('S')")

    assert ask(source, "S") == [1]
    owner.execute("COMMIT")
    assert ask(source, "S") == [1, 2]


def test_source_gives_up_a_call_that_is_locked_out(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """It ends in the statement timeout, and works again when the lock is gone."""
    owner.execute(TABLE)
    owner.execute("INSERT INTO events (subject) VALUES ('S')")
    source = open_source(statement_timeout_ms=50)
    source.check()
    owner.execute("BEGIN EXCLUSIVE")

    with pytest.raises(Retry, match="database is locked"):
        source.fetch_many([EventQuery("S", 0, 1)])
    with pytest.raises(Retry, match="database is locked"):
        source.changed_since(None, 1)
    owner.execute("COMMIT")
    assert ask(source, "S") == [1]


def test_source_gives_up_a_statement_that_takes_too_long(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """There is no index, so the query reads on and on: it is interrupted."""
    owner.execute("CREATE TABLE events (id INTEGER, subject TEXT, payload TEXT)")
    owner.execute(
        "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 300000) "
        "INSERT INTO events SELECT x, 'other', '' FROM n"
    )
    source = open_source(changed=None, statement_timeout_ms=1)

    with pytest.raises(Retry, match="interrupted"):
        source.fetch_many([EventQuery(f"S{number}", 0, 1) for number in range(100)])


def test_source_writes_nothing_even_if_it_tried(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """Its connections are read-only."""
    owner.execute(TABLE)
    source = open_source()
    source.check()

    with source._engine.connect() as connection, pytest.raises(Exception, match="readonly"):
        connection.exec_driver_sql("INSERT INTO events (subject) VALUES ('S')")


def test_source_leaves_an_engine_that_is_not_its_own_as_it_was(
    owner: sqlite3.Connection, path: Path
) -> None:
    """Texts are texts again, statements take as long as they take, and it stays open."""
    owner.execute(TABLE)
    owner.execute("INSERT INTO events (subject) VALUES ('S')")
    engine = create_engine(f"sqlite:///{path}", pool_size=1, max_overflow=0)
    source = SqlEventSource(engine, sequence="id", changed="id")
    assert ask(source, "S") == [1]
    assert sweep(source, None)[0] == [("S", 1)]

    source.close()

    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT subject FROM events").scalar() == "S"
        connection.exec_driver_sql("INSERT INTO events (subject) VALUES ('S')")
    assert ask(source, "S") == [1, 2]
    engine.dispose()


# ---------------------------------------------------------------------------- settle times


@pytest.mark.parametrize(
    ("kind", "age"),
    [
        ("INTEGER", f"{NOW_MS} - {{}} * 60000"),
        ("DATETIME", "datetime('now', '-{} minutes')"),
        ("TIMESTAMP", "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{} minutes')"),
    ],
)
def test_source_ends_a_page_before_a_row_younger_than_the_settle_time(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource], kind: str, age: str
) -> None:
    """Milliseconds, SQLite's own form of a date, and the one with a T."""
    owner.execute(TABLE)
    owner.execute(f"ALTER TABLE events ADD at {kind} NOT NULL DEFAULT 0")
    for minutes in (10, 0, 10):
        owner.execute(f"INSERT INTO events (subject, at) VALUES ('S', {age.format(minutes)})")
    source = open_source(written="at", settle_ms=300_000)

    assert ask(source, "S") == [1]
    found, watermark = sweep(source, None)
    assert found == [("S", 1)]
    owner.execute(f"UPDATE events SET at = {age.format(10)}")
    assert ask(source, "S") == [1, 2, 3]
    assert sweep(source, watermark)[0] == [("S", 3)]


def test_source_holds_a_row_whose_time_cannot_be_read(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """It would never become old enough, and somebody has to be told."""
    owner.execute(TABLE)
    owner.execute("ALTER TABLE events ADD at DATETIME NOT NULL DEFAULT 'yesterday'")
    owner.execute("INSERT INTO events (subject) VALUES ('S')")

    reason = ask(open_source(written="at", settle_ms=1), "S")

    assert reason == "held back at id=1: its time of writing cannot be read"


def test_sweep_by_time_follows_rows_that_share_a_moment(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """Pages end in the middle of a moment, and the young wait."""
    owner.execute(TABLE)
    owner.execute("ALTER TABLE events ADD at DATETIME NOT NULL DEFAULT 0")
    for subject in ("c", "a", "b", "e", "d"):
        owner.execute(
            "INSERT INTO events (subject, at) VALUES (?, '2013-01-01 05:15:00')", (subject,)
        )
    owner.execute("INSERT INTO events (subject, at) VALUES ('f', datetime('now'))")
    source = open_source(changed="at", settle_ms=300_000)

    found, watermark = sweep(source, None)

    assert [subject for subject, _ in found] == ["a", "b", "c", "d", "e"]
    owner.execute("UPDATE events SET at = '2013-01-01 05:16' WHERE subject IN ('f', 'a')")
    assert [subject for subject, _ in sweep(source, watermark)[0]] == ["a", "f"]


def test_sweep_by_time_loses_nothing_among_equal_times(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """Many rows of one value, and every page ends among them."""
    owner.execute(TABLE)
    owner.execute("ALTER TABLE events ADD at DATETIME NOT NULL DEFAULT 0")
    for number in range(40):
        owner.execute(
            "INSERT INTO events (subject, at) VALUES (?, ?)",
            (f"S{number % 10}", f"2013-01-0{number // 8 + 1}"),
        )
    source = open_source(changed="at", settle_ms=1)
    found: list[int] = []
    watermark, more = None, True
    while more and len(found) < 100:
        changes = source.changed_since(watermark, 1)
        found += [sequence for _, sequence in changes.subjects]
        watermark, more = changes.watermark, changes.more

    assert sorted(found) == list(range(1, 41))


def test_sweep_follows_the_rowid(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """A table without a column of its own for it."""
    owner.execute("CREATE TABLE events (subject TEXT, leg INTEGER, payload TEXT)")
    owner.executemany("INSERT INTO events VALUES (?, ?, '')", [("B", 1), ("A", 1), ("B", 2)])
    source = open_source(sequence="leg", changed="rowid")

    found, watermark = sweep(source, None)

    assert found == [("B", 2), ("A", 1)]
    owner.execute("INSERT INTO events VALUES ('A', 2, '')")
    assert sweep(source, watermark)[0] == [("A", 2)]


# -------------------------------------------------------------------------------- bad rows


def test_source_names_table_column_and_row_of_a_bad_row(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """SQLite stores anything anywhere; each bad row fails its own subject."""
    owner.execute("CREATE TABLE events (subject TEXT, leg INTEGER, payload BLOB, hat TEXT)")
    owner.executemany(
        "INSERT INTO events VALUES (?, ?, ?, ?)",
        [
            ("good", 1, b"x", None),
            ("good", 2, b"\xff", '{"a": "b"}'),
            ("text leg", 1, b"x", None),
            ("text leg", "two", b"x", None),
            ("real leg", 1.5, b"x", None),
            ("null payload", 1, None, None),
            ("number", 1, 7, None),
            ("twice", 1, b"x", None),
            ("twice", 1, b"y", None),
            ("hat", 1, b"x", "7"),
        ],
    )
    source = open_source(sequence="leg", changed="rowid", headers="hat")

    row = "bad row: column events"
    assert ask(source, "good") == [1, 2]
    assert ask(source, "text leg") == (
        f"{row}.leg of row (subject='text leg', leg=b'two') leg must be an integer, not b'two'"
    )
    assert ask(source, "real leg") == (
        f"{row}.leg of row (subject='real leg', leg=1.5) leg must be an integer, not 1.5"
    )
    assert ask(source, "null payload") == (
        f"{row}.payload of row (subject='null payload', leg=1) is NULL; "
        "it must be binary, text or JSON"
    )
    assert ask(source, "number") == (
        f"{row}.payload of row (subject='number', leg=1) is of type int; "
        "it must be binary, text or JSON"
    )
    assert ask(source, "twice") == f"{row}.leg of row (subject='twice', leg=1) is there twice"
    assert ask(source, "hat") == (
        f"{row}.hat of row (subject='hat', leg=1) is not a JSON object of strings"
    )


def test_source_passes_on_a_payload_that_is_no_unicode(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """Whatever the payload is, it is the handler's business."""
    owner.execute(TABLE)
    owner.execute("INSERT INTO events (subject, payload) VALUES ('S', CAST(x'ff00c3' AS TEXT))")

    (page,) = open_source().fetch_many([EventQuery("S", 0, 1)])

    assert isinstance(page, EventPage)
    assert page.events[0].payload == b"\xff\x00\xc3"


@pytest.mark.parametrize("changed", ["rowid", None])
def test_sweep_passes_by_rows_that_are_no_events(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource], changed: str | None
) -> None:
    """One page a row, so that every bad one is also the place where a page ends."""
    owner.execute("CREATE TABLE events (subject TEXT, leg INTEGER, payload TEXT)")
    rows: list[tuple[object, object]] = [
        ("a", 1),
        ("", 1),
        (None, 1),
        ("b", -1),
        ("c", None),
        ("k" * 1025, 1),
        ("d", "x"),
    ]
    rows += [(b"blob", 1), ("d", 4), ("z", 1)]
    owner.executemany("INSERT INTO events VALUES (?, ?, '')", rows)
    owner.execute("INSERT INTO events VALUES (CAST(x'6bc3' AS TEXT), 1, '')")
    owner.execute("INSERT INTO events VALUES ('y', 1, '')")
    source = open_source(sequence="leg", changed=changed)

    found: dict[str, int] = {}
    watermark, more, pages = None, True, 0
    while more and pages < 30:
        changes = source.changed_since(watermark, 1)
        found.update(changes.subjects)
        watermark, more, pages = changes.watermark, changes.more, pages + 1

    assert not more
    blob = {"blob": 1} if changed else {}
    assert found == {"a": 1, "d": 4, "y": 1, "z": 1, **blob}


def test_source_refuses_rows_of_a_subject_that_only_collates_alike(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """A column that ignores case would mix two subjects."""
    owner.execute(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, subject TEXT COLLATE NOCASE, payload TEXT)"
    )
    owner.execute("INSERT INTO events VALUES (1, 'acct', ''), (2, 'ACCT', '')")

    reason = ask(open_source(), "acct")

    assert isinstance(reason, str)
    assert "holds b'ACCT': the column compares by its collation" in reason


# --------------------------------------------------------------- what is wrong from the start


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"table": "no_such"}, "no table no_such; its tables: events, seen"),
        ({"sequence": "leg"}, r"table events has no column leg \(sequence\); its columns: id, "),
        ({"subject": "id"}, r"column events.id \(subject\) must be text, not INTEGER"),
        ({"sequence": "price"}, r"column events.price \(sequence\) must be an integer"),
        ({"changed": "loose"}, r"column events.loose \(changed\) must be NOT NULL"),
        ({"changed": "batch"}, r"column events.batch \(changed\) must be unique"),
        ({"changed": "at"}, r"column events.at \(changed\) is a time.*name a settle_ms"),
        ({"settle_ms": 5}, "settle_ms needs a column of events"),
    ],
)
def test_check_names_table_and_column(
    owner: sqlite3.Connection,
    open_source: Callable[..., SqlEventSource],
    settings: dict[str, Any],
    said: str,
) -> None:
    """A person can repair it from the message alone."""
    owner.execute(TABLE)
    owner.execute("CREATE VIEW seen AS SELECT * FROM events")
    for column in (
        "price REAL",
        "loose INTEGER",
        "at DATETIME NOT NULL DEFAULT 0",
        "batch INTEGER NOT NULL DEFAULT 0",
    ):
        owner.execute(f"ALTER TABLE events ADD {column}")

    with pytest.raises(Fatal, match=said):
        open_source(**settings).check()


def test_source_reads_a_view(
    owner: sqlite3.Connection, open_source: Callable[..., SqlEventSource]
) -> None:
    """For a table whose columns do not fit as they are."""
    owner.execute(TABLE)
    owner.execute("CREATE VIEW seen AS SELECT id AS leg, subject, payload FROM events")
    owner.execute("INSERT INTO events (subject) VALUES ('S'), ('T')")
    source = open_source(table="seen", sequence="leg", changed=None)

    assert ask(source, "T") == [2]
    assert sweep(source, None)[0] == [("S", 1), ("T", 2)]


def test_source_names_the_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "no such.db"
    said = re.escape(f"table events of {path} now: unable to open")

    with closing(SqlEventSource(f"sqlite:///{path}")) as source, pytest.raises(Retry, match=said):
        source.check()
    assert not path.exists()


def test_source_says_retry_when_the_file_is_no_database(path: Path) -> None:
    path.write_bytes(b"not a database" * 1_000)

    with closing(SqlEventSource(f"sqlite:///{path}")) as source, pytest.raises(Retry, match="file"):
        source.check()
