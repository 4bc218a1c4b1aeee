"""Handlers that run in sandboxes, and a maker of sandboxes that can be killed."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from cape_stream.model.job import Job
from cape_stream.ports.clock import Clock
from cape_stream.roles.sandboxes import WarmSandboxes
from cape_stream.runtime.worker_handler import Executor, HandlerKey, JobOutcome
from cape_stream.runtime.worker_settings import WorkerSettings

KEY = HandlerKey("orders", "ledger", "book")


@dataclass(frozen=True)
class Handler:
    """Does one thing, and answers with the number of its process."""

    does: str = "answer"
    is_async: bool = False
    executor: Executor | None = Executor.PROCESS
    stops_at_failure: bool = False

    def run(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """See `JobHandler.run`."""
        if self.does == "die":
            os._exit(7)
        if self.does == "sleep":
            time.sleep(3_600)
        return JobOutcome([os.getpid()])

    async def run_async(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """Not asked for."""
        raise NotImplementedError


def open_pool(url: str, folder: Path, code: str, ready: int = 1) -> WarmSandboxes:
    settings = WorkerSettings(
        queues=("general",), concurrency=4, executor=Executor.PROCESS, sandboxes_ready=ready
    )
    return WarmSandboxes("shop", settings, {KEY: Handler()}, url, folder, code)


if __name__ == "__main__":
    made = open_pool(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    while made.pool.look().ready < 1:
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(3_600)
