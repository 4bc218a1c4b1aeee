"""The outbox on a real PostgreSQL: its table, its notices, and what a prune takes away."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cape_stream.adapters.sources.outbox import PostgresOutbox
from cape_stream.adapters.sources.outbox_statements import TOLD_MAX
from cape_stream.errors import Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.model.sequence import NO_CURSOR
from tests.integration.sources.asking import Connect, new_name
from tests.integration.sources.test_postgres_servers import run_tool
from tests.postgres import local_postgres
from tests.waiting import eventually

pytestmark = pytest.mark.postgres

LISTEN_MS = 50


class Box:
    """An outbox, its table's name, and a writer beside it."""

    def __init__(self, url: str, writer: psycopg.Connection[Any], **settings: Any) -> None:
        self.table = new_name("outbox")
        self.outbox = PostgresOutbox(url, table=self.table, settle_wait_ms=20, **settings)
        self.outbox.create()
        self.writer = writer

    def insert(self, *subjects: str, writer: psycopg.Connection[Any] | None = None) -> None:
        for subject in subjects:
            (writer or self.writer).execute(
                f"INSERT INTO {self.table} (subject, payload) VALUES (%s, 'x')", (subject,)
            )

    def sequences(self, subject: str) -> list[int]:
        (page,) = self.outbox.fetch_many([EventQuery(subject, 0, 1_000)])
        assert isinstance(page, EventPage), page
        return [event.sequence for event in page.events]

    def swept(self, watermark: str | None = None) -> set[str]:
        found: set[str] = set()
        while True:
            changes = self.outbox.changed_since(watermark, 400)
            found |= {subject for subject, _ in changes.subjects}
            watermark = changes.watermark
            if not changes.more:
                return found

    def hear(self, count: int) -> dict[str, int]:
        """Listen until so many subjects were told of."""
        heard: dict[str, int] = {}

        def enough() -> bool:
            heard.update(self.outbox.news(LISTEN_MS))
            return len(heard) >= count

        eventually(enough)
        return heard


@pytest.fixture
def open_box(postgres_url: str, connect: Connect) -> Iterator[Callable[..., Box]]:
    opened: list[Box] = []

    def open_box(**settings: Any) -> Box:
        opened.append(Box(postgres_url, connect(autocommit=True), **settings))
        return opened[-1]

    yield open_box
    for box in opened:
        box.outbox.close()


@pytest.fixture
def box(open_box: Callable[..., Box]) -> Box:
    return open_box()


# ------------------------------------------------------------------------------------- the table


def test_create_may_be_repeated_and_leaves_rows_alone(box: Box) -> None:
    box.insert("S")

    box.outbox.create()

    assert len(box.sequences("S")) == 1


def test_create_by_many_at_once_makes_one_table(postgres_url: str) -> None:
    table = new_name("outbox")
    outboxes = [PostgresOutbox(postgres_url, table=table) for _ in range(8)]

    with ThreadPoolExecutor(len(outboxes)) as pool:
        list(pool.map(PostgresOutbox.create, outboxes))

    outboxes[0].check()
    for each in outboxes:
        each.close()


def test_ddl_is_what_create_does(box: Box) -> None:
    """For those who keep migrations of their own; given twice, as migrations sometimes are."""
    text = box.outbox.ddl()
    box.writer.execute(f"DROP TABLE {box.table}")

    box.writer.execute(text.encode())
    box.writer.execute(text.encode())

    box.outbox.check()


def test_table_refuses_what_is_no_subject_where_it_is_written(box: Box) -> None:
    """Better there, where somebody sees it, than a row that is never delivered."""
    for subject in ("", "x" * 1_025, "ü" * 600):
        with pytest.raises(psycopg.errors.CheckViolation):
            box.insert(subject)
    box.insert("x" * 1_024)


