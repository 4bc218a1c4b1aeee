"""Cape jobs over SQS: dispatcher, publisher and processor as processes, on real servers."""

import asyncio
import uuid
from pathlib import Path

import pytest

from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from tests.integration import run_app
from tests.integration.test_roles_on_kafka import APP, apply_topics, on_kafka

__all__ = ["on_kafka"]
QUEUES = ("jobs", "ses-events", "ses-reputation", "email-send")


@pytest.fixture
def place(moto: SqsSettings) -> tuple[str, ...]:
    """Flags that name an SQS with the queues that a worker of the general pool needs."""
    prefix = f"j{uuid.uuid4().hex[:8]}-"

    async def create() -> None:
        server = SqsServer(moto)
        for name in QUEUES:
            await server.create(prefix + name)
        await server.close()

    asyncio.run(create())
    return ("--endpoint-url", moto.endpoint_url, "--prefix", prefix)


@pytest.mark.timeout(180)
def test_jobs_go_over_sqs_and_their_statuses_come_back_in_order(
    tmp_path: Path, on_kafka: str, place: tuple[str, ...]
) -> None:
    run_app.fill(tmp_path, subjects=10, events_each=6)
    apply_topics(tmp_path)

    processes = [
        run_app.start(tmp_path, "dispatcher", APP, "--data", str(tmp_path / "dispatcher")),
        run_app.start(tmp_path, "refresh", APP, "--data", str(tmp_path / "refresh")),
        run_app.start(tmp_path, "publisher", APP, "--publish", "general", *place),
        run_app.start(
            tmp_path,
            *("processor", "--pool", "general", "--app", APP, *place),
            *("--data", str(tmp_path / "processor")),
            *("--set", "processor.wait_s=1", "--set", "processor.grace_ms=8000"),
        ),
    ]
    run_app.wait_for(tmp_path, ["ledger", "audit"], 60, processes[0])
    codes = [run_app.end(process)[0] for process in reversed(processes)]

    assert codes == [0, 0, 0, 0]
    for topology in ("ledger", "audit"):
        found = run_app.delivered(tmp_path, topology)
        assert len(found) == 10
        assert all(sorted(set(each)) == list(range(6)) for each in found.values())
