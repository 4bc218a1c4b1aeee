"""What is asked of PostgreSQL alone: who is writing, and the pages of many subjects at once."""

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from cape_stream.adapters.sources.sql_rows import STATE
from cape_stream.adapters.sources.sql_statements import Columns, first_events, relation
from cape_stream.adapters.sources.sql_table import EventTable

XID, FOLLOWING, IS_OLD_ENOUGH = STATE, STATE + 1, STATE + 2
"""Positions in a row: the transaction that wrote it (32 bits), the id after all that have ended
(64 bits), and whether the settle time has passed."""

RUNNING = sa.text(
    """
WITH RECURSIVE part (oid) AS (
    SELECT CAST(:table_oid AS oid)
    UNION ALL
    SELECT heir.inhrelid FROM part JOIN pg_inherits heir ON heir.inhparent = part.oid
), watched (oid) AS (
    SELECT oid FROM part
    UNION ALL
    SELECT objid FROM pg_depend
    WHERE classid = 'pg_class'\\:\\:regclass AND refclassid = 'pg_class'\\:\\:regclass
      AND refobjid = CAST(:table_oid AS oid) AND deptype IN ('a', 'i')
)
SELECT CAST(pg_current_snapshot() AS text), ARRAY(
    SELECT held.virtualtransaction || ' (pid ' || coalesce(CAST(held.pid AS text), 'none') || ')'
    FROM pg_locks held JOIN watched ON watched.oid = held.relation
    WHERE held.locktype = 'relation' AND held.granted
      AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND held.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                        'AccessExclusiveLock')
)
"""
)
"""The running transactions, and who holds a lock that lets him add rows: on the table, on a part of
it, or on a sequence it owns. Sequences count since an id may be drawn before the INSERT. The
locks are read after the snapshot was taken, as `settling` asks for."""

FITNESS = sa.text(
    """
SELECT CAST(to_regclass(:table) AS oid),
       (SELECT CAST(relkind AS text) FROM pg_class WHERE oid = to_regclass(:table)),
       pg_is_in_recovery()
"""
)
"""The table's oid and kind, and whether this is a standby."""


def pages_of_many(table: EventTable, settle_ms: int) -> sa.Select[Any]:
    """First events of each of the subjects in ``subjects``, ``starts`` and ``limits``.

    The last column is the number of the query, from 1.
    """
    rows = relation(table.names, "xmin")
    asked = (
        sa.func.unnest(
            sa.bindparam("subjects", type_=postgresql.ARRAY(sa.Text)),
            sa.bindparam("starts", type_=postgresql.ARRAY(sa.BigInteger)),
            sa.bindparam("limits", type_=postgresql.ARRAY(sa.BigInteger)),
        )
        .table_valued("subject", "start", "row_limit", with_ordinality="number", name="asked")
        .render_derived()
    )
    page = first_events(
        table,
        rows,
        state_columns(table, rows, settle_ms, roles=("written",)),
        subject=asked.c.subject,
        start=asked.c.start,
        limit=asked.c.row_limit,
    ).lateral("page")
    return sa.select(*page.c, asked.c.number).select_from(asked.join(page, sa.true()))


def state_columns(
    table: EventTable, rows: sa.FromClause, settle_ms: int, roles: tuple[str, ...]
) -> Columns:
    """What says of a row whether it is settled; ``roles`` are the time columns that count."""
    following = sa.cast(sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot()), sa.Text)
    xmin = sa.cast(sa.cast(rows.c.xmin, sa.Text), sa.BigInteger)
    old = [
        _is_before(rows.c[name], settle_ms, is_time=table.is_time(role))
        for role in roles
        if (name := table.names.required().get(role)) is not None
    ]
    return [
        xmin.label("xid"),
        sa.cast(following, sa.BigInteger).label("following"),
        sa.and_(sa.true(), *old).label("is_old_enough"),
    ]


def _is_before(
    column: sa.ColumnElement[Any], settle_ms: int, *, is_time: bool
) -> sa.ColumnElement[bool]:
    """Is a time older than the settle time, by the database's clock?"""
    if is_time:
        return column <= sa.func.now() - sa.literal(
            timedelta(milliseconds=settle_ms), postgresql.INTERVAL
        )
    now_ms = sa.extract("epoch", sa.func.now()) * 1_000
    return column <= now_ms - settle_ms
