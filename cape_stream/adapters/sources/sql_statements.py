"""The statements that both databases share, built once for a table.

A dialect adds its own columns at the end of every row: those that tell whether it is settled.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from cape_stream.adapters.sources.sql_table import ColumnNames, EventTable
from cape_stream.model.sequence import SEQUENCE_MAX

Columns = Sequence[sa.ColumnElement[Any]]


def relation(names: ColumnNames, *system_columns: str) -> sa.TableClause:
    """The table with the columns we use."""
    columns = dict.fromkeys([*names.required().values(), *system_columns])
    return sa.table(names.table, *map(sa.column, columns), schema=names.schema)


def event_columns(table: EventTable, rows: sa.FromClause) -> Columns:
    """Subject, sequence id, payload and headers, in the order of `sql_rows`."""
    names = table.names
    payload: sa.ColumnElement[Any] = rows.c[names.payload]
    if not isinstance(table.types["payload"], sa.LargeBinary):
        payload = sa.cast(payload, sa.Text)
    headers: sa.ColumnElement[Any] = sa.null()
    if names.headers is not None:
        headers = sa.cast(rows.c[names.headers], sa.Text)
    return [
        rows.c[names.subject].label("subject"),
        rows.c[names.sequence].label("sequence"),
        payload.label("payload"),
        headers.label("headers"),
    ]


def first_events(
    table: EventTable,
    rows: sa.FromClause,
    state: Columns,
    *,
    subject: sa.ColumnElement[Any],
    start: sa.ColumnElement[Any],
    limit: sa.ColumnElement[Any],
) -> sa.Select[Any]:
    """The first events of one subject from a sequence id on."""
    sequence = rows.c[table.names.sequence]
    return (
        sa.select(*event_columns(table, rows), *state)
        .where(rows.c[table.names.subject] == subject, sequence >= start)
        .order_by(sequence)
        .limit(limit)
    )


def rows_changed(
    table: EventTable,
    rows: sa.FromClause,
    state: Columns,
    *,
    is_first: bool,
    time_type: sa.types.TypeEngine[Any],
) -> sa.Select[Any]:
    """Rows in the order of ``changed`` behind the place in ``after_0``, ``after_1``, ….

    In the layout of `sql_rows`, with ``changed`` where the payload would be. A time is a text in
    a place, and becomes a ``time_type`` for the comparison.
    """
    order = [rows.c[name] for name in table.place_names]
    changed = rows.c[str(table.names.changed)]
    shown = sa.cast(changed, sa.Text) if table.is_time("changed") else changed
    statement = (
        sa.select(
            rows.c[table.names.subject].label("subject"),
            rows.c[table.names.sequence].label("sequence"),
            shown.label("changed"),
            sa.null().label("headers"),
            *state,
        )
        .order_by(*order)
        .limit(sa.bindparam("row_limit", type_=sa.BigInteger))
    )
    if is_first:
        return statement
    after = _after(table, time_type)
    if len(order) == 1:
        return statement.where(order[0] > after[0])
    # The first condition says no more than the second, but every planner can use it.
    return statement.where(order[0] >= after[0], sa.tuple_(*order) > sa.tuple_(*after))


def _after(table: EventTable, time_type: sa.types.TypeEngine[Any]) -> Columns:
    changed: sa.ColumnElement[Any] = sa.bindparam("after_0", type_=sa.BigInteger)
    if table.is_time("changed"):
        as_text = sa.bindparam("after_0", type_=sa.Text)
        changed = sa.cast(as_text, time_type)
    return [
        changed,
        sa.cast(sa.bindparam("after_1"), sa.Text),
        sa.bindparam("after_2", type_=sa.BigInteger),
    ]


def newest_of_subjects(
    table: EventTable, rows: sa.TableClause, *, is_first: bool, in_range: Columns = ()
) -> sa.Select[Any]:
    """Subjects behind ``after_0`` with their highest sequence id, by leaps through the index.

    A leap costs one look into the index however many events the subject has; a GROUP BY reads all
    of them. ``in_range`` are conditions on the subject column of ``rows``.
    """
    subject, sequence = table.names.subject, table.names.sequence
    start = sa.select(sa.func.min(rows.c[subject]).label("subject")).where(*in_range)
    if not is_first:
        after = sa.cast(sa.bindparam("after_0"), sa.Text)
        start = start.where(rows.c[subject] > after)
    found = start.cte("found", recursive=True)
    leap = (
        sa.select(sa.func.min(rows.c[subject]))
        .where(rows.c[subject] > found.c.subject, *in_range)
        .correlate(found)
        .scalar_subquery()
    )
    found = found.union_all(sa.select(leap).where(found.c.subject.is_not(None)))
    newest = (
        sa.select(sa.func.max(rows.c[sequence]))
        .where(rows.c[subject] == found.c.subject)
        .where(rows.c[sequence] >= 0, rows.c[sequence] <= SEQUENCE_MAX)
        .correlate(found)
        .scalar_subquery()
    )
    return (
        sa.select(found.c.subject, newest.label("newest"))
        .where(found.c.subject.is_not(None))
        .limit(sa.bindparam("row_limit", type_=sa.BigInteger))
    )
