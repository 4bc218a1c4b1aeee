"""A transactional outbox on PostgreSQL: events are rows written with the change they tell of."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cape_stream.adapters.sources.outbox_statements import (
    DELETE,
    LISTEN,
    OLD_ROWS,
    ONE_MAKER,
    PAYLOAD_TYPES,
    TABLE,
    TRIGGER,
    OutboxNames,
)
from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.errors import Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.model.sequence import BadSequenceError, check_sequence
from cape_stream.model.subject import BadSubjectError, check_subject
from cape_stream.ports.source import Changes

logger = logging.getLogger("cape_stream.sources")

PRUNED_AT_A_TIME = 2_000
"""Rows looked at in one transaction of a prune. While it runs it counts as a writer, so what is
younger is held back: it must be short."""
ENDS = {
    "application_name": "cape_stream outbox",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
"""A connection whose server is gone is noticed, also by one that only listens."""


class PostgresOutbox:
    """The outbox of a service, as the source of a domain. Implements `EventSource` and `Outbox`.

    The service inserts (subject, payload) and, if it likes, headers, a JSON object of strings, in
    the transaction that makes the change. The sequence id is the table's own, growing over all
    subjects, so each subject's has gaps; or the service inserts its own, such as the version of
    what the subject names, which a lock or the unique index on (subject, sequence) makes grow one
    by one. Rows that commit late are waited for as `SqlEventSource` documents: nothing need be
    configured.

    The trigger notifies of new rows, and whoever runs the outbox part (`cape run`, or
    `cape outbox` on Kafka) pings them. It is optional, as NOTIFY makes transactions that notify
    commit one after the other; what is not notified, or lost on the way, is found by refresh.

    Args:
        database: ``postgresql://...``, the primary.
        table: its name, lower-case letters, digits and underscores.
        schema: schema of the table; None is the connection's default.
        payload: type of the payload column, ``bytea``, ``text`` or ``jsonb``.
        notifies: False makes no trigger and does not listen.
        prune_every: how often rows that every topology has done are deleted; None: never. Leave it
            None while Apps of another name read the same table: their cursors are not seen.
        keep: how long a row is kept at least; as far back can a topology be rewound.
        retired: topologies that the App had once and that shall hold nothing back any more.
        settle_wait_ms: as for `SqlEventSource`.
        statement_timeout_ms: as for `SqlEventSource`; a prune is many statements.
        pool_size: as for `SqlEventSource`; who listens or prunes has a connection beside.

    Raises:
        ValueError: settings that cannot be.
    """

    def __init__(
        self,
        database: str,
        *,
        table: str = "outbox",
        schema: str | None = None,
        payload: Literal["bytea", "text", "jsonb"] = "bytea",
        notifies: bool = True,
        prune_every: timedelta | None = None,
        keep: timedelta = timedelta(days=1),
        retired: Collection[str] = (),
        settle_wait_ms: int = 50,
        statement_timeout_ms: int = 5_000,
        pool_size: int = 4,
    ) -> None:
        if payload not in PAYLOAD_TYPES:
            raise ValueError(f"payload must be one of {', '.join(PAYLOAD_TYPES)}, not {payload!r}")
        if keep < timedelta(0) or (prune_every is not None and prune_every <= timedelta(0)):
            raise ValueError("keep must not be negative, and prune_every must be above 0")
        self._names = OutboxNames(table, schema)
        self._payload: Literal["bytea", "text", "jsonb"] = payload
        self._url = _with_ends(database.replace("postgresql+psycopg://", "postgresql://", 1))
        self._limit = f"SET statement_timeout = {statement_timeout_ms:d}".encode()
        self._source = SqlEventSource(
            database,
            table=table,
            schema=schema,
            headers="headers",
            changed="id",
            settle_wait_ms=settle_wait_ms,
            statement_timeout_ms=statement_timeout_ms,
            pool_size=pool_size,
        )
        self._notifies = notifies
        self._keep = keep
        self._ear: psycopg.Connection[Any] | None = None
        self.prune_every_ms = (
            None if prune_every is None else max(1, int(prune_every.total_seconds() * 1_000))
        )
        self.retired = frozenset(retired)

    # --- the table -----------------------------------------------------------------------------

    def ddl(self) -> str:
        """The statements that make the table, to be put among your migrations. PostgreSQL 14 or
        newer; they may be repeated, and change nothing of a table that is there."""
        trigger = self._names.statement(TRIGGER) if self._notifies else ""
        return self._names.statement(TABLE, self._payload) + trigger

    def create(self) -> None:
        """Make the table, unless it is there. The user of the URL must be allowed to.

        Raises:
            Fatal: the database refuses; the message says what.
            Retry: it cannot be reached now.
        """
        with self._connected() as connection, connection.transaction():
            connection.execute(ONE_MAKER)
            connection.execute(self.ddl().encode())

    # --- an event source -----------------------------------------------------------------------

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `cape_stream.ports.source.EventSource`; raises as `SqlEventSource.fetch_many`."""
        return self._source.fetch_many(queries)

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """See `cape_stream.ports.source.EventSource`; raises as `fetch_many`."""
        return self._source.changed_since(watermark, limit)

    def check(self) -> None:
        """See `SqlEventSource.check`."""
        self._source.check()

    def close(self) -> None:
        """See `cape_stream.ports.source.EventSource`; to be called when nobody waits in `news`."""
        self._hang_up()
        self._source.close()

    # --- an outbox -----------------------------------------------------------------------------

    def news(self, timeout_ms: int) -> list[tuple[str, int]]:
        """See `cape_stream.ports.outbox.Outbox`."""
        if not self._notifies:
            return []
        newest: dict[str, int] = {}
        try:
            if self._ear is None:
                self._ear = psycopg.connect(self._url, autocommit=True)
                self._ear.execute(self._names.statement(LISTEN).encode())
            for notice in self._ear.notifies(timeout=timeout_ms / 1_000, stop_after=1):
                told = read_notice(notice.payload)
                if told is not None:
                    newest[told[0]] = max(told[1], newest.get(told[0], 0))
        except psycopg.Error as error:
            self._hang_up()
            raise Retry(f"cannot listen to {self._names.channel} now: {error}") from error
        return list(newest.items())

    def _hang_up(self) -> None:
        if self._ear is not None:
            with suppress(psycopg.Error):
                self._ear.close()
            self._ear = None

    def prune(self, done_through: Callable[[str], int]) -> int:
        """See `cape_stream.ports.outbox.Outbox`.

        Raises:
            Fatal: the database refuses.
            Retry: it cannot be reached now; what was deleted stays so.
        """
        pruned, after = 0, -1
        look, delete = (self._names.statement(text).encode() for text in (OLD_ROWS, DELETE))
        with self._connected() as connection:
            while True:
                rows = connection.execute(look, (after, self._keep, PRUNED_AT_A_TIME)).fetchall()
                done = [each for each, subject, at in rows if at <= done_through(subject)]
                if done:
                    pruned += connection.execute(delete, (done,)).rowcount
                if len(rows) < PRUNED_AT_A_TIME:
                    return pruned
                after = rows[-1][0]

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(self._limit)
                yield connection
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise Retry(f"the database of outbox {self._names.table} is away: {error}") from error
        except psycopg.Error as error:
            raise Fatal(f"the database refuses, outbox {self._names.table}: {error}") from error


def _with_ends(url: str) -> str:
    """The URL with `ENDS` where it does not say otherwise."""
    try:
        return make_conninfo(url, **{**ENDS, **conninfo_to_dict(url)})
    except psycopg.ProgrammingError as error:
        raise ValueError("the outbox's database URL cannot be read") from error


def read_notice(payload: str) -> tuple[str, int] | None:
    """(subject, sequence id) of a notice, or None: anybody may notify, and of anything."""
    number, _, subject = payload.partition(" ")
    try:
        return check_subject(subject), check_sequence(int(number), "sequence")
    except (BadSubjectError, BadSequenceError, ValueError):
        logger.warning("a notice that is none of an outbox: %.80r", payload)
        return None
