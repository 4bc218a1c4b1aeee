"""Events in a table of a SQL database: SQLite or PostgreSQL."""

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol

from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cape_stream.adapters.sources.postgres_reader import PostgresReader
from cape_stream.adapters.sources.sql_engine import open_engine, shown_database
from cape_stream.adapters.sources.sql_rows import (
    PAYLOAD,
    SEQUENCE,
    SUBJECT,
    BadRowError,
    change_of,
    query_refusal,
)
from cape_stream.adapters.sources.sql_table import ColumnNames, EventTable, describe
from cape_stream.adapters.sources.sql_watermark import Place, Sweep
from cape_stream.adapters.sources.sqlite_reader import SqliteReader
from cape_stream.errors import CapeError, Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.source import Changes

logger = logging.getLogger("cape_stream.sources")

BAD_ROWS_TOLD_MAX = 1_000
"""Bad rows a sweep has named in the log; a sweep comes by again and again."""


class Reader(Protocol):
    """One table of one database."""

    nul_allowed: bool
    """May a subject hold a NUL character?"""

    def pages(self, queries: Sequence[EventQuery]) -> list[EventPage | QueryFault]:
        """Answer valid queries."""
        ...

    def changes(self, after: Place, limit: int) -> list[Sequence[Any]]:
        """Settled rows behind a place, in the order of ``changed``."""
        ...

    def newest(self, after: Place, limit: int) -> list[Sequence[Any]]:
        """(subject, highest sequence id) of the subjects behind a place."""
        ...