def test_check_names_a_missing_column_and_those_that_are_there(box: Box) -> None:
    box.writer.execute(f"ALTER TABLE {box.table} DROP COLUMN headers")

    with pytest.raises(Fatal, match=r"no column headers.*id, subject, sequence, payload, written"):
        box.outbox.check()


def test_create_says_what_the_database_refuses(box: Box, postgres_url: str) -> None:
    outbox = PostgresOutbox(postgres_url, schema="nowhere")

    with pytest.raises(Fatal, match="nowhere"):
        outbox.create()
    outbox.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"table": 'x"; DROP TABLE y'},
        {"table": "Upper"},
        {"table": "x" * 41},
        {"schema": "a.b"},
        {"payload": "xml"},
        {"prune_every": timedelta(0)},
        {"keep": timedelta(-1)},
    ],
)
def test_outbox_refuses_settings_that_cannot_be(settings: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot be named|payload must|keep must"):
        PostgresOutbox("postgresql://localhost/x", **settings)


def test_outbox_hands_json_payloads_on_as_text(open_box: Callable[..., Box]) -> None:
    box = open_box(payload="jsonb")
    box.writer.execute(
        f"INSERT INTO {box.table} (subject, payload, headers) "
        """VALUES ('S', '{"total": 5}', '{"kind": "paid"}')"""
    )

    (page,) = box.outbox.fetch_many([EventQuery("S", 0, 9)])

    assert isinstance(page, EventPage)
    assert [(each.payload, each.headers) for each in page.events] == [
        (b'{"total": 5}', {"kind": "paid"})
    ]


def test_outbox_waits_for_a_lower_row_that_commits_late(box: Box, connect: Connect) -> None:
    lower, higher = connect(), connect()
    box.insert("S", writer=lower)
    box.insert("S", writer=higher)
    higher.commit()

    (answer,) = box.outbox.fetch_many([EventQuery("S", 0, 9)])

    assert isinstance(answer, QueryFault)
    assert box.swept() == set()
    lower.commit()
    assert box.sequences("S") == [1, 2]
    assert box.swept() == {"S"}


# ----------------------------------------------------------------------------------- the notices


def test_news_tells_of_rows_when_they_have_been_committed(box: Box, connect: Connect) -> None:
    box.outbox.news(0)
    writer = connect()
    box.insert("a b", "a b", "c", writer=writer)
    assert box.outbox.news(LISTEN_MS) == []

    writer.commit()

    assert box.hear(2) == {"a b": 2, "c": 3}


def test_news_tells_nothing_of_rows_that_were_rolled_back(box: Box, connect: Connect) -> None:
    box.outbox.news(0)
    writer = connect()
    box.insert("gone", writer=writer)
    writer.rollback()
    box.insert("kept")

    assert box.hear(1).keys() == {"kept"}


def test_news_of_a_bulk_load_is_bounded_and_the_sweep_finds_the_rest(box: Box) -> None:
    box.outbox.news(0)
    box.writer.execute(
        f"INSERT INTO {box.table} (subject, payload) "
        "SELECT 'S' || n, 'x' FROM generate_series(1, %s) AS n",
        (TOLD_MAX + 500,),
    )
    box.insert("last")

    heard: set[str] = set()

    def heard_the_last() -> bool:
        heard.update(subject for subject, _ in box.outbox.news(LISTEN_MS))
        return "last" in heard

    eventually(heard_the_last)
    assert len(heard) == TOLD_MAX + 1
    assert len(box.swept()) == TOLD_MAX + 501


@pytest.mark.parametrize(
    "notice", ["", "7", "x S", "-1 S", "9223372036854775808 S", "7 " + "s" * 1_025]
)
def test_news_leaves_foreign_notices_out(box: Box, notice: str) -> None:
    box.outbox.news(0)
    box.writer.execute("SELECT pg_notify(%s, %s)", (f"cape_{box.table}", notice))
    box.insert("ours")

    assert box.hear(1).keys() == {"ours"}


def test_an_outbox_without_trigger_is_silent_and_complete(open_box: Callable[..., Box]) -> None:
    box = open_box(notifies=False)
    box.insert("S")

    assert box.outbox.news(LISTEN_MS) == []
    assert box.swept() == {"S"}


# ------------------------------------------------------------------------------------- the prune


def test_prune_takes_what_all_have_done_and_nothing_else(open_box: Callable[..., Box]) -> None:
    box = open_box(keep=timedelta(0))
    box.insert("A", "B", "A", "C", "A")
    done = {"A": 3, "B": NO_CURSOR, "C": 4}

    pruned = box.outbox.prune(lambda subject: done.get(subject, NO_CURSOR))

    assert pruned == 3
    assert [box.sequences(each) for each in "ABC"] == [[5], [2], []]


def test_prune_takes_nothing_of_subjects_it_knows_nothing_of(
    open_box: Callable[..., Box],
) -> None:
    box = open_box(keep=timedelta(0))
    box.insert("A", "B")

    assert box.outbox.prune(lambda _: NO_CURSOR) == 0
    assert box.swept() == {"A", "B"}


def test_prune_keeps_what_is_young(box: Box) -> None:
    box.insert("S", "S")
    box.writer.execute(f"UPDATE {box.table} SET written = now() - interval '2 d' WHERE id = 1")

    assert box.outbox.prune(lambda _: 99) == 1
    assert box.sequences("S") == [2]


def test_prune_goes_through_more_rows_than_it_looks_at_at_once(
    open_box: Callable[..., Box],
) -> None:
    box = open_box(keep=timedelta(0))
    box.writer.execute(
        f"INSERT INTO {box.table} (subject, payload) "
        "SELECT 'S' || n % 2, 'x' FROM generate_series(1, 5000) AS n"
    )

    assert box.outbox.prune(lambda subject: 5_000 if subject == "S1" else NO_CURSOR) == 2_500
    assert box.swept() == {"S0"}


# ---------------------------------------------------------------------- a server that is restarted


@pytest.mark.timeout(120)
def test_outbox_survives_a_restart_in_the_middle_of_a_sweep() -> None:
    """What was on its way is lost with the connections; nothing is once the server is back."""
    outer = Path(tempfile.mkdtemp(prefix="cape-postgres-"))
    folder = outer / "server"
    with local_postgres(folder, configured=False) as url:  # what was committed has to be there
        box = Box(url, psycopg.connect(url, autocommit=True))
        box.insert(*(f"S{number}" for number in range(30)))
        box.outbox.news(0)
        page = box.outbox.changed_since(None, 10)

        tool = ("pg_ctl", "-D", str(folder), "-m", "immediate", "-w", "-l", str(folder / "again"))
        run_tool(folder, *tool, "restart")
        with psycopg.connect(url, autocommit=True) as writer:
            box.insert("unheard", writer=writer)  # notified, and nobody listens
        with pytest.raises(Retry):
            box.outbox.news(LISTEN_MS)

        rest: set[str] = set()

        def swept() -> bool:
            try:
                rest.update(box.swept(page.watermark))
            except Retry:
                return False  # a connection of before the restart, of which there are a few
            return True

        eventually(swept)
        assert {subject for subject, _ in page.subjects} | rest == {
            "unheard",
            *(f"S{number}" for number in range(30)),
        }
        with psycopg.connect(url, autocommit=True) as writer:
            assert box.outbox.news(0) == []
            box.insert("heard", writer=writer)
        assert box.hear(1).keys() == {"heard"}
        box.writer.close()
        box.outbox.close()
    shutil.rmtree(outer)


def test_outbox_says_that_its_server_is_away() -> None:
    outbox = PostgresOutbox("postgresql://nobody@127.0.0.1:9/x")

    for call in (outbox.create, lambda: outbox.news(0), lambda: outbox.prune(lambda _: 0)):
        with pytest.raises(Retry):
            call()
    outbox.close()
