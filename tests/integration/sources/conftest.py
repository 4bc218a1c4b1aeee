"""Tables of a shared PostgreSQL, one for each test, and sources over them."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql as compose

from cape_stream.adapters.sources.sql import SqlEventSource
from tests.integration.sources.asking import Connect, Writer, new_name

TABLE = (
    "CREATE TABLE {} (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    "subject TEXT NOT NULL, payload TEXT NOT NULL DEFAULT '')"
)
"""Sequence id and sweep column are the same identity: the common, and the dangerous, design."""


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
    name = new_name("events")
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


@pytest.fixture
def begin(connect: Connect, table: str) -> Callable[[], Writer]:
    return lambda: Writer(connect, table)
