"""One real ElasticMQ on this machine, for tests and benchmarks of the queues.

Listens on 127.0.0.1 only, on a port nobody else uses, keeps everything in memory and dies with this
process. Standard library only; POSIX.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local.jars import ELASTICMQ, LocalKafkaError, fetch_jars, find_java
from deploy.local.ports import free_ports
from deploy.local.processes import dismiss, watch

START_WAIT_S = 60.0
"""A start takes 1.5 s on an idle machine."""
STARTS_MAX = 5
"""How often other ports are tried because somebody was quicker to take ours."""
HEAP = "256m"
CONFIGURATION = """
include classpath("application.conf")
node-address { protocol = http, host = "127.0.0.1", port = %(port)d, context-path = "" }
rest-sqs { enabled = true, bind-port = %(port)d, bind-hostname = "127.0.0.1", sqs-limits = strict }
rest-stats { enabled = false }
queues-storage { enabled = false }
messages-storage { enabled = false }
"""


class ElasticMQFailed(LocalKafkaError):
    """The server did not start; the message ends with its last words."""


class ElasticMQ:
    """An SQS server; a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cape-elasticmq-")
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def endpoint_url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        jars = fetch_jars(ELASTICMQ)
        for attempt in range(STARTS_MAX):
            try:
                self._start(jars)
            except ElasticMQFailed:
                if attempt + 1 == STARTS_MAX:
                    raise
            else:
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._folder.cleanup()

    def _start(self, jars: Path) -> None:
        (self.port,) = free_ports(1)
        folder = Path(self._folder.name)
        configuration = folder / "elasticmq.conf"
        configuration.write_text(CONFIGURATION % {"port": self.port})
        log = folder / "log"
        command = [str(find_java()), f"-Xmx{HEAP}", f"-Dconfig.file={configuration}"]
        command += ["-cp", f"{jars}{os.sep}*", "org.elasticmq.server.Main"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=folder
            )
        self._watchdog = watch(self._process.pid, None)
        deadline_s = time.monotonic() + START_WAIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self._end()
                words = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
                raise ElasticMQFailed(f"ElasticMQ did not start: {words}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        query = f"{self.endpoint_url}/?Action=ListQueues"
        try:
            with urllib.request.urlopen(query, timeout=5) as answer:  # noqa: S310  # our own server
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._watchdog is not None:
            dismiss(self._watchdog)
        self._process = self._watchdog = None
