"""The SQL source on a real PostgreSQL: bad rows, wrong names, a database that is away."""

from collections.abc import Callable
from typing import Any

import pytest

from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.errors import Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from tests.integration.sources.asking import Connect, Writer, ask, new_name, sweep

pytestmark = pytest.mark.postgres


# ---------------------------------------------------------------------------------------- bad rows


def insert(connect: Connect, text: str) -> None:
    connect(autocommit=True).execute(text)


def test_source_names_table_column_and_row_of_a_bad_row(
    connect: Connect, open_source: Callable[..., SqlEventSource]
) -> None:
    """Each bad row fails its own subject, with words to find it by."""
    name = new_name("bad")
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
    name = new_name("bad")
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
    name = new_name("unreadable")
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
            name = new_name("typed")
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
        ({"changed": "batch"}, r"column {}.batch \(changed\) must be unique"),
        ({"changed": "maybe"}, r"column {}.maybe \(changed\) must be NOT NULL"),
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
        "ADD batch INT NOT NULL DEFAULT 0, ADD maybe INT UNIQUE, "
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
    source = SqlEventSource("postgresql://u:secret@127.0.0.1:1/db", table="events")

    with pytest.raises(Retry, match=r"cannot read table events of 127\.0\.0\.1/db now") as refused:
        source.fetch_many([EventQuery("S", 0, 1)])
    assert "secret" not in refused.value.reason


def test_source_writes_nothing_even_if_it_tried(source: SqlEventSource, table: str) -> None:
    """Its sessions are read-only."""
    source.check()

    with source._engine.connect() as connection, pytest.raises(Exception, match="read-only"):
        connection.exec_driver_sql(f"INSERT INTO {table} (subject) VALUES ('S')")
