"""What the integration tests share: no process outlives its test."""

from collections.abc import Iterator

import pytest

from tests.integration import run_app


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """Kill whatever `run_app.start` started and the test did not end."""
    yield
    run_app.clean_up()
