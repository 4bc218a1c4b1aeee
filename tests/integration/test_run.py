"""`cape run` as a process: killed at any moment, stopped in good order, started twice."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.integration import run_app

APP = "tests.integration.run_app:app"
KILLS = 8
KILLS_AT_WORK = 3
"""So many kills at least must have met it between its first event and its last."""


@pytest.mark.timeout(240)
def test_run_loses_and_reorders_nothing_when_it_is_killed_again_and_again(tmp_path: Path) -> None:
    subjects, events_each = 60, 40
    run_app.fill(tmp_path, subjects, events_each)
    arguments = ("run", APP, "--data", str(tmp_path / "data"), "--concurrency", "4", "--quiet")
    slow = {"RUN_APP_EVENT_WORK_S": "0.005"}
    dice = random.Random(seed := random.randrange(1_000_000))
    print(f"seed {seed}")

    at_kills = []
    for _ in range(KILLS):
        process = run_app.start(tmp_path, *arguments, environment=slow)
        assert process.stderr is not None
        assert "Ctrl-C stops" in process.stderr.readline()
        time.sleep(dice.uniform(0.0, 1.2))
        assert process.poll() is None, process.communicate()[1]
        run_app.end(process, signal.SIGKILL)
        at_kills.append(len(run_app.executions(tmp_path, "ledger")))
    assert len({count for count in at_kills if 0 < count < subjects * events_each}) >= KILLS_AT_WORK
    process = run_app.start(tmp_path, *arguments)
    run_app.wait_for(tmp_path, ["ledger", "audit"], subjects * events_each, process)
    code, errors = run_app.end(process)

    assert code == 0, errors
    for topology in ("ledger", "audit"):
        found = run_app.delivered(tmp_path, topology)
        assert len(found) == subjects
        assert all(set(each) == set(range(events_each)) for each in found.values())
    orders = run_app.delivered(tmp_path, "ledger")
    assert {subject: run_app.jumps(each) for subject, each in orders.items()} == {
        subject: [] for subject in orders
    }


def test_jumps_sees_an_event_that_came_too_early_and_forgives_a_repeat() -> None:
    assert run_app.jumps([0, 1, 3, 2]) == [(1, 3)]
    assert run_app.jumps([1]) == [(-1, 1)]
    assert run_app.jumps([0, 1, 2, 1, 2, 3]) == []


def test_run_delivers_what_was_never_pinged_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    run_app.fill(tmp_path, subjects=20, events_each=3)
    arguments = ("run", APP, "--data", str(tmp_path / "data"))

    process = run_app.start(tmp_path, *arguments)
    run_app.wait_for(tmp_path, ["ledger", "audit"], 60, process)
    first_code, first_errors = run_app.end(process)
    run_app.fill(tmp_path, subjects=20, events_each=2, first=3)
    process = run_app.start(tmp_path, *arguments)
    run_app.wait_for(tmp_path, ["ledger", "audit"], 100, process)
    second_code, _ = run_app.end(process, signal.SIGINT)

    assert (first_code, second_code) == (0, 0)
    assert "stopped; 120 events done" in first_errors
    assert all(
        each == [0, 1, 2, 3, 4]
        for topology in ("ledger", "audit")
        for each in run_app.delivered(tmp_path, topology).values()
    )


def test_run_refuses_a_folder_that_is_in_use_and_leaves_its_user_alone(tmp_path: Path) -> None:
    run_app.fill(tmp_path, subjects=5, events_each=1)
    arguments = ("run", APP, "--data", str(tmp_path / "data"))
    first = run_app.start(tmp_path, *arguments)
    run_app.wait_for(tmp_path, ["ledger"], 5, first)

    second = run_app.start(tmp_path, *arguments)
    _, errors = second.communicate(timeout=30)
    run_app.fill(tmp_path, subjects=5, events_each=1, first=1)
    run_app.wait_for(tmp_path, ["ledger"], 10, first)
    code, _ = run_app.end(first)

    assert second.returncode == 1
    assert str(tmp_path / "data") in errors
    assert "in use by another process" in errors
    assert "Traceback" not in errors
    assert code == 0


def test_run_starts_at_once_after_a_kill_left_its_locks_behind(tmp_path: Path) -> None:
    run_app.fill(tmp_path, subjects=5, events_each=1)
    arguments = ("run", APP, "--data", str(tmp_path / "data"))
    first = run_app.start(tmp_path, *arguments)
    run_app.wait_for(tmp_path, ["ledger"], 5, first)
    run_app.end(first, signal.SIGKILL)
    run_app.fill(tmp_path, subjects=5, events_each=1, first=1)

    second = run_app.start(tmp_path, *arguments)
    run_app.wait_for(tmp_path, ["ledger", "audit"], 10, second)

    assert run_app.end(second)[0] == 0
