"""The SQL of an outbox: its table, the trigger that notifies, what is pruned."""

import re
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from cape_stream.model.subject import SUBJECT_BYTES_MAX

NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}", re.ASCII)
PAYLOAD_TYPES = ("bytea", "text", "jsonb")

TABLE: LiteralString = """\
CREATE TABLE IF NOT EXISTS {table} (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject TEXT COLLATE "C" NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND {subject_bytes}),
    sequence BIGSERIAL CHECK (sequence >= 0),
    payload {payload} NOT NULL,
    headers JSONB,
    written TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} (subject, sequence);
"""

TRIGGER: LiteralString = """\
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $cape$
BEGIN
    PERFORM pg_notify({channel}, max(sequence) || ' ' || subject)
    FROM (SELECT subject, sequence FROM added LIMIT {told_max}) AS told GROUP BY subject;
    RETURN NULL;
END $cape$;
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table}
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION {function}();
"""

TOLD_MAX = 1_000
"""Rows of one statement that are notified of; refresh finds the others, and a bulk load does not
fill the server's queue of notifications."""

OLD_ROWS: LiteralString = """\
SELECT id, subject, sequence FROM {table}
WHERE id > %s AND written < now() - %s ORDER BY id LIMIT %s"""
DELETE: LiteralString = "DELETE FROM {table} WHERE id = ANY(%s)"
LISTEN: LiteralString = "LISTEN {channel_name}"
ONE_MAKER: LiteralString = "SELECT pg_advisory_xact_lock(7226420134)"
"""Two processes that create the same table at the same moment would fail one another."""


@dataclass(slots=True, frozen=True)
class OutboxNames:
    """Where an outbox lies.

    Raises:
        ValueError: a name that is not lower-case letters, digits and underscores, at most 40.
    """

    table: str
    schema: str | None

    def __post_init__(self) -> None:
        for name in (self.table, self.schema or "x"):
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"an outbox cannot be named {name!r}: at most 40 lower-case letters, digits"
                    " and underscores, not beginning with a digit"
                )

    @property
    def channel(self) -> str:
        """What its trigger notifies on; one for each table of the database."""
        return f"cape_{self.schema}_{self.table}" if self.schema else f"cape_{self.table}"

    def statement(self, text: LiteralString, payload: LiteralString = "bytea") -> str:
        """A statement of this module, with the names in it."""
        path = (self.schema, self.table) if self.schema else (self.table,)
        function = (*path[:-1], f"{self.table}_notify")
        return (
            sql.SQL(text)
            .format(
                table=sql.Identifier(*path),
                index=sql.Identifier(f"{self.table}_subject_sequence"),
                function=sql.Identifier(*function),
                trigger=sql.Identifier(f"{self.table}_notify"),
                channel=sql.Literal(self.channel),
                channel_name=sql.Identifier(self.channel),
                subject_bytes=sql.Literal(SUBJECT_BYTES_MAX),
                told_max=sql.Literal(TOLD_MAX),
                payload=sql.SQL(payload),
            )
            .as_string(None)
        )
