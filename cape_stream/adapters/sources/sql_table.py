"""Which table and columns hold the events, and whether the database agrees.

Reads the database's own description of the table; knows nothing of queries or rows.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.engine import Engine, Inspector
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.types import (
    CHAR,
    JSON,
    DateTime,
    Integer,
    LargeBinary,
    String,
    TypeEngine,
)

from cape_stream.errors import Fatal

logger = logging.getLogger("cape_stream.sources")

ROWID = "rowid"
"""SQLite's own row number: no column that the database describes, and yet one to sweep by."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ColumnNames:
    """Names as the user gave them; None is a column the table does not have."""

    table: str
    schema: str | None
    subject: str
    sequence: str
    payload: str
    headers: str | None
    changed: str | None
    written: str | None

    def required(self) -> dict[str, str]:
        """Role → column name, of every column that must be there."""
        roles = ("subject", "sequence", "payload", "headers", "changed", "written")
        return {role: name for role in roles if (name := getattr(self, role)) is not None}


@dataclass(slots=True, frozen=True, kw_only=True)
class EventTable:
    """A table that was found fit to be read."""

    names: ColumnNames
    types: Mapping[str, TypeEngine[Any]]
    """Role → type of its column, as the database describes it."""

    def is_time(self, role: str) -> bool:
        """Is the column of that role a date and time? Otherwise it is an integer."""
        return isinstance(self.types[role], DateTime)

    @property
    def place_names(self) -> tuple[str, ...]:
        """The columns whose values in the last row of a sweep say where it stopped.

        Many rows may share a time; an integer to sweep by is each row's own.
        """
        names = self.names
        if names.changed is None:
            return (names.subject,)
        if self.is_time("changed"):
            return (names.changed, names.subject, names.sequence)
        return (names.changed,)

    @property
    def shown(self) -> str:
        """The table's name in messages."""
        names = self.names
        return f"{names.schema}.{names.table}" if names.schema else names.table


@dataclass(slots=True, frozen=True)
class Keys:
    """Columns of the table's keys, each in its order."""

    primary: list[str | None]
    unique: list[list[str | None]]
    plain: list[list[str | None]]
    """Those of indexes that are not unique."""


ALLOWED: Mapping[str, tuple[tuple[type[TypeEngine[Any]], ...], str]] = {
    "subject": ((String,), "text"),
    "sequence": ((Integer,), "an integer"),
    "payload": ((LargeBinary, String, JSON), "binary, text or JSON"),
    "headers": ((String, JSON), "text or JSON"),
    "changed": ((Integer, DateTime), "an integer or a date and time"),
    "written": ((Integer, DateTime), "an integer (Unix ms) or a date and time"),
}
"""Role → the column types it may have, and how to say that."""


def describe(engine: Engine, names: ColumnNames, settle_ms: int) -> EventTable:
    """Compare ``names`` with the database.

    Raises:
        Fatal: a table or column is missing or of a type that cannot play its role; the message
            names both and says what is there instead.
    """
    inspector = inspect(engine)
    columns = _columns(inspector, names)
    for role, name in names.required().items():
        _check_column(engine, names, role, name, columns)
    _check_subject(names, columns[names.subject])
    keys = _keys(inspector, names)
    _warn_without_index(inspector, names, keys)
    table = EventTable(
        names=names,
        types={
            role: columns[name]["type"] if name in columns else Integer()
            for role, name in names.required().items()
        },
    )
    if names.changed in columns:
        _check_changed(table, columns[names.changed], keys)
    if names.written is not None:
        _check_not_null(names, "written", columns[names.written])
    _check_settle_time(table, settle_ms)
    return table


def _columns(inspector: Inspector, names: ColumnNames) -> dict[str, ReflectedColumn]:
    try:
        found = inspector.get_columns(names.table, schema=names.schema)
    except NoSuchTableError as error:
        known = inspector.get_table_names(schema=names.schema)
        known += inspector.get_view_names(schema=names.schema)
        there = ", ".join(sorted(known)[:20]) or "none"
        raise Fatal(f"the database has no table {names.table}; its tables: {there}") from error
    return {column["name"]: column for column in found}


def _check_column(
    engine: Engine,
    names: ColumnNames,
    role: str,
    name: str,
    columns: Mapping[str, ReflectedColumn],
) -> None:
    if name not in columns:
        if role == "changed" and name == ROWID and engine.dialect.name == "sqlite":
            return
        raise Fatal(
            f"table {names.table} has no column {name} ({role}); its columns: {', '.join(columns)}"
        )
    types, wanted = ALLOWED[role]
    found = columns[name]["type"]
    if not isinstance(found, types):
        raise Fatal(f"column {names.table}.{name} ({role}) must be {wanted}, not {found!r}")


def _check_subject(names: ColumnNames, column: ReflectedColumn) -> None:
    if isinstance(column["type"], CHAR):
        raise Fatal(
            f"column {names.table}.{names.subject} (subject) must be text of varying length: "
            f"{column['type']!r} pads with spaces, and subjects are compared byte for byte"
        )


def _check_changed(table: EventTable, column: ReflectedColumn, keys: Keys) -> None:
    names = table.names
    if [column["name"]] == keys.primary:
        return
    _check_not_null(names, "changed", column)
    if table.is_time("changed") or [column["name"]] in keys.unique or _is_drawn(column):
        return
    raise Fatal(
        f"column {names.table}.{column['name']} (changed) must be unique or drawn from a sequence: "
        "a sweep that has passed a value would not see another row that gets it later"
    )


def _is_drawn(column: ReflectedColumn) -> bool:
    return "identity" in column or str(column["default"]).startswith("nextval(")


def _check_not_null(names: ColumnNames, role: str, column: ReflectedColumn) -> None:
    if column["nullable"]:
        raise Fatal(
            f"column {names.table}.{column['name']} ({role}) must be NOT NULL: "
            "a row without a value would never be delivered"
        )


def _check_settle_time(table: EventTable, settle_ms: int) -> None:
    names = table.names
    sweeps_by_time = names.changed is not None and table.is_time("changed")
    if sweeps_by_time and not settle_ms:
        raise Fatal(
            f"column {names.table}.{names.changed} (changed) is a time, which a transaction "
            "takes when it begins: name a settle_ms that exceeds the longest transaction"
        )
    if settle_ms and not sweeps_by_time and names.written is None:
        raise Fatal(f"settle_ms needs a column of {names.table} that says when a row was written")


def _keys(inspector: Inspector, names: ColumnNames) -> Keys:
    table, schema = names.table, names.schema
    primary: list[str | None] = []
    primary += inspector.get_pk_constraint(table, schema=schema)["constrained_columns"]
    indexes = inspector.get_indexes(table, schema=schema)
    constraints = inspector.get_unique_constraints(table, schema=schema)
    unique = [list(index["column_names"]) for index in indexes if index["unique"]]
    unique += [list(constraint["column_names"]) for constraint in constraints]
    plain = [list(index["column_names"]) for index in indexes if not index["unique"]]
    return Keys(primary, unique, plain)


def _warn_without_index(inspector: Inspector, names: ColumnNames, keys: Keys) -> None:
    if names.table in inspector.get_view_names(schema=names.schema):
        return
    wanted = [names.subject, names.sequence]
    if not any(key[:2] == wanted for key in [keys.primary, *keys.unique, *keys.plain]):
        logger.warning(
            "table %s has no index on (%s, %s): every event query reads the whole table",
            names.table,
            names.subject,
            names.sequence,
        )
