"""The demo of the queues, small, as a process."""

import json
import subprocess
import sys

import pytest

from tests.tidy.tree import PROJECT


@pytest.mark.timeout(120)
def test_demo_delivers_every_verdict_once_and_its_drains_add_up() -> None:
    command = [sys.executable, "-m", "cape_stream.demos.queues", "--objects", "40", "--json"]

    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["objects"], result["delivered"], result["proved"]) == (40, 40, True)
    assert (result["infected"], result["personal_data"]) == (6, 8)
