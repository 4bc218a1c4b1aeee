"""What tests of the fleet as processes share: queues of their own, workers, and what they wrote."""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.ports.queue import OutgoingMessage
from cape_stream.queues.messages import ingest
from deploy.local.ports import free_ports
from deploy.local.processes import dismiss, watch
from tests.tidy.tree import PROJECT

T = TypeVar("T")
PATIENCE_S = 50.0


@contextmanager
def own_moto() -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A moto as a process, to be told what would spoil a shared one: its address, and itself."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watchdog = watch(process.pid, None)
    endpoint = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=5).close()
        except OSError:
            return False
        return True

    try:
        until(answers)
        yield endpoint, process
    finally:
        process.kill()
        process.wait()
        dismiss(watchdog)


MAIL_QUEUES = ("ses-events", "ses-reputation", "email-send")
"""What every worker of the general pool has code for."""


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
        for name in ("steps", "training", *MAIL_QUEUES):
            await server.create(self.prefix + name)

    def add(self, *documents: tuple[str, str]) -> None:
        async def work(server: SqsServer) -> None:
            queue = await server.open(f"{self.prefix}ingest")
            for name, uri in documents:
                await ingest.add_document(
                    queue, ingest.Document(document_id=name, source="s", uri=uri, tenant="t")
                )

        self.do(work)

    def put(self, name: str, *messages: OutgoingMessage) -> None:
        async def work(server: SqsServer) -> None:
            queue = await server.open(self.prefix + name)
            assert await queue.send(messages) == [None] * len(messages)

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


def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never came to that"
        time.sleep(0.05)


def report_of(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """The last line a worker wrote."""
    output, errors = worker.communicate(timeout=PATIENCE_S)
    assert output.strip(), errors
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report
