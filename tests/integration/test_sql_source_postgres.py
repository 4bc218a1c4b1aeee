"""The SQL source on a real PostgreSQL: interleaved transactions, bad rows, a database that hangs.

Every test has a table of its own. `Writer` is one open transaction.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql as compose

from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.errors import Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault

pytestmark = pytest.mark.postgres

NUMBERS = itertools.count()
TABLE = (
    "CREATE TABLE {} (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    "subject TEXT NOT NULL, payload TEXT NOT NULL DEFAULT '')"
)
"""Sequence id and sweep column are the same identity: the common, and the dangerous, design."""

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def connect(postgres_url: str) -> Iterator[Connect]:
    """Opens connections that are closed, and their transactions ended, after the test."""
    opened: list[psycopg.Connection[Any]] = []

    def connect(*, autocommit: bool = False) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(postgres_url, autocommit=autocommit))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def table(connect: Connect) -> str:
    name = f"events_{next(NUMBERS)}"
    connect(autocommit=True).execute(compose.SQL(TABLE).format(compose.Identifier(name)))
    return name


@pytest.fixture
def open_source(postgres_url: str) -> Iterator[Callable[..., SqlEventSource]]:
    opened: list[SqlEventSource] = []

    def open_source(table: str, **settings: Any) -> SqlEventSource:
        given = {"sequence": "id", "changed": "id", "settle_wait_ms": 20, **settings}
        opened.append(SqlEventSource(postgres_url, table=table, **given))
        return opened[-1]

    yield open_source
    for source in opened:
        source.close()


@pytest.fixture
def source(open_source: Callable[..., SqlEventSource], table: str) -> SqlEventSource:
    return open_source(table)


class Writer:
    """One transaction that appends events."""

    def __init__(self, connect: Connect, table: str) -> None:
        self.connection = connect()
        self.table = compose.Identifier(table)

    def execute(self, text: str, *parameters: object) -> psycopg.Cursor[Any]:
        statement = compose.SQL(text).format(table=self.table)
        return self.connection.execute(statement, parameters)

    def append(self, subject: str) -> int:
        row = self.execute("INSERT INTO {table} (subject) VALUES (%s) RETURNING id", subject)
        return int(row.fetchone()[0])  # type: ignore[index]  # RETURNING gives a row

    def take_id_elsewhere(self) -> None:
        """Get a transaction id without touching the table."""
        self.connection.execute("SELECT pg_current_xact_id()")

    def commit(self) -> None:
        self.connection.commit()


@pytest.fixture
def begin(connect: Connect, table: str) -> Callable[[], Writer]:
    return lambda: Writer(connect, table)


def ask(source: SqlEventSource, subject: str, start: int = 0) -> list[int] | str:
    """The sequence ids of a page, or the reason of a fault."""
    (answer,) = source.fetch_many([EventQuery(subject, start, 100)])
    if isinstance(answer, QueryFault):
        return answer.reason
    return [event.sequence for event in answer.events]


def sweep(source: SqlEventSource, watermark: str | None) -> tuple[list[tuple[str, int]], str]:
    subjects: list[tuple[str, int]] = []
    for _ in range(1_000):
        changes = source.changed_since(watermark, 3)
        subjects += changes.subjects
        watermark = changes.watermark
        if not changes.more:
            return subjects, watermark
    raise AssertionError("the sweep does not end")


def held(answer: list[int] | str) -> bool:
    return isinstance(answer, str) and answer.startswith("held back at id=")


# ------------------------------------------------------------------- rows that become visible late


@pytest.mark.parametrize("early_id", ["neither", "lower", "higher", "both"])
def test_source_holds_a_row_until_a_lower_one_of_its_subject_has_committed(
    source: SqlEventSource, begin: Callable[[], Writer], early_id: str
) -> None:
    """Whichever transaction got its transaction id first: only who draws first counts."""
    lower, higher = begin(), begin()
    if early_id in ("higher", "both"):
        higher.take_id_elsewhere()
    if early_id in ("lower", "both"):
        lower.take_id_elsewhere()
    first = lower.append("S")
    second = higher.append("S")
    higher.commit()

    assert first < second
    assert held(ask(source, "S"))
    assert held(ask(source, "S", second))
    lower.commit()
    assert ask(source, "S") == [first, second]


def test_source_holds_a_row_while_a_lower_id_is_drawn_and_not_yet_used(
    source: SqlEventSource, begin: Callable[[], Writer]
) -> None:
    """The one who drew it has no transaction id and no lock on the table yet."""
    lower, higher = begin(), begin()
    (name,) = lower.execute(
        "SELECT pg_get_serial_sequence(%s, 'id')", lower.table.as_string()
    ).fetchone() or ("",)
    (drawn,) = lower.execute("SELECT nextval(%s)", name).fetchone() or (0,)
    higher.append("S")
    higher.commit()

    assert held(ask(source, "S"))
    lower.execute(
        "INSERT INTO {table} (id, subject) OVERRIDING SYSTEM VALUE VALUES (%s, 'S')", drawn
    )
    assert held(ask(source, "S"))
    lower.commit()
    assert ask(source, "S") == [drawn, drawn + 1]


def test_source_releases_a_row_when_the_lower_one_was_rolled_back(
    source: SqlEventSource, begin: Callable[[], Writer]
) -> None:
    """A gap that nobody will fill is no reason to wait."""
    lower, higher = begin(), begin()
    lower.append("S")
    second = higher.append("S")
    higher.commit()
    assert held(ask(source, "S"))

    lower.connection.rollback()

    assert ask(source, "S") == [second]


def test_source_holds_a_row_written_in_a_savepoint(
    source: SqlEventSource, begin: Callable[[], Writer]
) -> None:
    """Such a row carries the id of the savepoint, which no snapshot lists."""
    lower, higher, other = begin(), begin(), begin()
    higher.take_id_elsewhere()
    higher.connection.execute("SAVEPOINT inner_one")
    higher.execute("CREATE TEMP TABLE scratch (x int)")
    other.take_id_elsewhere()
    other.commit()  # the id of the savepoint is no longer the newest
    assert ask(source, "S") == []
    first = lower.append("S")
    second = higher.append("S")
    higher.connection.execute("RELEASE inner_one")
    higher.commit()

    assert held(ask(source, "S"))
    lower.commit()
    assert ask(source, "S") == [first, second]


def test_source_serves_what_was_settled_before_an_open_transaction(
    source: SqlEventSource, begin: Callable[[], Writer]
) -> None:
    """One open transaction delays what comes after it, not the backlog."""
    before = begin()
    old = [before.append("S"), before.append("T")]
    before.commit()
    assert ask(source, "S") == old[:1]
    lower, higher = begin(), begin()
    lower.append("U")
    higher.append("T")
    higher.commit()

    answers = source.fetch_many([EventQuery(name, 0, 100) for name in ("S", "T", "U")])

    assert [type(answer) for answer in answers] == [EventPage, QueryFault, EventPage]
    assert ask(source, "S") == old[:1]


def test_source_names_the_transaction_that_holds_a_row(
    source: SqlEventSource, begin: Callable[[], Writer], table: str
) -> None:
    """Whoever reads the reason can end the culprit."""
    lower, higher = begin(), begin()
    lower.append("S")
    number = higher.append("S")
    higher.commit()

    reason = ask(source, "S")

    assert isinstance(reason, str)
    assert f"id={number}" in reason
    assert table in reason
    assert f"pid {lower.connection.info.backend_pid}" in reason


def test_source_is_not_held_by_readers_or_by_idle_connections(
    source: SqlEventSource, begin: Callable[[], Writer]
) -> None:
    """A report that runs for an hour writes nothing, so it can add nothing."""
    reader, locker, writer = begin(), begin(), begin()
    reader.execute("SELECT count(*) FROM {table}")
    locker.execute("LOCK TABLE {table} IN ROW SHARE MODE")
    number = writer.append("S")
    writer.commit()

    assert ask(source, "S") == [number]


def test_source_is_held_by_an_older_writer_of_another_table_only_for_newer_rows(
    source: SqlEventSource, begin: Callable[[], Writer]
) -> None:
    """The documented price of telling transactions apart by their ids."""
    first, other, second = begin(), begin(), begin()
    old = first.append("S")
    first.commit()
    other.take_id_elsewhere()
    new = second.append("S")
    second.commit()

    assert held(ask(source, "S"))
    assert held(ask(source, "S", new))
    assert ask(source, "S", new + 1) == []
    other.commit()
    assert ask(source, "S") == [old, new]


def test_source_sees_writers_of_a_partition(
    connect: Connect, open_source: Callable[..., SqlEventSource]
) -> None:
    """Whoever adds to a partition by its own name has no lock on the whole."""
    name = f"parted_{next(NUMBERS)}"
    owner = connect(autocommit=True)
    owner.execute(
        f"CREATE TABLE {name} (id BIGINT GENERATED ALWAYS AS IDENTITY, subject TEXT NOT NULL, "
        "payload TEXT NOT NULL DEFAULT '', PRIMARY KEY (id)) PARTITION BY RANGE (id)"
    )
    owner.execute(f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (1000)")
    source = open_source(name)
    lower, higher = connect(), Writer(connect, name)
    lower.execute(f"INSERT INTO {name}_1 (subject) VALUES ('S')")
    higher.append("S")
    higher.commit()

    assert held(ask(source, "S"))
    lower.commit()
    assert ask(source, "S") == [1, 2]


# --------------------------------------------------------------------------------------- the sweep


@pytest.mark.parametrize("early_id", ["lower", "higher"])
def test_sweep_never_passes_a_row_that_commits_late(
    source: SqlEventSource, begin: Callable[[], Writer], early_id: str
) -> None:
    """The watermark waits below it, and the late row is reported once it is there."""
    first, lower, higher = begin(), begin(), begin()
    first.append("first")
    first.commit()
    _, watermark = sweep(source, None)
    {"lower": lower, "higher": higher}[early_id].take_id_elsewhere()
    late = lower.append("late")
    next_one = higher.append("next")
    higher.commit()

    assert sweep(source, watermark)[0] == []
    assert [subject for subject, _ in sweep(source, None)[0]] == ["first"]
    lower.commit()
    found, watermark = sweep(source, watermark)
    assert found == [("late", late), ("next", next_one)]
    assert sweep(source, watermark)[0] == []


def test_sweep_by_subject_reports_a_late_row_in_the_next_round(
    open_source: Callable[..., SqlEventSource], table: str, begin: Callable[[], Writer]
) -> None:
    """Behind the sweep's place, and below the newest row of its subject."""
    source = open_source(table, changed=None)
    lower, higher = begin(), begin()
    late = lower.append("A")
    lower.append("B")
    newest = higher.append("B")
    higher.append("C")
    higher.commit()

    found, watermark = sweep(source, None)
    assert dict(found).keys() == {"B", "C"}
    lower.commit()
    found, _ = sweep(source, watermark)
    assert dict(found) == {"A": late, "B": newest, "C": newest + 1}


