"""How tests of the SQL source ask it, and how they write beside it."""

import itertools
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql as compose

from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.model.request import EventQuery, QueryFault

NUMBERS = itertools.count()

Connect = Callable[..., psycopg.Connection[Any]]


def new_name(word: str) -> str:
    """A table's name that no other test has."""
    return f"{word}_{next(NUMBERS)}"


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
