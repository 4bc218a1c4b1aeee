"""Asks PostgreSQL: one statement for the pages of many subjects, and only settled rows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from cape_stream.adapters.sources.postgres_statements import (
    FITNESS,
    FOLLOWING,
    IS_OLD_ENOUGH,
    RUNNING,
    XID,
    pages_of_many,
    state_columns,
)
from cape_stream.adapters.sources.settling import Horizon, Sighting, full_xid, parse_snapshot
from cape_stream.adapters.sources.sql_rows import SEQUENCE, PageMaker, Standing
from cape_stream.adapters.sources.sql_statements import newest_of_subjects, relation, rows_changed
from cape_stream.adapters.sources.sql_table import EventTable
from cape_stream.adapters.sources.sql_watermark import Place
from cape_stream.errors import Fatal
from cape_stream.model.request import EventPage, EventQuery, QueryFault

FIRST_PAUSE_S = 0.001
WAITS_TO_SKIP = 20
"""After a wait that was in vain, how many of its lengths pass before a call waits again."""


@dataclass(slots=True, frozen=True)
class Settled:
    """How far rows may be handed out, as known before the statement that reads them."""

    boundary: int
    """Rows of transactions below are settled."""
    came_later: int
    """Rows of transactions from here on became visible after the call had begun."""
    because: str
    """What the rest waits for."""

    def standing_of(self, row: Sequence[Any]) -> Standing:
        """Judge one row."""
        xid = full_xid(row[XID], row[FOLLOWING])
        if xid >= self.came_later or not row[IS_OLD_ENOUGH]:
            return Standing.LATER
        return Standing.SETTLED if xid < self.boundary else Standing.HELD


class PostgresReader:
    """Asks one table of PostgreSQL. Thread-safe."""

    nul_allowed = False

    def __init__(
        self, engine: Engine, table: EventTable, *, settle_ms: int, settle_wait_ms: int
    ) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._table = table
        self._settle_wait_s = settle_wait_ms / 1_000
        self._waits_from_s = 0.0
        self._horizon = Horizon()
        self._maker = PageMaker(table, lambda subject: subject)
        self._oid = self._fit_oid()
        self._pages_statement = pages_of_many(table, settle_ms)
        self._sweeps = self._sweep_statements(settle_ms)

    def _fit_oid(self) -> int:
        names, prepare = self._table.names, self._engine.dialect.identifier_preparer
        path = [prepare.quote(each) for each in (names.schema, names.table) if each]
        with self._engine.connect() as connection:
            found = connection.execute(FITNESS, {"table": ".".join(path)}).one()
        oid, kind, is_standby = found
        if kind not in ("r", "p"):
            raise Fatal(
                f"{self._table.shown} is not a table: only the rows of tables tell which "
                "transaction wrote them, and without that a late one could be lost"
            )
        if is_standby:
            raise Fatal(
                f"{self._table.shown} is on a standby server, which does not show who is writing "
                "on the primary, so a late row could be lost; name the primary"
            )
        return int(oid)

    def _sweep_statements(self, settle_ms: int) -> dict[bool, sa.Select[Any]]:
        """Whether it is the first page → the statement."""
        rows = relation(self._table.names, "xmin")
        if self._table.names.changed is None:
            return {
                is_first: newest_of_subjects(self._table, rows, is_first=is_first)
                for is_first in (True, False)
            }
        roles = ("written", "changed") if self._table.is_time("changed") else ("written",)
        state = state_columns(self._table, rows, settle_ms, roles)
        time_type = self._table.types["changed"]
        return {
            is_first: rows_changed(self._table, rows, state, is_first=is_first, time_type=time_type)
            for is_first in (True, False)
        }

    def pages(self, queries: Sequence[EventQuery]) -> list[EventPage | QueryFault]:
        """Answer valid queries of any number of subjects."""
        with self._engine.connect() as connection:
            settled = self._settle(connection)
            return self._pages(connection, queries, settled)

    def _pages(
        self, connection: Connection, queries: Sequence[EventQuery], settled: Settled
    ) -> list[EventPage | QueryFault]:
        try:
            by_query = self._rows_of(connection, queries)
        except (OperationalError, InterfaceError):
            raise  # the database is away, not the row bad
        except DBAPIError as error:
            if len(queries) == 1:
                return [QueryFault(queries[0], f"the database refuses: {error.orig}")]
            # One row may be unreadable. Halving finds it and spares its neighbours.
            half = len(queries) // 2
            return self._pages(connection, queries[:half], settled) + self._pages(
                connection, queries[half:], settled
            )
        return [
            self._maker.page(query, rows, settled.standing_of, settled.because)
            for query, rows in zip(queries, by_query, strict=True)
        ]

    def _rows_of(
        self, connection: Connection, queries: Sequence[EventQuery]
    ) -> list[list[Sequence[Any]]]:
        result = connection.execute(
            self._pages_statement,
            {
                "subjects": [query.subject for query in queries],
                "starts": [query.start for query in queries],
                "limits": [query.limit for query in queries],
            },
        )
        by_query: list[list[Sequence[Any]]] = [[] for _ in queries]
        for row in result.fetchall():
            by_query[row[-1] - 1].append(row)
        for rows in by_query:
            rows.sort(key=_sequence_of)  # in order already, but SQL does not promise it
        return by_query

    def changes(self, after: Place, limit: int) -> list[Sequence[Any]]:
        """Rows behind ``after`` in the order of ``changed``, up to the first unsettled one."""
        with self._engine.connect() as connection:
            settled = self._settle(connection)
            rows = self._sweep(connection, after, limit)
        for number, row in enumerate(rows):
            if settled.standing_of(row) is not Standing.SETTLED:
                return rows[:number]
        return rows

    def newest(self, after: Place, limit: int) -> list[Sequence[Any]]:
        """(subject, highest sequence id) of the subjects behind ``after``.

        Settled or not: what is not visible yet will be in the next round.
        """
        with self._engine.connect() as connection:
            return self._sweep(connection, after, limit)

    def _sweep(self, connection: Connection, after: Place, limit: int) -> list[Sequence[Any]]:
        parameters = {f"after_{number}": value for number, value in enumerate(after)}
        statement = self._sweeps[not after]
        return list(connection.execute(statement, {**parameters, "row_limit": limit}).fetchall())

    def _settle(self, connection: Connection) -> Settled:
        """Wait, within the bound, until all that is visible now is settled."""
        now_s = time.monotonic()
        until_s = now_s + self._settle_wait_s if now_s >= self._waits_from_s else now_s
        boundary, first = self._look(connection)
        latest, pause_s = first, FIRST_PAUSE_S
        while boundary < first.next and time.monotonic() < until_s:
            time.sleep(pause_s)
            pause_s *= 2
            boundary, latest = self._look(connection)
        if boundary < first.next and until_s > now_s:
            self._waits_from_s = time.monotonic() + WAITS_TO_SKIP * self._settle_wait_s
        return Settled(boundary, first.next, self._reason(latest))

    def _look(self, connection: Connection) -> tuple[int, Sighting]:
        turn = self._horizon.begin()
        snapshot, writers = connection.execute(RUNNING, {"table_oid": self._oid}).one()
        oldest, following = parse_snapshot(snapshot)
        sighting = Sighting(oldest, following, frozenset(writers))
        return self._horizon.observe(turn, sighting), sighting

    def _reason(self, sighting: Sighting) -> str:
        if sighting.writers:
            writers = ", ".join(sorted(sighting.writers)[:3])
            return f"open transactions may yet add earlier rows to {self._table.shown}: {writers}"
        return f"transaction {sighting.oldest} is open and older than the row"


def _sequence_of(row: Sequence[Any]) -> Any:
    return row[SEQUENCE]