def test_sweep_by_time_holds_rows_younger_than_the_settle_time(
    connect: Connect, open_source: Callable[..., SqlEventSource], table: str
) -> None:
    """A time is that of the transaction's begin, so the watermark must trail."""
    owner = connect(autocommit=True)
    owner.execute(f"ALTER TABLE {table} ADD at TIMESTAMPTZ NOT NULL DEFAULT now()")
    source = open_source(table, changed="at", settle_ms=60_000)
    insert = f"INSERT INTO {table} (subject, at) VALUES (%s, now() + %s::interval)"
    for subject, age in [("old", "-2 h"), ("same", "-2 h"), ("young", "0"), ("older", "-1 h")]:
        owner.execute(insert, (subject, age))
    owner.execute(f"UPDATE {table} SET at = (SELECT min(at) FROM {table}) WHERE subject = 'same'")

    found, watermark = sweep(source, None)

    assert [subject for subject, _ in found] == ["old", "same", "older"]
    owner.execute(f"UPDATE {table} SET at = now() - interval '50 min' WHERE subject = 'young'")
    assert sweep(source, watermark)[0] == [("young", 3)]
    assert [ask(source, subject) for subject in ("young", "old")] == [[3], [1]]


@pytest.mark.parametrize("kind", ["TIMESTAMPTZ", "TIMESTAMP", "BIGINT"])
def test_source_ends_a_page_before_a_row_younger_than_the_settle_time(
    connect: Connect, open_source: Callable[..., SqlEventSource], table: str, kind: str
) -> None:
    """For ids that are made outside the transaction; times with, without a zone, and in ms."""
    owner = connect(autocommit=True)
    owner.execute(f"ALTER TABLE {table} ADD at {kind} NOT NULL")
    source = open_source(table, written="at", settle_ms=60_000)
    now = {
        "TIMESTAMPTZ": "now()",
        "TIMESTAMP": "now() AT TIME ZONE 'UTC'",
        "BIGINT": "extract(epoch FROM now()) * 1000",
    }[kind]
    step = "120000" if kind == "BIGINT" else "interval '2 min'"
    owner.execute(f"INSERT INTO {table} (subject, at) VALUES ('S', {now} - {step})")
    owner.execute(f"INSERT INTO {table} (subject, at) VALUES ('S', {now})")
    owner.execute(f"INSERT INTO {table} (subject, at) VALUES ('S', {now} - {step})")

    assert ask(source, "S") == [1]
    found, watermark = sweep(source, None)
    assert found == [("S", 1)]
    owner.execute(f"UPDATE {table} SET at = at - {step}")
    assert ask(source, "S") == [1, 2, 3]
    assert sweep(source, watermark)[0] == [("S", 3)]


