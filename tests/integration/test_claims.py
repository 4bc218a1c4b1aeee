"""Outputs that fit no record, through real processes."""

import signal
import time
from pathlib import Path

import pytest

from tests.integration import run_app
from tests.integration.staged_app import EVENTS_EACH, SUBJECTS

APP = "tests.integration.staged_app:app"


@pytest.mark.timeout(120)
def test_large_outputs_reach_the_next_lambda_though_the_process_is_killed(tmp_path: Path) -> None:
    claims = tmp_path / "claims"
    arguments = ("run", APP, "--data", str(tmp_path / "data"))
    settings = {"CAPE_WORKER_CLAIMS": f"file:{claims}"}
    for pause_s in (1.2, 1.8):
        process = run_app.start(tmp_path, *arguments, environment=settings)
        time.sleep(pause_s)
        run_app.end(process, signal.SIGKILL)
    process = run_app.start(tmp_path, *arguments, environment=settings)
    run_app.wait_for(tmp_path, ["line"], SUBJECTS * EVENTS_EACH, process)
    code, errors = run_app.end(process)

    # The first two may have done it all: then this one is stopped before it listens for signals.
    assert code in (0, -signal.SIGTERM), errors
    found = run_app.delivered(tmp_path, "line")
    assert {subject: run_app.jumps(each) for subject, each in found.items()} == {
        f"order-{number}": [] for number in range(SUBJECTS)
    }
    kept = [each for each in claims.rglob("*") if each.is_file() and each.name[0] != "."]
    assert len(kept) == SUBJECTS * EVENTS_EACH, "one claim an event, whatever was repeated"
