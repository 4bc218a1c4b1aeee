"""Implements `DeliveryStore` with SQLAlchemy; every call runs in a thread."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, create_engine, event, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError

from cape_stream.adapters.deliveries_sql.tables import (
    DELIVERY,
    SIGNAL,
    TABLES,
    event_of,
    event_rows,
    history_of,
    newest_of,
    signal_of,
    signal_row,
)
from cape_stream.errors import Reject, Retry
from cape_stream.ports.deliveries import DeliveryEvent, ReputationSignal

CONNECTIONS = 4
BUSY_S = 5
"""How long one waits for others who write."""
STATEMENT_MS = 10_000
INSERTS: dict[str, Callable[[Table], Any]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}

T = TypeVar("T")


class SqlDeliveries:
    """A delivery store that every process with the same URL shares. Makes its two tables,
    ``cape_delivery`` and ``cape_reputation_signal``, if they are not there. Implements
    `DeliveryStore`; what the database will never take, such as a NUL in a text, is a Reject.

    Args:
        url: ``sqlite:///FILE`` for the processes of one machine, ``postgresql://...`` for a fleet;
            nothing is connected yet.

    Raises:
        ValueError: the URL is neither, or the driver is not installed; its text is not repeated,
            for it may hold a password.
    """

    def __init__(self, url: str | URL) -> None:
        try:
            found = make_url(url)
        except ArgumentError as error:
            raise ValueError("the URL of the delivery store cannot be read") from error
        self._dialect = found.get_backend_name()
        if self._dialect not in INSERTS:
            raise ValueError(
                f"the delivery store is in SQLite or PostgreSQL, not in {self._dialect}"
            )
        self._engine = _open(found)
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="cape-deliveries")
        self._making = Lock()
        self._is_made = False

    async def record(self, events: Sequence[DeliveryEvent]) -> int:
        """See `DeliveryStore.record`."""
        return await self._add(DELIVERY, event_rows(events)) if events else 0

    async def record_signal(self, signal: ReputationSignal) -> bool:
        """See `DeliveryStore.record_signal`."""
        return await self._add(SIGNAL, [signal_row(signal)]) == 1

    async def newest_signals(self, account: str | None = None) -> list[ReputationSignal]:
        """See `DeliveryStore.newest_signals`."""
        rows = await self._do(lambda link: link.execute(newest_of(account)).all())
        return [signal_of(row) for row in rows]

    async def history(self, message_id: str) -> list[DeliveryEvent]:
        """See `DeliveryStore.history`."""
        rows = await self._do(lambda link: link.execute(history_of(message_id)).all())
        return [event_of(row) for row in rows]

    def close(self) -> None:
        """Let calls under way end, and free all."""
        self._threads.shutdown()
        self._engine.dispose()

    async def _add(self, table: Table, rows: list[dict[str, Any]]) -> int:
        insert = INSERTS[self._dialect](table).values(rows).on_conflict_do_nothing()
        statement = insert.returning(table.c.at_ms)  # of what was new
        return await self._do(lambda link: len(link.execute(statement).all()))

    async def _do(self, work: Callable[[Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._carry_out, work)

    def _carry_out(self, work: Callable[[Connection], T]) -> T:
        try:
            self._make_tables()
            with self._engine.begin() as link:
                return work(link)
        except (DataError, IntegrityError) as error:
            raise Reject(f"the delivery store will never take this: {_cause(error)}") from error
        except SQLAlchemyError as error:
            raise Retry(f"the delivery store: {_cause(error)}") from error

    def _make_tables(self) -> None:
        with self._making:
            if self._is_made:
                return
            for table in TABLES.sorted_tables:
                try:
                    table.create(self._engine, checkfirst=True)
                except DBAPIError:
                    if not inspect(self._engine).has_table(table.name):
                        raise  # else another process made it in the same moment
            self._is_made = True


def _cause(error: SQLAlchemyError) -> object:
    """What the driver said; SQLAlchemy's own text repeats every value of the statement."""
    return error.orig if isinstance(error, DBAPIError) else error


def _open(url: URL) -> Engine:
    pool = {"pool_size": CONNECTIONS, "max_overflow": 0, "pool_pre_ping": True}
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_S}, **pool)

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, _record: object) -> None:
            connection.execute("PRAGMA journal_mode=WAL")

        return engine
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    ends = {"connect_timeout": "10", "tcp_user_timeout": str(2 * STATEMENT_MS)}
    limits = {"options": f"-c statement_timeout={STATEMENT_MS}"}
    query = {"application_name": "cape_stream", **ends, **limits, **dict(url.query)}
    try:
        return create_engine(url.set(query=query), **pool)
    except ImportError as error:
        raise ValueError(f"{error}; run: python -m pip install 'cape-stream[postgres]'") from error
