"""Delivery tracking in a SQL database: a SQLite file for one machine, PostgreSQL for a fleet."""

from cape_stream.adapters.deliveries_sql.store import SqlDeliveries

__all__ = ["SqlDeliveries"]
