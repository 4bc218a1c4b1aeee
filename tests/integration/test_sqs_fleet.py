"""`cape processor` as a process: signals, kills, missing queues, wrong credentials."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.cli import main
from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.queues.messages import ingest
from cape_stream.queues.messages.steps import StepCaller
from cape_stream.roles.fleet_valkey import ValkeyResults
from tests.tidy.tree import PROJECT

T = TypeVar("T")
PATIENCE_S = 50.0
pytestmark = pytest.mark.timeout(120)


class Fleet:
    """Queues of their own on a shared server, and workers for them."""

    def __init__(self, settings: SqsSettings, folder: Path, receives_max: int = 13) -> None:
        self.prefix = f"f{uuid4().hex[:8]}-"
        self.settings = settings
        self.folder = folder
        self.scribe = folder / "scribe"
        self.scribe.touch()
        self.receives_max = receives_max
        self.workers: list[subprocess.Popen[str]] = []
        self.do(self._create)

    def do(self, work: Callable[[SqsServer], Coroutine[Any, Any, T]]) -> T:
        async def whole() -> T:
            server = SqsServer(self.settings)
            try:
                return await work(server)
            finally:
                await server.close()

        return asyncio.run(whole())

    async def _create(self, server: SqsServer) -> None:
        dead = f"{self.prefix}ingest-dead"
        await server.create(dead)
        await server.create(
            f"{self.prefix}ingest", dead_letter_queue=dead, receives_max=self.receives_max
        )
        for name in ("steps", "ses-events", "ses-reputation", "email-send"):
            await server.create(self.prefix + name)

    def add(self, *documents: tuple[str, str]) -> None:
        async def work(server: SqsServer) -> None:
            queue = await server.open(f"{self.prefix}ingest")
            for name, uri in documents:
                await ingest.add_document(
                    queue, ingest.Document(document_id=name, source="s", uri=uri, tenant="t")
                )

        self.do(work)

    def depth(self, name: str = "ingest") -> tuple[int, int]:
        async def work(server: SqsServer) -> tuple[int, int]:
            depth = await (await server.open(self.prefix + name)).depth()
            return depth.visible, depth.in_flight

        return self.do(work)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cape_stream", "processor"]
        command += ["tests.integration.fleet_app:equipment", "--pool", "general"]
        command += ["--endpoint-url", self.settings.endpoint_url, "--prefix", self.prefix]
        command += ["--data", str(self.folder / "data")]
        command += ["--set", "processor.wait_s=1", "--set", "processor.grace_ms=8000", *arguments]
        worker = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=os.environ | {"SCRIBE": str(self.scribe)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.workers.append(worker)
        return worker

    def lines(self, what: str) -> list[str]:
        found = [line.split() for line in self.scribe.read_text().splitlines()]
        return [words[1] for words in found if words[0] == what]

    def wait(self, what: str, count: int) -> None:
        until(lambda: len(self.lines(what)) >= count)

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.communicate()


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came to that"
        time.sleep(0.05)


def report_of(worker: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = worker.communicate(timeout=PATIENCE_S)
    assert output.strip(), errors
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


@pytest.fixture
def fleet(moto: SqsSettings, tmp_path: Path) -> Any:
    found = Fleet(moto, tmp_path)
    yield found
    found.end()


def test_two_signals_let_what_runs_finish_and_hand_the_rest_back(fleet: Fleet) -> None:
    fleet.add(*((f"d{n}", "2.5") for n in range(12)))
    worker = fleet.start()
    fleet.wait("begin", 8)

    worker.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    worker.send_signal(signal.SIGTERM)
    report = report_of(worker)

    assert worker.returncode == 0, report
    assert report["adds_up"]
    assert report["done"] == len(fleet.lines("end")) >= 8
    assert report["received"] == report["done"] + report["handed_back"]
    assert fleet.depth() == (12 - report["done"], 0)


def test_hung_handler_is_handed_back_and_the_process_ends(fleet: Fleet) -> None:
    fleet.add(("hung", "hang"), ("fine", "0"))
    worker = fleet.start()
    fleet.wait("end", 1)
    fleet.wait("begin", 2)

    worker.send_signal(signal.SIGTERM)
    report = report_of(worker)

    assert worker.returncode == 0, report
    assert (report["hung"], report["handed_back"]) == (1, 1)
    assert fleet.depth() == (1, 0)


def test_messages_of_a_killed_worker_come_to_another(fleet: Fleet) -> None:
    fleet.add(*((f"d{n}", "1.5") for n in range(6)))
    visibility = ("--set", "processor.visibility_s=3")
    first = fleet.start(*visibility)
    fleet.wait("begin", 4)
    first.kill()

    second = fleet.start(*visibility)
    until(lambda: len(set(fleet.lines("end"))) == 6)
    second.send_signal(signal.SIGTERM)
    report = report_of(second)

    assert second.returncode == 0, report
    assert fleet.depth() == (0, 0)


@pytest.mark.parametrize("fault", ["fail", "die"])
def test_document_that_kills_its_handler_is_parked_unchanged_after_three_receives(
    moto: SqsSettings, tmp_path: Path, fault: str
) -> None:
    fleet = Fleet(moto, tmp_path, receives_max=3)
    try:
        fleet.add(("bad", fault))
        setting = ("--set", "processor.visibility_s=2")
        deadline_s = time.monotonic() + PATIENCE_S
        worker = fleet.start(*setting)
        while fleet.depth("ingest-dead") == (0, 0):
            assert time.monotonic() < deadline_s, fleet.scribe.read_text()
            if worker.poll() is not None:
                worker = fleet.start(*setting)
            time.sleep(0.2)
        fleet.add(("good", "0"))
        fleet.wait("end", 1)

        assert fleet.lines("begin").count("bad") == 3

        async def letter(server: SqsServer) -> Any:
            queue = await server.open(f"{fleet.prefix}ingest-dead")
            (found,) = await queue.receive(1, 1, 1)
            return json.loads(found.body)

        body = fleet.do(letter)
        assert body["body"]["document_id"] == "bad"
        assert body["type"] == "ingest"
    finally:
        fleet.end()


def test_caller_in_another_process_gets_the_answer_of_a_step_through_valkey(
    fleet: Fleet, valkey: Any
) -> None:
    worker = fleet.start(CAPE_VALKEY_URL=valkey.url)

    async def call(server: SqsServer) -> Any:
        store = AsyncStore(ValkeySettings(url=valkey.url))
        queue = await server.open(f"{fleet.prefix}steps")
        caller = StepCaller(queue, ValkeyResults(store))
        found = await caller.call("add", {"left": 3, "right": 4}, timeout_ms=45_000)
        await store.close()
        return found

    assert fleet.do(call) == 7
    worker.send_signal(signal.SIGTERM)
    assert report_of(worker)["done"] == 1


def test_missing_queue_ends_the_process_with_its_name_and_account(
    moto: SqsSettings, tmp_path: Path
) -> None:
    fleet = Fleet(moto, tmp_path)
    worker = fleet.start("--prefix", "nowhere-")
    _, errors = worker.communicate(timeout=PATIENCE_S)

    assert worker.returncode == 1
    assert "account 123456789012 has no queue 'nowhere-steps'" in errors


def test_training_pool_refuses_another_identity(fleet: Fleet) -> None:
    wanted = "processor.training_identity=arn:aws:sts::999999999999:assumed-role/trainer/"
    worker = fleet.start("--pool", "training", "--set", wanted)
    _, errors = worker.communicate(timeout=PATIENCE_S)

    assert worker.returncode == 1
    assert "the training queue is for arn:aws:sts::999999999999" in errors


def test_training_pool_needs_an_identity(fleet: Fleet) -> None:
    worker = fleet.start("--pool", "training")
    _, errors = worker.communicate(timeout=PATIENCE_S)

    assert worker.returncode == 1
    assert "processor.training_identity" in errors


def test_queues_tools_show_move_and_delete(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.add(("d1", "0"), ("d2", "0"))

    def cape(*arguments: str) -> tuple[int, str]:
        place = ["--endpoint-url", fleet.settings.endpoint_url, "--prefix", fleet.prefix]
        code = main(["queues", *arguments, *place])
        said = capsys.readouterr()
        return code, said.out + said.err

    code, listed = cape("list", "--json")
    rows = {row["queue"]: row["present"] for row in json.loads(listed)["queues"]}
    assert code == 1
    assert (rows["ingest"], rows["bulk-ingest"]) == (True, False)
    assert json.loads(cape("depth", "ingest", "--json")[1])["queues"][0]["visible"] == 2
    code, peeked = cape("peek", "ingest", "--json")
    assert len(json.loads(peeked)["queues"]) == 2
    assert fleet.depth() == (2, 0)
    code, refused = cape("purge", "ingest")
    assert (code, "--yes" in refused) == (2, True)
    assert cape("purge", "ingest", "--yes")[0] == 0
    assert fleet.depth() == (0, 0)
