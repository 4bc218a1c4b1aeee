"""Commands that do one thing, on the embedded log, and what they say when they cannot."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cape_stream.adapters.embedded import EmbeddedLog, EmbeddedSettings
from cape_stream.ports.log import TopicPartition
from tests.integration import run_app

APP = "tests.integration.run_app:app"
NO_KAFKA = ["--kafka", "127.0.0.1:9", "--set", "kafka.request_timeout_ms=500"]
NO_KAFKA += ["--set", "process.log_patience_ms=1000"]


def cape(
    folder: Path, *arguments: str, stdin: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    process = run_app.start(folder, *arguments, environment=environment)
    out, err = process.communicate(stdin, timeout=50)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def test_topics_are_planned_then_applied_then_found_as_they_must_be(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))

    plan = cape(tmp_path, "topics", "plan", APP, *data)
    early = cape(tmp_path, "topics", "check", APP, *data)
    apply = cape(tmp_path, "topics", "apply", APP, *data, "--json")
    check = cape(tmp_path, "topics", "check", APP, *data)
    again = cape(tmp_path, "topics", "apply", APP, *data, "--json")

    assert plan.returncode == 0
    assert "runs.orders.pings: missing, 4 partitions wanted" in plan.stdout
    assert early.returncode == 1
    found = json.loads(apply.stdout)
    assert apply.returncode == 0
    assert found["complete"]
    assert {"runs.orders.pings", "runs.refresh", "runs.jobs.general.backlog"} <= set(
        found["created"]
    )
    assert check.returncode == 0
    assert "runs.refresh: ok, 1 partitions" in check.stdout
    assert json.loads(again.stdout)["created"] == []


def test_topics_check_says_both_numbers_when_the_app_has_another_one(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    cape(tmp_path, "topics", "apply", APP, *data)
    wider = {"RUN_APP_PARTITIONS": "6"}

    check = cape(tmp_path, "topics", "check", APP, *data, environment=wider)
    run = cape(tmp_path, "run", APP, *data, environment=wider)

    assert check.returncode == 1
    assert "runs.orders.pings: has 4 partitions where 6 are wanted" in check.stdout
    assert run.returncode == 1
    assert "runs.orders.pings has 4 partitions where 6 are wanted" in run.stderr
    assert "Traceback" not in run.stderr


def test_ping_takes_many_subjects_and_names_the_lines_it_refuses(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    cape(tmp_path, "topics", "apply", APP, *data)
    lines = f"order-1\norder-2\t7\n\norder-3\tx\norder-4\t-1\n{'y' * 1_025}\nmit Leerzeichen\n"

    told = cape(tmp_path, "ping", APP, "orders", "--stdin", "--json", *data, stdin=lines)

    outcome = json.loads(told.stdout)
    assert told.returncode == 1
    assert (outcome["sent"], outcome["lost"]) == (3, 0)
    assert outcome["refused"] == [
        "line 3: subject is empty",
        "line 4: latest must be a whole number, not 'x'",
        "line 5: latest is negative: -1",
        "line 6: subject has 1025 bytes, more than 1024",
    ]


def test_ping_reads_subjects_byte_for_byte_whatever_the_locale(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    cape(tmp_path, "topics", "apply", APP, *data)
    lines = "caf\u00e9\ncafe\u0301\r\na\rb\n \na\tb\t7\n".encode() + b"\xff\xfe\n"
    strict = {"PYTHONIOENCODING": "ascii:strict"}

    command = [sys.executable, "-m", "cape_stream", "ping", APP, "orders", "--stdin", *data]
    told = subprocess.run(
        command, cwd=run_app.PROJECT, input=lines, env={**os.environ, **strict}, capture_output=True
    )

    assert (told.returncode, told.stderr) == (1, b"")
    assert told.stdout.decode().splitlines() == [
        "5 pings of orders sent",
        "line 6: subject is not valid UTF-8 text: surrogates not allowed",
    ]
    assert pinged(tmp_path / "data") == {"caf\u00e9", "cafe\u0301", "a\rb", " ", "a\tb"}


def test_ping_takes_the_subject_of_a_command_line_as_it_is(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    cape(tmp_path, "topics", "apply", APP, *data)

    told = cape(tmp_path, "ping", APP, "orders", "a\t3\r\n", *data)

    assert told.stdout == "1 ping of orders sent\n"
    assert pinged(tmp_path / "data") == {"a\t3\r\n"}


def pinged(folder: Path) -> set[str]:
    """Subjects of all pings in the log."""
    with closing(EmbeddedLog(folder / "log", EmbeddedSettings(), now_ms=lambda: 0)) as log:
        reader, found = log.reader(), set[str]()
        for number in range(4):
            partition = TopicPartition("runs.orders.pings", number)
            for records in reader.read(partition, 0, reader.watermarks(partition).high):
                found.update(str(record.key, "utf-8") for record in records if record.key)
        reader.close()
    return found


def test_ping_is_served_by_the_next_run(tmp_path: Path) -> None:
    run_app.fill(tmp_path, subjects=1, events_each=2)
    data = ("--data", str(tmp_path / "data"))
    cape(tmp_path, "topics", "apply", APP, *data)

    told = cape(tmp_path, "ping", APP, "orders", "order-0", "--latest", "1", *data)
    process = run_app.start(tmp_path, "run", APP, *data, "--set", "refresh.interval_ms=3600000")
    run_app.wait_for(tmp_path, ["ledger", "audit"], 2, process)
    code, _ = run_app.end(process)

    assert told.returncode == 0
    assert told.stdout == "1 ping of orders sent\n"
    assert code == 0


def test_ping_says_what_to_do_when_the_topics_are_missing(tmp_path: Path) -> None:
    told = cape(tmp_path, "ping", APP, "orders", "s", "--data", str(tmp_path / "data"))

    assert told.returncode == 1
    assert "topics do not exist: runs.orders.pings; create them with `cape topics apply`" in (
        told.stderr
    )


def test_ping_says_why_it_cannot_while_run_holds_the_folder(tmp_path: Path) -> None:
    run_app.fill(tmp_path, subjects=1, events_each=1)
    data = ("--data", str(tmp_path / "data"))
    process = run_app.start(tmp_path, "run", APP, *data)
    run_app.wait_for(tmp_path, ["ledger"], 1, process)

    told = cape(tmp_path, "ping", APP, "orders", "order-0", *data)

    assert told.returncode == 1
    assert "While `cape run` works there nobody else can" in told.stderr
    assert run_app.end(process)[0] == 0


@pytest.mark.parametrize("command", ["dispatcher", "worker"])
def test_roles_wait_for_a_kafka_that_is_not_there_and_stop_when_asked(
    tmp_path: Path, command: str
) -> None:
    process = run_app.start(tmp_path, command, APP, *NO_KAFKA, "--data", str(tmp_path / "data"))
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(2)]

    code, _ = run_app.end(process)

    assert "waiting for 127.0.0.1:9" in "".join(lines)
    assert code == 0


def test_topics_give_up_on_a_kafka_that_is_not_there(tmp_path: Path) -> None:
    told = cape(tmp_path, "topics", "plan", APP, *NO_KAFKA)

    assert told.returncode == 1
    assert "no answer from 127.0.0.1:9 within" in told.stderr
    assert "Traceback" not in told.stderr


def test_output_that_nobody_reads_any_more_is_no_error(tmp_path: Path) -> None:
    script = f"{sys.executable} -m cape_stream settings | head -1; echo ${{PIPESTATUS[0]}}"

    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert told.stdout.splitlines()[-1] == "0"
    assert told.stderr == ""
