"""Operators' verbs as commands, against real processes: on the embedded log by the admin API, on
Kafka by the operations topic and the members that the group names."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from cape_stream.cli import main
from tests.integration import run_app

APP = "tests.integration.run_app:app"
TOKEN = "a-token-of-16-or-more"


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def cape(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = run_app.start(folder, *arguments)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


class Running:
    """`cape run` with its admin API, and commands against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        self.process = run_app.start(
            folder, "run", APP, "--data", str(folder / "data"), "--set", f"admin.port={port}"
        )
        run_app.wait_for(folder, ["ledger", "audit"], 30, self.process)

    def order(self, *words: str) -> subprocess.CompletedProcess[str]:
        command, rest = words[:2], words[2:]
        if words[0] in ("explain", "audit", "backfill"):
            command, rest = words[:1], words[1:]
        line = (*command, APP, "orders", *rest, "--admin", self.base)
        if words[0] == "backfill":  # asks the source, whose place a process reads as it starts
            return cape(self.folder, *line)
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(line)
        return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())

    def wait_for_repeats(self, topology: str, wanted: dict[str, list[int]]) -> None:
        """Until every subject had exactly these events, in whatever order."""
        wanted = {subject: sorted(events) for subject, events in wanted.items()}
        while True:
            found = run_app.delivered(self.folder, topology)
            if {subject: sorted(events) for subject, events in found.items()} == wanted:
                return
            assert self.process.poll() is None
            assert all(len(found[each]) <= len(wanted[each]) for each in wanted), found
            time.sleep(0.1)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("CAPE_ADMIN_TOKEN", TOKEN)
    run_app.fill(tmp_path, subjects=3, events_each=10)
    world = Running(tmp_path)
    yield world
    code, errors = run_app.end(world.process)
    assert code == 0, errors


@pytest.mark.timeout(120)
def test_cursors_are_shown_rewound_and_explained_on_the_embedded_log(running: Running) -> None:
    shown = running.order("cursor", "show", "order-1", "--json")
    assert json.loads(shown.stdout)["cursors"] == {"ledger": 9, "audit": 9}

    told = running.order("cursor", "rewind", "order-1", "ledger", "--to", "7", "--why", "test")
    assert (told.returncode, told.stdout) == (0, "applied: cursor 9 → 7\n")
    all_ten = list(range(10))
    running.wait_for_repeats(
        "ledger", {"order-0": all_ten, "order-1": [*all_ten, 8, 9], "order-2": all_ten}
    )

    filled = running.order("backfill", "audit", "--from", "9", "--why", "test")
    assert filled.stdout.startswith("backfill of audit from 9: 3 subjects begun")
    running.wait_for_repeats("audit", {f"order-{n}": [*all_ten, 9] for n in range(3)})

    explained = running.order("explain", "order-1")
    assert "order-1 (idle): everything known of it is done" in explained.stdout
    consistent = running.order("audit")
    assert (consistent.returncode, consistent.stdout) == (
        0,
        "nothing is leaked, stuck or impossible\n",
    )


@pytest.mark.timeout(120)
def test_drained_topology_stands_still_and_says_so_until_it_is_resumed(running: Running) -> None:
    drained = running.order("topology", "drain", "ledger", "--why", "test")
    assert drained.returncode == 0
    assert drained.stdout.endswith("ledger is drained\n")
    run_app.fill(running.folder, subjects=1, events_each=1, first=10)
    told = ""
    while "paused" not in told.splitlines()[0:1] and "the topology is paused" not in told:
        told = running.order("explain", "order-0").stdout  # until the sweep of the source told it

    assert len(run_app.delivered(running.folder, "ledger")["order-0"]) == 10
    resumed = running.order("topology", "resume", "ledger")
    assert resumed.stdout.count("applied: resumed") == 4
    run_app.wait_for(running.folder, ["ledger", "audit"], 31, running.process)