# ---------------------------------------------------------------------------------------- bad rows


def insert(connect: Connect, text: str) -> None:
    connect(autocommit=True).execute(text)


def test_source_names_table_column_and_row_of_a_bad_row(
    connect: Connect, open_source: Callable[..., SqlEventSource]
) -> None:
    """Each bad row fails its own subject, with words to find it by."""
    name = f"bad_{next(NUMBERS)}"
    insert(
        connect,
        f"CREATE TABLE {name} (id BIGSERIAL UNIQUE, s VARCHAR, leg INT, p TEXT, h TEXT)",
    )
    insert(
        connect,
        f"INSERT INTO {name} (s, leg, p, h) VALUES "
        "('good', 1, 'x', NULL), ('good', 2, 'x', '{}'), "
        "('null payload', 1, 'x', NULL), ('null payload', 2, NULL, NULL), "
        "('twice', 1, 'x', NULL), ('twice', 1, 'y', NULL), "
        "('not json', 1, 'x', '{'), ('not strings', 1, 'x', '{\"a\": 1}'), "
        "('a list', 1, 'x', '[]'), ('negative', -1, 'x', NULL), ('', 1, 'x', NULL), "
        "(NULL, 1, 'x', NULL), ('no leg', NULL, 'x', NULL)",
    )
    source = open_source(name, subject="s", sequence="leg", payload="p", headers="h")

    reasons = {
        subject: ask(source, subject)
        for subject in ("good", "null payload", "twice", "not json", "not strings", "a list")
    }

    row = f"bad row: column {name}"
    assert reasons.pop("good") == [1, 2]
    assert reasons == {
        "null payload": f"{row}.p of row (s='null payload', leg=2) is NULL; "
        "it must be binary, text or JSON",
        "twice": f"{row}.leg of row (s='twice', leg=1) is there twice",
        "not json": f"{row}.h of row (s='not json', leg=1) is not JSON: Expecting property name "
        "enclosed in double quotes: line 1 column 2 (char 1)",
        "not strings": f"{row}.h of row (s='not strings', leg=1) is not a JSON object of strings",
        "a list": f"{row}.h of row (s='a list', leg=1) is not a JSON object of strings",
    }
    assert ask(source, "negative") == []
    assert ask(source, "no leg") == []