class SqlEventSource:
    """Reads events from a table that grows by appending. Thread-safe. Nothing is ever written.

    The table needs an index on (subject, sequence), unique if it can be. Columns: ``subject``
    text, compared byte for byte (not CHAR(n), no collation that ignores case); ``sequence``
    an integer type; ``payload`` binary, text or JSON; ``headers`` (optional) a JSON object of
    strings. A row that does not fit makes its own subject's queries fail, with a reason
    that names table, column and row; its neighbours are served.

    **Rows that become visible late.** Sequence ids are mostly drawn before the commit, so a lower
    one may become visible after a higher one. What is returned never has a gap that a transaction
    still under way could fill.

    - PostgreSQL: rows are held back while a transaction is open that wrote to the table, or drew
      from a sequence it owns, since before they became visible; and while any transaction is open
      that has written anything in this server and is older than they are. Nothing need be
      configured. A call waits ``settle_wait_ms`` for such transactions; after that, a query
      that would meet a held row is a `QueryFault`, to be asked again after a backoff, and its
      reason names the transaction. So a bulk load of an hour delays what is committed in that hour.
      A source that starts meanwhile begins when it ends. What is asked of the writers: draw the id
      in the transaction that inserts the row, from the table's own sequence (CACHE 1), or under a
      lock or unique key of the subject. Anything else (ids made by an application, a sequence that
      caches) needs a settle time beside it. An UPDATE of a row makes it new again: it is held back
      as if just inserted, and its subject with it for that long.
      Views and standby servers are refused.
    - SQLite has one writer at a time, so rows become visible in the order of their ids as
      long as the id is drawn inside the writing transaction: nothing is held back. Otherwise name
      a settle time.
    - Settle time: with ``written``, a NOT NULL column that says when a row was written (Unix
      milliseconds as an integer, or a date and time in UTC), rows younger than ``settle_ms``
      end a page as if they were not there yet; the sweep reports them once they are older. It must
      exceed the longest transaction, and the difference of the clocks that write and read.

    **Sweep.** `changed_since` follows ``changed``, an indexed column that grows with every row: an
    integer that is unique (identity, AUTOINCREMENT, ``rowid``), or a date and time in UTC with an
    index on (changed, subject, sequence), whose rows are reported once they are older than
    ``settle_ms`` (a transaction's time is that of its begin). The watermark stops before the first
    row that is not settled, so a late row below it cannot exist. Without ``changed``
    every round goes through all subjects by leaps in the index, about 10 us each, and reports all
    of them; good for some hundred thousand subjects.

    NUL in a subject is fine in SQLite and a `QueryFault` in PostgreSQL, whose text cannot hold it.

    Args:
        database: an SQLAlchemy URL, ``sqlite:///path`` or ``postgresql://…`` (psycopg is used), or
            an Engine of yours, which keeps its own pool and timeouts and is not closed.
        table: its name.
        schema: schema of the table; None is the connection's default.
        subject: column.
        sequence: column.
        payload: column.
        headers: column; None if there are no headers.
        changed: column to sweep by; None sweeps by subject.
        written: column with the time of writing; only with ``settle_ms``.
        settle_ms: settle time, >= 0.
        settle_wait_ms: longest wait for open transactions in one call (PostgreSQL), >= 0.
        statement_timeout_ms: when a database call is given up, > 0.
        pool_size: most connections at a time, >= 1.

    Raises:
        ValueError: settings that contradict one another, or another kind of database.
    """

    def __init__(
        self,
        database: str | URL | Engine,
        *,
        table: str = "events",
        schema: str | None = None,
        subject: str = "subject",
        sequence: str = "sequence",
        payload: str = "payload",
        headers: str | None = None,
        changed: str | None = None,
        written: str | None = None,
        settle_ms: int = 0,
        settle_wait_ms: int = 50,
        statement_timeout_ms: int = 5_000,
        pool_size: int = 4,
    ) -> None:
        if written is not None and not settle_ms:
            raise ValueError("written needs a settle_ms above 0")
        if min(settle_ms, settle_wait_ms, statement_timeout_ms - 1, pool_size - 1) < 0:
            raise ValueError("settle_ms, settle_wait_ms, statement_timeout_ms or pool_size too low")
        self._names = ColumnNames(
            table=table,
            schema=schema,
            subject=subject,
            sequence=sequence,
            payload=payload,
            headers=headers,
            changed=changed,
            written=written,
        )
        self._settle_ms = settle_ms
        self._settle_wait_ms = settle_wait_ms
        self._statement_timeout_ms = statement_timeout_ms
        self._owns_engine = not isinstance(database, Engine)
        self._engine = (
            database
            if isinstance(database, Engine)
            else open_engine(database, statement_timeout_ms=statement_timeout_ms, size=pool_size)
        )
        self._shown = f"table {table} of {shown_database(self._engine)}"
        self._lock = Lock()
        self._checked: tuple[EventTable, Reader] | None = None
        self._told: set[str] = set()

    def check(self) -> None:
        """Compare table and columns with the database; later calls cost nothing.

        Call it at the start of a program; the first question asks it otherwise.

        Raises:
            Fatal: the table, a column or its type is not as named; the message says which.
            Retry: the database is away for now.
        """
        self._reader()

    def _reader(self) -> tuple[EventTable, Reader]:
        with self._lock:
            if self._checked is None:
                with self._retyped():
                    table = describe(self._engine, self._names, self._settle_ms)
                    self._checked = table, self._open_reader(table)
            return self._checked

    def _open_reader(self, table: EventTable) -> Reader:
        dialect = self._engine.dialect.name
        if dialect == "postgresql":
            return PostgresReader(
                self._engine,
                table,
                settle_ms=self._settle_ms,
                settle_wait_ms=self._settle_wait_ms,
            )
        if dialect == "sqlite":
            return SqliteReader(
                self._engine,
                table,
                settle_ms=self._settle_ms,
                statement_timeout_ms=self._statement_timeout_ms,
            )
        raise Fatal(f"a source must be in SQLite or PostgreSQL, not in {dialect}")

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `cape_stream.ports.source.EventSource`.

        Raises:
            Retry: the database is away, or took longer than the statement timeout.
            Fatal: as `check`.
        """
        _, reader = self._reader()
        answers: list[EventPage | QueryFault | None] = []
        valid: list[EventQuery] = []
        for query in queries:
            refusal = query_refusal(query, nul_allowed=reader.nul_allowed)
            answers.append(None if refusal is None else QueryFault(query, refusal))
            if refusal is None:
                valid.append(query)
        with self._retyped():
            pages = iter(reader.pages(valid) if valid else ())
        return [next(pages) if answer is None else answer for answer in answers]

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """See `cape_stream.ports.source.EventSource`; raises as `fetch_many`."""
        table, reader = self._reader()
        sweep = Sweep(table.shown, table.place_names)
        after = sweep.decode(watermark)
        with self._retyped():
            if table.names.changed is not None:
                rows = reader.changes(after, limit)
            else:
                rows = reader.newest(after, limit)
        more = len(rows) == limit
        changes = self._changes_of(table, rows)
        if table.names.changed is None:
            after = (_text(rows[-1][SUBJECT]),) if more else ()  # the next round begins anew
        elif rows:
            place = (_text(rows[-1][PAYLOAD]), _text(rows[-1][SUBJECT]), rows[-1][SEQUENCE])
            after = place[: len(table.place_names)]
        return Changes(changes, sweep.encode(after), more)

    def _changes_of(
        self, table: EventTable, rows: Sequence[Sequence[Any]]
    ) -> list[tuple[str, int]]:
        newest: dict[str, int] = {}
        for row in rows:
            try:
                subject, sequence = change_of(table, row[SUBJECT], row[SEQUENCE])
            except BadRowError as error:
                self._tell(str(error))
            else:
                newest[subject] = max(sequence, newest.get(subject, 0))
        return list(newest.items())

    @contextmanager
    def _retyped(self) -> Iterator[None]:
        """Let no error of a database library pass the port."""
        try:
            yield
        except CapeError:
            raise
        except DBAPIError as error:
            raise Retry(f"cannot read {self._shown} now: {error.orig}") from error
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise Retry(f"cannot read {self._shown} now: {error}") from error

    def _tell(self, bad_row: str) -> None:
        with self._lock:
            if bad_row in self._told or len(self._told) >= BAD_ROWS_TOLD_MAX:
                return
            self._told.add(bad_row)
        logger.warning("%s; the sweep leaves it out", bad_row)

    def close(self) -> None:
        """Close all connections, unless they are those of an engine of yours."""
        if self._owns_engine:
            self._engine.dispose()


def _text(value: Any) -> Any:
    """Make a text out of what SQLite hands over as bytes; every other value stays as it is."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
