"""Makes each job that a worker runs an execution, so that its handler can have a hook token."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cape_stream.coordination.executions import executing
from cape_stream.coordination.memory_tokens import MemoryHookTokens
from cape_stream.errors import Fatal
from cape_stream.model.job import Job
from cape_stream.ports.clock import Clock
from cape_stream.ports.credentials import HookTokens
from cape_stream.roles.valkey import NOT_INSTALLED, URL_VARIABLE
from cape_stream.runtime.worker_handler import Executor, HandlerKey, JobHandler, JobOutcome
from cape_stream.sdk.app import App

ENVIRONMENT_VARIABLE = "CAPE_ENVIRONMENT"
DEFAULT_ENVIRONMENT = "live"


@dataclass(frozen=True, slots=True)
class ExecutionHandler:
    """Implements `JobHandler`: another one, whose runs are executions."""

    inner: JobHandler
    tokens: HookTokens
    environment: str
    app: str

    @property
    def is_async(self) -> bool:
        """See `JobHandler.is_async`."""
        return self.inner.is_async

    @property
    def executor(self) -> Executor | None:
        """See `JobHandler.executor`."""
        return self.inner.executor

    @property
    def stops_at_failure(self) -> bool:
        """See `JobHandler.stops_at_failure`."""
        return self.inner.stops_at_failure

    def run(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """See `JobHandler.run`."""
        with executing(*self._named(job), deadline_ms - clock.now_ms()):
            return self.inner.run(job, deadline_ms, clock)

    async def run_async(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """See `JobHandler.run_async`."""
        with executing(*self._named(job), deadline_ms - clock.now_ms()):
            return await self.inner.run_async(job, deadline_ms, clock)

    def _named(self, job: Job) -> tuple[HookTokens, str, str, str, str]:
        execution = f"{job.job_id}.{job.attempt}"
        return self.tokens, self.environment, self.app, execution, job.subject


class Executions:
    """Where the executions of one worker get their tokens.

    With ``CAPE_VALKEY_URL`` from that server, so that every process can check them; without it from
    this process's memory, so that only it can.

    Args:
        app: whose handlers.
        environ: variables; ``CAPE_ENVIRONMENT`` names where it runs (`live`).

    Raises:
        Fatal: the URL cannot be understood, or its client is not installed.
    """

    def __init__(self, app: App, environ: Mapping[str, str] = os.environ) -> None:
        self._app = app
        self._environment = environ.get(ENVIRONMENT_VARIABLE, DEFAULT_ENVIRONMENT)
        self._close: Callable[[], None] = _nothing
        self.tokens: HookTokens
        url = environ.get(URL_VARIABLE)
        if url:
            self.tokens, self._close = _on_server(url)
        else:
            self.tokens = MemoryHookTokens()

    def handlers(self, executor: Executor) -> dict[HandlerKey, JobHandler]:
        """The App's handlers; those that run in another process have no hook token.

        Args:
            executor: where those run that do not say it.
        """
        return {
            key: self._wrapped(handler, handler.executor or executor)
            for key, handler in self._app.job_handlers().items()
        }

    def close(self) -> None:
        """Free connections."""
        self._close()

    def _wrapped(self, handler: JobHandler, executor: Executor) -> JobHandler:
        if executor is Executor.PROCESS and not handler.is_async:
            return handler  # it is pickled, and a connection cannot be
        return ExecutionHandler(handler, self.tokens, self._environment, self._app.name)


def _on_server(url: str) -> tuple[HookTokens, Callable[[], None]]:
    """Tokens of a server, and what closes its connections. Only now its client is needed."""
    try:
        from cape_stream.coordination.credentials import ValkeyHookTokens
        from cape_stream.coordination.settings import ValkeySettings
        from cape_stream.coordination.store import Store
    except ImportError as error:
        raise Fatal(f"{URL_VARIABLE} is set, but {NOT_INSTALLED}") from error
    store = Store(ValkeySettings(url=url))
    return ValkeyHookTokens(store), store.close


def _nothing() -> None:
    """Close nothing: there is nothing open."""
