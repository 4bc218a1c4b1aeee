"""Where handlers run that do not run in the slot's own thread: an event loop, a child process."""

import asyncio
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Protocol

from cape_stream.errors import Fatal
from cape_stream.model.job import Job
from cape_stream.model.status import FailureClass
from cape_stream.ports.clock import Clock
from cape_stream.runtime.worker_handler import HandlerKey, JobHandler, JobOutcome
from cape_stream.runtime.worker_status import failed_outcome

_spawning = multiprocessing.get_context("spawn")
"""Never fork: the worker has threads, and a fork would copy their locks in whatever state."""


class LoopThread:
    """One event loop for all asynchronous handlers of a worker; starts on first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self, work: Coroutine[object, object, JobOutcome]) -> Future[JobOutcome]:
        """Begin with ``work``; cancelling the answer cancels it. From any thread."""
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="cape-handlers-loop", daemon=True
                )
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, timeout_ms: int) -> None:
        """Cancel what is left and stop; a handler that blocks the loop is left behind."""
        if self._loop is None or self._thread is None:
            return
        winding_up = asyncio.run_coroutine_threadsafe(_wind_up(timeout_ms), self._loop)
        winding_up.add_done_callback(lambda _: self._stop())
        self._thread.join(2 * timeout_ms / 1_000)
        if not self._thread.is_alive():
            self._loop.close()

    def _stop(self) -> None:
        assert self._loop is not None, "only a loop that runs can wind up"
        self._loop.call_soon_threadsafe(self._loop.stop)


async def _wind_up(timeout_ms: int) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_ms / 1_000)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Sandbox(Protocol):
    """A process that serves the jobs of one slot; see `serve_jobs`."""

    @property
    def pipe(self) -> Connection:
        """Where jobs go and outcomes come from."""
        ...

    def kill(self) -> None:
        """End it now, whatever it does. From any thread, and more than once."""
        ...

    def bury(self) -> str:
        """Close the pipe and wait for its end; how it ended, for people."""
        ...


class SpawnedSandbox:
    """Implements `Sandbox`: a child process that starts now."""

    def __init__(self) -> None:
        self.pipe, theirs = _spawning.Pipe()
        self._process = _spawning.Process(
            target=serve_jobs, args=(theirs,), name="cape-handlers", daemon=True
        )
        self._process.start()
        theirs.close()

    def kill(self) -> None:
        """See `Sandbox.kill`."""
        self._process.kill()

    def bury(self) -> str:
        """See `Sandbox.bury`."""
        self.pipe.close()
        self._process.join()
        code = self._process.exitcode
        return f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"


class ChildProcess:
    """A sandbox that runs one job at a time for one slot; begins on first use.

    One for each slot and not a pool for all: when a handler brings its process down, its own job
    alone is lost, and the next one gets a new process.

    Args:
        begin: makes a sandbox, or takes one that is ready.
    """

    def __init__(self, begin: Callable[[], Sandbox] = SpawnedSandbox) -> None:
        self._begin = begin
        self._sandbox: Sandbox | None = None

    def run(self, handler: JobHandler, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """Run a synchronous handler; the death of the process is a failure of class ``bug``."""
        if self._sandbox is None:
            self._sandbox = self._begin()
        pipe = self._sandbox.pipe
        try:
            pipe.send((handler, job, deadline_ms, clock))
            outcome = pipe.recv()
        except (EOFError, ConnectionError):
            return _all_failed(job, f"the process of the handler ended: {self._bury()}")
        if isinstance(outcome, str):
            return _all_failed(job, outcome)
        assert isinstance(outcome, JobOutcome), f"a child process answered {outcome!r}"
        return outcome

    def kill(self) -> None:
        """End the process now, whatever it does. From any thread."""
        sandbox = self._sandbox
        if sandbox is not None:
            sandbox.kill()

    def close(self) -> None:
        """End the process and wait for its end; nothing may be running in it."""
        self.kill()
        self._bury()

    def _bury(self) -> str:
        sandbox, self._sandbox = self._sandbox, None
        return "it never began" if sandbox is None else sandbox.bury()


def serve_jobs(pipe: Connection) -> None:
    """What a sandbox does: until the worker closes the pipe, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the worker, who decides
    while True:
        try:
            handler, job, deadline_ms, clock = pipe.recv()
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001  # importing the user's module runs their code
            pipe.send(f"a child process cannot load the handler: {error!r}")
            continue
        pipe.send(handler.run(job, deadline_ms, clock))


def check_picklable(handlers: Iterable[tuple[HandlerKey, JobHandler]], clock: Clock) -> None:
    """Refuse at start what would fail at every job: Fatal names the handler and the way out."""
    for key, handler in handlers:
        try:
            pickle.dumps((handler, clock))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise Fatal(
                f"handler {key.topology}.{key.lambda_id} of domain {key.domain!r} cannot run in a"
                f" child process ({error}): define it at the top of a module, or use"
                " executor='thread'"
            ) from error


def _all_failed(job: Job, text: str) -> JobOutcome:
    sequences = [event.sequence for event in job.events]
    return failed_outcome(sequences, FailureClass.BUG, text)
