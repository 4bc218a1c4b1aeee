"""Connections to the database: read-only, bounded in number and in time."""

from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import Any
from urllib.parse import quote, unquote

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError

MAPPED_BYTES = 256 * 1024 * 1024
"""How much of a SQLite file is read through the page cache of the system; shared by all
connections. Measured: a third less CPU a query."""


def open_engine(database: str | URL, *, statement_timeout_ms: int, size: int) -> Engine:
    """Return an engine of at most ``size`` connections; nothing is connected yet.

    Raises:
        ValueError: the URL is not one of a SQLite file or of PostgreSQL.
    """
    try:
        url = make_url(database)
    except ArgumentError as error:
        raise ValueError(f"the source's database URL cannot be read: {error}") from error
    dialect = url.get_backend_name()
    pool = {
        "pool_size": size,
        "max_overflow": 0,
        "pool_timeout": statement_timeout_ms / 1_000,
    }
    if dialect == "sqlite":
        return _open_sqlite(url, statement_timeout_ms, pool)
    if dialect in ("postgresql", "postgres"):
        return _open_postgres(url, statement_timeout_ms, pool)
    raise ValueError(f"a source must be in SQLite or PostgreSQL, not in {dialect}")


def shown_database(engine: Engine) -> str:
    """Which database it is, for messages: no user, no password, no options."""
    url = engine.url
    name = unquote((url.database or "").removeprefix("file:"))
    return f"{url.host}/{name}" if url.host else name or "the database"


def _open_sqlite(url: URL, statement_timeout_ms: int, pool: dict[str, Any]) -> Engine:
    path = url.database or ""
    if path in ("", ":memory:"):
        raise ValueError("a SQLite source needs a file: each connection has its own :memory:")
    if not path.startswith("file:"):
        # Without rw, SQLite makes an empty database of a misspelt path.
        path = f"file:{quote(str(Path(path).absolute()))}"
        url = url.set(database=path).update_query_dict({"mode": "rw"})
    engine = create_engine(
        url.update_query_dict({"uri": "true"}),
        connect_args={"timeout": statement_timeout_ms / 1_000},
        **pool,
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: SqliteConnection, _record: object) -> None:
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA mmap_size = {MAPPED_BYTES}")

    return engine


def _open_postgres(url: URL, statement_timeout_ms: int, pool: dict[str, Any]) -> Engine:
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    # The statement timeout is the server's; the others end a call when there is no server left.
    ends = {"connect_timeout": "10", "tcp_user_timeout": str(2 * statement_timeout_ms)}
    beats = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}
    defaults = {"application_name": "cape_stream", **ends, **beats}
    given = dict(url.query)
    engine = create_engine(url.set(query={**defaults, **given}), **pool)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET statement_timeout = {statement_timeout_ms:d}")
            cursor.execute("SET default_transaction_read_only = on")
            cursor.execute("SET TIME ZONE 'UTC'")
        connection.commit()

    return engine
