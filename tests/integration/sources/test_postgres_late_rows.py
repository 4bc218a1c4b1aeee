"""Rows of a real PostgreSQL that become visible late: transactions that interleave.

`Writer` is one open transaction.
"""

from collections.abc import Callable

import pytest

from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from tests.integration.sources.asking import Connect, Writer, ask, new_name, sweep

pytestmark = pytest.mark.postgres


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
    name = new_name("parted")
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
