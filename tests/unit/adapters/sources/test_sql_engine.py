"""Database URLs that are refused, each with a message that says what to do."""

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.adapters.sources.sql_engine import open_engine
from cape_stream.errors import Retry


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("mysql://host/db", "SQLite or PostgreSQL, not in mysql"),
        ("no url", "cannot be read"),
    ],
)
def test_source_refuses_a_database_it_cannot_read(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SqlEventSource(url)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_engine_for_postgres_uses_psycopg_whatever_the_scheme(scheme: str) -> None:
    engine = open_engine(f"{scheme}://u:p@h/d?connect_timeout=3", statement_timeout_ms=7, size=1)

    assert engine.url.drivername == "postgresql+psycopg"
    assert engine.url.query["connect_timeout"] == "3"
    assert engine.url.query["tcp_user_timeout"] == "14"


def test_source_makes_no_database_of_a_misspelt_path(tmp_path: Path) -> None:
    path = tmp_path / "misspelt.db"
    source = SqlEventSource(f"sqlite:///{path}")

    with pytest.raises(Retry, match="events"):
        source.check()

    assert not path.exists()


def test_source_takes_an_url_object() -> None:
    source = SqlEventSource(make_url("sqlite:///some.db"))
    source.close()


def test_source_refuses_written_without_a_settle_time() -> None:
    with pytest.raises(ValueError, match="settle_ms"):
        SqlEventSource("sqlite:///some.db", written="at")
