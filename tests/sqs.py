"""Real SQS servers for tests: moto, which is always there, and ElasticMQ, which needs Java.

A test that uses `elasticmq` is marked `elasticmq` by itself. Where Java or Maven is missing those
tests are left out, and one line says so.
"""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from moto.server import ThreadedMotoServer

from cape_stream.adapters.sqs.settings import SqsSettings
from deploy.local.elasticmq import ElasticMQ
from deploy.local.jars import ELASTICMQ, FetchFailed, fetch_jars, missing_tool
from tests.left_out import NEEDS, Need

TIME_LIMIT_S = 120


@pytest.fixture(scope="session")
def aws_credentials() -> Iterator[None]:
    """Credentials that no AWS would take, and nothing of the machine's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.delenv("AWS_PROFILE", raising=False)
        yield


@pytest.fixture(scope="session")
def moto(aws_credentials: None) -> Iterator[SqsSettings]:
    """A moto that all tests of this session share: use names of your own."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield SqsSettings(endpoint_url=f"http://{host}:{port}")
    server.stop()


@pytest.fixture(scope="session")
def elasticmq(aws_credentials: None) -> Iterator[SqsSettings]:
    """An ElasticMQ that all tests of this session share: use names of your own."""
    with ElasticMQ() as server:
        yield SqsSettings(endpoint_url=server.endpoint_url)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "elasticmq" in getattr(item, "fixturenames", ()):
            item.add_marker("elasticmq")
        if _is_marked(item) and config.pluginmanager.hasplugin("timeout"):
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_S))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Fetches the jars before the first test, whose time limit should not pay for it."""
    needed = any(map(_is_marked, session.items))
    if needed and not session.config.option.collectonly and missing_tool(ELASTICMQ) is None:
        with suppress(FetchFailed):
            fetch_jars(ELASTICMQ)


def _is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker("elasticmq") is not None


NEEDS.append(Need("on ElasticMQ", _is_marked, lambda: missing_tool(ELASTICMQ)))
