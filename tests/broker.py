"""Real Kafka brokers for tests: two fixtures, and one visible line where there can be none.

A test that uses `kafka_bootstrap` or `kafka_broker` is marked `kafka` by itself; a test that starts
its own brokers says `pytest.mark.kafka`. Where Java or Maven is missing those tests are left out.
Loaded after `tests.left_out`, as in `python -m pytest -p tests.left_out -p tests.broker`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from deploy.local.broker import FetchFailed, LocalBroker, fetch_jars, missing_tool
from tests.left_out import NEEDS, Need

FIXTURES = {"kafka_bootstrap", "kafka_broker"}
TIME_LIMIT_S = 240
"""Of a test with a broker, whose start takes 4 s on an idle machine and 20 s on a crowded one."""


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """The address of a broker that all tests of this session share: use topics of your own."""
    with LocalBroker() as broker:
        yield broker.bootstrap


@pytest.fixture
def kafka_broker() -> Iterator[LocalBroker]:
    """A fresh broker for one test, to be stopped, killed and paused at will."""
    with LocalBroker() as broker:
        yield broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kafka: needs a real broker, so Java and Maven")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")
        own_limit = item.get_closest_marker("timeout")
        if config.pluginmanager.hasplugin("timeout") and not own_limit and _is_marked(item):
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_S))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Fetches the jars before the first test, whose time limit should not pay for it."""
    needed = any(map(_is_marked, session.items))
    if needed and not session.config.option.collectonly and missing_tool() is None:
        with suppress(FetchFailed):  # the tests fail with it one by one, the others run
            fetch_jars()


def _is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker("kafka") is not None


NEEDS.append(Need("on a real Kafka", _is_marked, missing_tool))