def test_sweep_leaves_out_rows_that_are_no_events_and_says_so_once(
    connect: Connect,
    open_source: Callable[..., SqlEventSource],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bad row is passed by, or the sweep would never get beyond it."""
    name = f"bad_{next(NUMBERS)}"
    insert(connect, f"CREATE TABLE {name} (id SERIAL UNIQUE, s TEXT, leg INT, payload TEXT)")
    insert(connect, f"CREATE INDEX ON {name} (s, leg)")
    insert(
        connect,
        f"INSERT INTO {name} (s, leg) VALUES ('a', 1), ('', 1), (NULL, 1), ('b', -1), ('c', NULL), "
        f"(repeat('k', 1025), 1), ('z', 2)",
    )
    source = open_source(name, subject="s", sequence="leg")

    first, _ = sweep(source, None)
    again, _ = sweep(source, None)

    assert first == again == [("a", 1), ("z", 2)]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 5
    assert (
        said[0]
        == f"bad row (s='', leg=1) of table {name}: subject is empty; the sweep leaves it out"
    )


def test_source_spares_the_neighbours_of_a_row_that_cannot_be_read(
    connect: Connect, open_source: Callable[..., SqlEventSource]
) -> None:
    """One row makes the whole statement fail; halving finds the subject."""
    name = f"unreadable_{next(NUMBERS)}"
    insert(
        connect,
        f"CREATE TABLE {name} (id BIGSERIAL UNIQUE, subject TEXT NOT NULL, divisor INT, "
        "payload TEXT GENERATED ALWAYS AS ((100 / divisor)::text) VIRTUAL)",
    )
    insert(
        connect,
        f"INSERT INTO {name} (subject, divisor) "
        "SELECT 'S' || n, CASE WHEN n IN (3, 11) THEN 0 ELSE 1 END FROM generate_series(0, 19) n",
    )
    source = open_source(name)

    answers = source.fetch_many([EventQuery(f"S{n}", 0, 10) for n in range(20)])

    faults = [answer for answer in answers if isinstance(answer, QueryFault)]
    assert [fault.query.subject for fault in faults] == ["S3", "S11"]
    assert all("division by zero" in fault.reason for fault in faults)
    assert all(len(a.events) == 1 for a in answers if isinstance(a, EventPage))


def test_source_reads_every_type_a_column_may_have(
    connect: Connect, open_source: Callable[..., SqlEventSource]
) -> None:
    """Payloads of four types, small and short sequence ids, VARCHAR subjects."""
    for kind, value in [
        ("BYTEA", "'\\x7b7d'"),
        ("JSON", "'{}'"),
        ("JSONB", "'{}'"),
        ("TEXT", "'{}'"),
    ]:
        for number in ("SMALLINT", "INTEGER", "BIGINT"):
            name = f"typed_{next(NUMBERS)}"
            insert(
                connect,
                f"CREATE TABLE {name} (id SERIAL UNIQUE, subject VARCHAR(9), leg {number}, "
                f"payload {kind}, PRIMARY KEY (subject, leg))",
            )
            insert(connect, f"INSERT INTO {name} (subject, leg, payload) VALUES ('S', 7, {value})")
            source = open_source(name, sequence="leg")

            (page,) = source.fetch_many([EventQuery("S", 0, 10)])

            assert isinstance(page, EventPage)
            assert [(event.sequence, event.payload) for event in page.events] == [(7, b"{}")]


# -------------------------------------------------------------------- what is wrong from the start


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"table": "no_such"}, "no table no_such; its tables: .*"),
        ({"subject": "tail"}, r"table {} has no column tail \(subject\); its columns: id, subject"),
        ({"sequence": "leg"}, r"table {} has no column leg \(sequence\)"),
        ({"payload": "data"}, r"table {} has no column data \(payload\)"),
        ({"headers": "hat"}, r"table {} has no column hat \(headers\)"),
        ({"changed": "rowid"}, r"table {} has no column rowid \(changed\)"),
        ({"subject": "id"}, r"column {}.id \(subject\) must be text, not BIGINT"),
        ({"sequence": "subject"}, r"column {}.subject \(sequence\) must be an integer, not TEXT"),
        ({"sequence": "price"}, r"column {}.price \(sequence\) must be an integer, not NUMERIC"),
        ({"payload": "id"}, r"column {}.id \(payload\) must be binary, text or JSON"),
        ({"subject": "code"}, r"column {}.code \(subject\) must be text of varying length"),
        ({"changed": "loose"}, r"column {}.loose \(changed\) must be NOT NULL"),
        ({"changed": "at"}, r"column {}.at \(changed\) is a time.*name a settle_ms"),
        ({"settle_ms": 5}, "settle_ms needs a column of {}"),
        ({"written": "loose", "settle_ms": 5}, r"column {}.loose \(written\) must be NOT NULL"),
        ({"schema": "elsewhere"}, "no table"),
    ],
)
def test_check_names_table_and_column(
    connect: Connect,
    open_source: Callable[..., SqlEventSource],
    table: str,
    settings: dict[str, Any],
    said: str,
) -> None:
    """A person can repair it from the message alone."""
    insert(
        connect,
        f"ALTER TABLE {table} ADD price NUMERIC, ADD code CHAR(9), ADD loose BIGINT, "
        "ADD at TIMESTAMPTZ NOT NULL DEFAULT now()",
    )
    source = open_source(**{"table": table, **settings})

    with pytest.raises(Fatal, match=said.replace("{}", table)):
        source.check()
    with pytest.raises(Fatal):
        source.fetch_many([EventQuery("S", 0, 1)])
    with pytest.raises(Fatal):
        source.changed_since(None, 1)


def test_check_refuses_a_view(
    connect: Connect, open_source: Callable[..., SqlEventSource], table: str
) -> None:
    """Its rows do not tell which transaction wrote them."""
    insert(connect, f"CREATE VIEW {table}_seen AS SELECT * FROM {table}")

    with pytest.raises(Fatal, match="is not a table"):
        open_source(f"{table}_seen", changed=None).check()


def test_check_warns_when_every_query_would_read_the_whole_table(
    open_source: Callable[..., SqlEventSource], table: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_source(table).check()

    assert f"table {table} has no index on (subject, id)" in caplog.text


def test_source_reads_a_table_of_another_schema(
    connect: Connect, open_source: Callable[..., SqlEventSource], table: str
) -> None:
    insert(connect, f'CREATE SCHEMA "sch {table}"')
    insert(connect, f'ALTER TABLE {table} SET SCHEMA "sch {table}"')
    insert(connect, f"INSERT INTO \"sch {table}\".{table} (subject) VALUES ('S')")
    source = open_source(table, schema=f"sch {table}")

    assert ask(source, "S") == [1]
    assert sweep(source, None)[0] == [("S", 1)]


# ------------------------------------------------------------------------- a database that is away


def test_source_gives_up_a_call_that_hangs(
    open_source: Callable[..., SqlEventSource], table: str, begin: Callable[[], Writer]
) -> None:
    """Somebody holds the table: the statement timeout ends the call, and later it works."""
    source = open_source(table, statement_timeout_ms=100)
    writer = begin()
    number = writer.append("S")
    writer.commit()
    source.check()
    writer.execute("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")

    with pytest.raises(Retry, match="statement timeout"):
        source.fetch_many([EventQuery("S", 0, 1)])
    with pytest.raises(Retry, match="statement timeout"):
        source.changed_since(None, 1)
    writer.commit()
    assert ask(source, "S") == [number]


def test_source_comes_back_after_its_connections_were_cut(
    connect: Connect, source: SqlEventSource, begin: Callable[[], Writer]
) -> None:
    """A restart of the database costs one failed call at most."""
    writer = begin()
    number = writer.append("S")
    writer.commit()
    assert ask(source, "S") == [number]
    insert(
        connect,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'cape_stream'",
    )

    with pytest.raises(Retry):
        source.fetch_many([EventQuery("S", 0, 1)])
    assert ask(source, "S") == [number]


def test_source_says_retry_when_there_is_no_server() -> None:
    source = SqlEventSource("postgresql://u@127.0.0.1:1/db", table="events")

    with pytest.raises(Retry, match="events"):
        source.fetch_many([EventQuery("S", 0, 1)])


def test_source_writes_nothing_even_if_it_tried(source: SqlEventSource, table: str) -> None:
    """Its sessions are read-only."""
    source.check()

    with source._engine.connect() as connection, pytest.raises(Exception, match="read-only"):
        connection.exec_driver_sql(f"INSERT INTO {table} (subject) VALUES ('S')")
