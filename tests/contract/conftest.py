"""The two fixtures of the contract suites: `stage` for logs, `shelf` for tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.implementations import expect_what_is_declared
from tests.contract.log_implementations import LOGS, LogImplementation
from tests.contract.log_stage import Stage
from tests.contract.table_implementations import TABLES, TableImplementation, TableUnderTest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(word): asks more than the plain contract")


@pytest.fixture(params=LOGS)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """A log of every implementation, with the machinery to play members and producers on it."""
    implementation: LogImplementation = request.param
    expect_what_is_declared(request, implementation)
    with implementation.open(request, tmp_path) as under_test, Stage(under_test) as stage:
        yield stage


@pytest.fixture(params=TABLES)
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableUnderTest]:
    """A table of every implementation, with what a test may do to it from outside."""
    implementation: TableImplementation = request.param
    expect_what_is_declared(request, implementation)
    with implementation.open(tmp_path) as under_test:
        yield under_test
