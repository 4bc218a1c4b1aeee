"""`cape run` when something is broken: state, log, source, handler."""

import signal
import subprocess
from pathlib import Path

import pytest

from cape_stream.adapters.rocksdb import RocksTable
from tests.integration import run_app

APP = "tests.integration.run_app:app"
PARTITIONS = 4


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line the process prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def deliver(folder: Path, events_each: int) -> tuple[int, str]:
    """Run until every event so far is delivered, then stop: the exit code and what was said."""
    process = run_app.start(folder, "run", APP, "--data", str(folder / "data"))
    run_app.wait_for(folder, ["ledger", "audit"], 10 * events_each, process)
    return run_app.end(process)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which a run has delivered one event of each of ten subjects; a second one waits
    in the source."""
    run_app.fill(tmp_path, subjects=10, events_each=1)
    assert deliver(tmp_path, 1)[0] == 0
    run_app.fill(tmp_path, subjects=10, events_each=1, first=1)
    return tmp_path


def assert_in_order(folder: Path) -> None:
    """Every subject has had its two events, once each."""
    for topology in ("ledger", "audit"):
        assert set(map(tuple, run_app.delivered(folder, topology).values())) == {(0, 1)}


def test_run_restores_the_state_when_a_row_of_it_does_not_decode(folder: Path) -> None:
    table = RocksTable(folder / "data" / "state" / "runs")
    for number in range(PARTITIONS):
        task = f"orders-{number}"
        position = table.position(task)
        rows = {key: b"garbage" for key, _ in table.scan(task, b"c")}
        assert position is not None
        table.write(task, dict(rows), position)
    table.close()

    code, errors = deliver(folder, 2)

    assert code == 0
    assert errors.count("restoring the tasks from their changelogs") == 1
    assert_in_order(folder)


def test_run_wipes_a_damaged_state_store_and_goes_on(folder: Path) -> None:
    for manifest in (folder / "data" / "state" / "runs").glob("MANIFEST-*"):
        manifest.unlink()

    code, errors = deliver(folder, 2)

    assert code == 0
    assert "the state comes back from the changelog" in errors
    assert_in_order(folder)


def test_run_goes_on_from_its_log_when_the_state_is_gone(folder: Path) -> None:
    subprocess.run(["rm", "-r", str(folder / "data" / "state")], check=True)

    code, _ = deliver(folder, 2)

    assert code == 0
    assert_in_order(folder)


def test_run_stops_and_says_what_to_do_when_the_log_is_damaged(folder: Path) -> None:
    for manifest in (folder / "data" / "log").glob("MANIFEST-*"):
        manifest.unlink()

    process = run_app.start(folder, "run", APP, "--data", str(folder / "data"))
    _, errors = process.communicate(timeout=30)

    assert process.returncode == 1
    assert f"{folder / 'data' / 'log'} is damaged" in errors
    assert "remove it to begin anew from the event sources" in errors
    assert "Traceback" not in errors


def test_run_names_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")

    process = run_app.start(tmp_path, "run", APP, "--data", str(tmp_path / "data"))
    _, errors = process.communicate(timeout=30)

    assert process.returncode == 1
    assert str(tmp_path / "data") in errors
    assert "Traceback" not in errors


def test_run_stops_in_good_order_although_a_source_never_answers(tmp_path: Path) -> None:
    process = run_app.start(
        tmp_path, "run", "tests.integration.fault_app:hanging_sweep", "--data", str(tmp_path / "d")
    )
    assert line_of(process) == "sweep hangs\n"

    code, errors = run_app.end(process)

    assert code == 0
    assert "stopped" in errors


def test_run_gives_back_the_job_of_a_handler_that_hangs_and_stops(tmp_path: Path) -> None:
    arguments = (
        "run",
        "tests.integration.fault_app:hanging_handler",
        "--data",
        str(tmp_path / "d"),
    )
    process = run_app.start(tmp_path, *arguments, "--set", "worker.grace_ms=100")
    assert line_of(process) == "handler hangs\n"
    code, _ = run_app.end(process)

    again = run_app.start(tmp_path, *arguments, "--set", "worker.grace_ms=100")
    reissued = line_of(again)

    assert code == 0
    assert reissued == "handler hangs\n"
    assert run_app.end(again)[0] == 0


def test_run_ends_at_once_when_it_is_asked_twice(tmp_path: Path) -> None:
    arguments = (
        "run",
        "tests.integration.fault_app:hanging_handler",
        "--data",
        str(tmp_path / "d"),
    )
    process = run_app.start(tmp_path, *arguments, "--set", "worker.grace_ms=600000")
    assert line_of(process) == "handler hangs\n"

    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    code, _ = run_app.end(process, signal.SIGINT)

    assert code == 128 + signal.SIGINT


def test_run_outlives_a_handler_that_wants_to_leave_the_program(tmp_path: Path) -> None:
    process = run_app.start(
        tmp_path, "run", "tests.integration.fault_app:bad_handler", "--data", str(tmp_path / "d")
    )

    attempts = [line_of(process), line_of(process)]

    assert attempts == [f"attempt {number} in {process.pid}\n" for number in (1, 2)]
    assert run_app.end(process)[0] == 0
