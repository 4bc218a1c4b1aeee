"""Each role as a process of its own, on a real broker."""

import os
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.integration import run_app

APP = "tests.integration.run_app:app"


@pytest.fixture
def on_kafka(kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An App name nobody has used on the broker; processes find it in the environment."""
    name = f"runs-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("RUN_APP_NAME", name)
    monkeypatch.setenv("CAPE_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    return name


def apply_topics(folder: Path) -> None:
    process = run_app.start(folder, "topics", "apply", APP)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


@pytest.mark.timeout(120)
def test_roles_as_processes_deliver_everything_in_order_though_nobody_pings(
    tmp_path: Path, on_kafka: str
) -> None:
    run_app.fill(tmp_path, subjects=40, events_each=10)
    apply_topics(tmp_path)

    processes = [
        run_app.start(tmp_path, role, APP, "--data", str(tmp_path / role))
        for role in ("dispatcher", "worker", "refresh")
    ]
    run_app.wait_for(tmp_path, ["ledger", "audit"], 400, processes[0])
    codes = [run_app.end(process)[0] for process in reversed(processes)]

    assert codes == [0, 0, 0]
    for topology in ("ledger", "audit"):
        found = run_app.delivered(tmp_path, topology)
        assert len(found) == 40
        assert all(sorted(each) == list(range(10)) for each in found.values())
    assert all(each == list(range(10)) for each in run_app.delivered(tmp_path, "ledger").values())


@pytest.mark.timeout(120)
def test_dispatcher_refuses_to_go_on_when_the_ping_topic_grows(
    tmp_path: Path, on_kafka: str
) -> None:
    run_app.fill(tmp_path, subjects=20, events_each=1)
    apply_topics(tmp_path)
    helpers = [run_app.start(tmp_path, role, APP) for role in ("worker", "refresh")]
    dispatcher = run_app.start(
        tmp_path,
        *("dispatcher", APP, "--data", str(tmp_path / "data")),
        *("--set", "process.partition_check_interval_ms=500"),
    )
    run_app.wait_for(tmp_path, ["ledger"], 20, dispatcher)

    admin = AdminClient({"bootstrap.servers": os.environ["CAPE_KAFKA_BOOTSTRAP_SERVERS"]})
    pings = f"{on_kafka}.orders.pings"
    admin.create_partitions([NewPartitions(pings, 6)])[pings].result(30)
    _, errors = dispatcher.communicate(timeout=60)
    again = run_app.start(tmp_path, "dispatcher", APP, "--data", str(tmp_path / "data"))
    _, errors_again = again.communicate(timeout=60)

    assert dispatcher.returncode == 1
    assert f"{pings} has 6 partitions where 4 are wanted" in errors
    assert "Traceback" not in errors
    assert again.returncode == 1
    assert f"{pings} has 6 partitions where 4 are wanted" in errors_again
    assert [run_app.end(process)[0] for process in helpers] == [0, 0]


@pytest.mark.timeout(120)
def test_refresh_is_taken_over_when_its_leader_is_killed(tmp_path: Path, on_kafka: str) -> None:
    run_app.fill(tmp_path, subjects=5, events_each=1)
    apply_topics(tmp_path)
    serving = [
        run_app.start(tmp_path, role, APP, "--data", str(tmp_path / role))
        for role in ("dispatcher", "worker")
    ]
    first = run_app.start(tmp_path, "refresh", APP)
    run_app.wait_for(tmp_path, ["ledger"], 5, first)
    second = run_app.start(tmp_path, "refresh", APP)

    first.kill()
    run_app.fill(tmp_path, subjects=5, events_each=1, first=1)
    run_app.wait_for(tmp_path, ["ledger", "audit"], 10, second)

    assert [run_app.end(process)[0] for process in (second, *serving)] == [0, 0, 0]