@pytest.mark.timeout(120)
def test_wrong_orders_are_refused_with_the_reason(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, code, said in (
        (("cursor", "skip", "order-1", "ledger", "--event", "3"), 2, "needs a reason"),
        (("cursor", "rewind", "order-1", "ledger", "--to", "x", "--why", "w"), 2, "whole number"),
        (("cursor", "rewind", "order-1", "led", "--to", "1", "--why", "w"), 1, "no topology 'led'"),
        (("cursor", "rewind", "nobody", "ledger", "--to", "1", "--why", "w"), 1, "no subject"),
        (
            ("cursor", "set", "order-1", "ledger", "--to", "99", "--why", "w"),
            1,
            "beyond the newest",
        ),
        (("parked", "release", "order-1", "ledger", "--event", "99"), 1, "not put aside"),
        (("cursor", "show", "nobody"), 1, "nothing is known of it"),
        (("backfill", "led", "--from", "0", "--why", "w"), 1, "no topology 'led'"),
    ):
        told = running.order(*words)
        assert told.returncode == code, (words, told)
        assert said in told.stdout + told.stderr, (words, told)
        assert "Traceback" not in told.stderr
    monkeypatch.setenv("CAPE_ADMIN_TOKEN", TOKEN + "-not")
    told = running.order("cursor", "show", "order-1")
    assert (told.returncode, told.stderr) == (
        1,
        "cape: give the admin token as `Authorization: Bearer ...`\n",
    )
    request = urllib.request.Request(running.base + "/v1/operations", data=b"{}")
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request)


@pytest.mark.timeout(180)
def test_owner_of_a_subject_is_found_in_the_group_on_kafka(
    tmp_path: Path, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_APP_NAME", f"runs-{uuid.uuid4().hex[:8]}")
    monkeypatch.setenv("CAPE_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    run_app.fill(tmp_path, subjects=6, events_each=5)
    assert cape(tmp_path, "topics", "apply", APP).returncode == 0
    ports = [free_port(), free_port()]
    processes = [
        run_app.start(
            *(tmp_path, "dispatcher", APP, "--data", str(tmp_path / f"d{port}")),
            *("--set", f"admin.port={port}"),
        )
        for port in ports
    ]
    processes += [run_app.start(tmp_path, role, APP) for role in ("worker", "refresh")]
    run_app.wait_for(tmp_path, ["ledger", "audit"], 30, processes[0])

    def shown(*words: str) -> list[dict[str, object]]:
        while True:  # the group may still be moving partitions
            told = cape(tmp_path, *words, "--json")
            if told.returncode == 0:
                return [json.loads(each) for each in told.stdout.splitlines()]
            assert all(each.poll() is None for each in processes)

    for subject in range(6):
        [found] = shown("cursor", "show", APP, "orders", f"order-{subject}")
        assert found["cursors"] == {"ledger": 4, "audit": 4}
    told = cape(
        *(tmp_path, "cursor", "rewind", APP, "orders", "order-2", "ledger", "--to", "2"),
        *("--why", "test", "--who", "ann", "--json"),
    )
    entry = json.loads(told.stdout)
    assert (entry["who"], entry["outcome"], entry["detail"]) == ("ann", "applied", "cursor 4 → 2")
    while run_app.delivered(tmp_path, "ledger")["order-2"] != [0, 1, 2, 3, 4, 3, 4]:
        assert processes[0].poll() is None
        time.sleep(0.1)
    paused = shown("topology", "drain", APP, "orders", "ledger")
    assert paused[-1]["jobs_out"] == 0
    assert shown("parked", "list", APP, "orders") == []
    assert shown("audit", APP, "orders") == []
    answers, named = [], []
    for port in ports:
        base = f"http://127.0.0.1:{port}/v1/explain?domain=orders&subject=order-2"
        try:
            with urllib.request.urlopen(base) as answer:
                answers.append(answer.status)
        except urllib.error.HTTPError as error:
            answers.append(error.code)
            named.append((json.loads(error.read())["owner"], ports[1 - ports.index(port)]))
    assert sorted(answers) == [200, 421]
    assert [owner for owner, _ in named] == [f"http://127.0.0.1:{other}" for _, other in named]
    for process in reversed(processes):
        run_app.end(process)
