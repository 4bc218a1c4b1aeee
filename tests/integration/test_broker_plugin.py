import subprocess
import sys
from pathlib import Path

from deploy.local.jars import PROJECT

SAMPLE = """
import pytest

def test_with_broker(kafka_bootstrap):
    pass

@pytest.mark.kafka
@pytest.mark.parametrize("number", [1, 2])
def test_with_marker(number):
    pass

def test_without():
    pass

def test_skipped_for_a_reason_of_its_own():
    pytest.skip("tired")
"""


def test_plugin_says_in_one_line_what_it_leaves_out_when_java_is_missing(tmp_path: Path) -> None:
    sample = tmp_path / "test_sample.py"
    sample.write_text(SAMPLE)
    options = [
        "-p",
        "tests.left_out",
        "-p",
        "tests.broker",
        "-ra",
        "--rootdir",
        str(tmp_path),
        "-c",
        "/dev/null",
    ]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(sample)],
        cwd=PROJECT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    about_java = [line for line in done.stdout.splitlines() if "java" in line]
    assert about_java == ["LEFT OUT: 3 tests on a real Kafka, because java is not on the PATH"]
    assert "1 passed, 1 skipped, 3 left out" in done.stdout
    assert done.returncode == 0
