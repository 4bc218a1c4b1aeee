"""The two tables, and how values become rows and come back."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    MetaData,
    Select,
    Table,
    Text,
    UniqueConstraint,
    func,
    select,
)

from cape_stream.ports.deliveries import DeliveryEvent, ReputationSignal

TABLES = MetaData()

DELIVERY = Table(
    "cape_delivery",
    TABLES,
    Column("message_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("recipient", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("feedback_id", Text),
    Column("occurrence", BigInteger, nullable=False),
    Column("detail", Text, nullable=False),
    Column("is_certain", Boolean, nullable=False),
    UniqueConstraint("message_id", "kind", "recipient", "occurrence"),
    UniqueConstraint("feedback_id", "recipient"),
)

SIGNAL = Table(
    "cape_reputation_signal",
    TABLES,
    Column("account", Text, nullable=False),
    Column("alarm", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("threshold", Float(53)),
    Column("at_ms", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    UniqueConstraint("account", "alarm", "state", "at_ms"),
)


def event_rows(events: Sequence[DeliveryEvent]) -> list[dict[str, Any]]:
    """Rows in one order for everybody, so that two writers of the same ones cannot deadlock."""
    rows = [{column.name: getattr(each, column.name) for column in DELIVERY.c} for each in events]
    return sorted(rows, key=lambda row: [row[name] for name in ("message_id", "kind", "recipient")])


def event_of(row: Any) -> DeliveryEvent:
    """The event of a row."""
    return DeliveryEvent(**row._mapping)


def signal_row(signal: ReputationSignal) -> dict[str, Any]:
    """The row of a signal."""
    return {column.name: getattr(signal, column.name) for column in SIGNAL.c}


def signal_of(row: Any) -> ReputationSignal:
    """The signal of a row."""
    return ReputationSignal(**{column.name: row._mapping[column.name] for column in SIGNAL.c})


def history_of(message_id: str) -> Select[Any]:
    """Everything known of a mail, by time."""
    return (
        select(DELIVERY)
        .where(DELIVERY.c.message_id == message_id)
        .order_by(DELIVERY.c.at_ms, DELIVERY.c.recipient, DELIVERY.c.kind)
    )


def newest_of(account: str | None) -> Select[Any]:
    """The newest signal of each alarm. Of two of one moment the alarm counts: a mail too few is
    mended by the next signal, a mail too many is not."""
    age = func.row_number().over(
        partition_by=(SIGNAL.c.account, SIGNAL.c.alarm),
        order_by=(SIGNAL.c.at_ms.desc(), SIGNAL.c.state),
    )
    ranked = select(SIGNAL, age.label("age"))
    if account is not None:
        ranked = ranked.where(SIGNAL.c.account == account)
    found = ranked.subquery()
    return select(found).where(found.c.age == 1).order_by(found.c.account, found.c.alarm)
