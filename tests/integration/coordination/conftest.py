from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from tests.integration.coordination.pods import OpenPod, Pod
from tests.valkey import World

FOLDER = Path(__file__).parent
CALL_TIMEOUT_MS = 10_000
"""Long, for a crowded machine; a test that waits for it sets a shorter one."""

TEST_TIMEOUT_S = 180
"""More than one `eventually`, and the start of a Python process on a crowded machine."""

OpenStore = Callable[..., Store]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == FOLDER and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture
def open_store(valkey: World) -> Iterator[OpenStore]:
    """Opens stores, which are closed after the test: of the session's server if none is named."""
    opened: list[Store] = []

    def open_one(url: str = "", **more: object) -> Store:
        given: dict[str, Any] = {"prefix": valkey.prefix, "call_timeout_ms": CALL_TIMEOUT_MS}
        store = Store(ValkeySettings(url=url or valkey.url, **(given | more)))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """A store on the session's server, with a prefix of its own."""
    return open_store()


@pytest.fixture
def open_pod(open_store: OpenStore) -> Iterator[OpenPod]:
    opened: list[Pod] = []

    def open_one(url: str = "", **settings: Any) -> Pod:
        pod = Pod(open_store(url), **settings)
        opened.append(pod)
        return pod

    yield open_one
    for pod in opened:
        pod.listener.close()
