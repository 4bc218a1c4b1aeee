"""Makes each job that a worker runs an execution, so that its handler can have a hook token, and a
context to publish and grant with."""

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

from cape_stream.coordination.executions import Execution, executing, executing_async
from cape_stream.coordination.memory_tokens import MemoryHookTokens
from cape_stream.errors import Fatal, Fenced
from cape_stream.model.job import Job
from cape_stream.ports.clock import Clock
from cape_stream.ports.contexts import Context
from cape_stream.ports.credentials import HookTokens
from cape_stream.realtime.context import RealtimeContext
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.roles.valkey import NOT_INSTALLED, URL_VARIABLE, open_store
from cape_stream.runtime.worker_handler import Executor, HandlerKey, JobHandler, JobOutcome
from cape_stream.sdk.app import App

if TYPE_CHECKING:
    from cape_stream.roles.contexts import Contexts

ENVIRONMENT_VARIABLE = "CAPE_ENVIRONMENT"
DEFAULT_ENVIRONMENT = "live"


@dataclass(frozen=True, slots=True)
class Place:
    """Where executions run, as data, for child processes are told it, too."""

    environment: str
    app: str
    url: str = field(repr=False)
    """Server of the hook tokens, which may hold a password; empty: this process's memory."""
    realtime: RealtimeSettings | None
    """Of contexts; None if no handler takes one."""


class Desk:
    """Gives out what executions of one process need.

    Args:
        place: where they run.

    Raises:
        Fatal: the URL cannot be understood, its client is not installed, or keys are missing.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._closing: list[Callable[[], None]] = []
        self.tokens: HookTokens = MemoryHookTokens()
        if place.url:
            self.tokens, close = _on_server(place.url)
            self._closing.append(close)
        self._contexts: Contexts | None = None
        if place.realtime is not None:
            self._contexts = _contexts(place.realtime, self.tokens)
            self._closing.append(self._contexts.close)

    @contextmanager
    def execution(self, job: Job, remaining_ms: int) -> Iterator[None]:
        """A block that is the execution of a job."""
        with executing(*self._named(job), remaining_ms) as found, self._running(found):
            yield

    @asynccontextmanager
    async def execution_async(self, job: Job, remaining_ms: int) -> AsyncIterator[None]:
        """The same on an event loop."""
        async with executing_async(*self._named(job), remaining_ms) as found:
            with self._running(found):
                yield

    def _named(self, job: Job) -> tuple[HookTokens, str, str, str, str]:
        place, execution = self._place, f"{job.job_id}.{job.attempt}"
        return self.tokens, place.environment, place.app, execution, job.subject

    @contextmanager
    def _running(self, execution: Execution) -> Iterator[None]:
        running = _Running(execution, self._contexts)
        before = _current.set(running)
        try:
            yield
        finally:
            _current.reset(before)
            running.end()

    def close(self) -> None:
        """Free connections."""
        for close in self._closing:
            close()


class _Running:
    """One execution, and the context that its handler may have asked for."""

    def __init__(self, execution: Execution, contexts: "Contexts | None") -> None:
        self._execution = execution
        self._contexts = contexts
        self._context: RealtimeContext | None = None

    def context(self) -> RealtimeContext:
        assert self._contexts is not None, "who takes a context has been given the means for it"
        if self._context is None:
            self._context = self._contexts.of(self._execution.token)
        return self._context

    def end(self) -> None:
        if self._context is not None:
            self._context.close()


_current: ContextVar[_Running | None] = ContextVar("running", default=None)


def current_context() -> Context:
    """The context of the execution that runs here.

    Raises:
        Fenced: none does.
    """
    found = _current.get()
    if found is None:
        raise Fenced("there is no context outside an execution of a handler")
    return found.context()


@dataclass(frozen=True, slots=True)
class ExecutionHandler:
    """Implements `JobHandler`: another one, whose runs are executions."""

    inner: JobHandler
    desk_of: Callable[[], Desk]
    """The desk of the process it runs in; it can be pickled if that is a child."""

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
        with self.desk_of().execution(job, deadline_ms - clock.now_ms()):
            return self.inner.run(job, deadline_ms, clock)

    async def run_async(self, job: Job, deadline_ms: int, clock: Clock) -> JobOutcome:
        """See `JobHandler.run_async`."""
        async with self.desk_of().execution_async(job, deadline_ms - clock.now_ms()):
            return await self.inner.run_async(job, deadline_ms, clock)


@cache
def desk_of_child(place: Place) -> Desk:
    """The desk of a child process, with connections of its own; it lives as long as the process."""
    return Desk(place)


class Executions:
    """Where the executions of one worker get their tokens and contexts.

    With ``CAPE_VALKEY_URL`` tokens are from that server, so that every process can check them;
    without it from this process's memory, so that only it can.

    Args:
        app: whose handlers.
        environ: variables; ``CAPE_ENVIRONMENT`` names where it runs (`live`).
        realtime: of the contexts.

    Raises:
        Fatal: the URL cannot be understood or its client is not installed; a handler takes a
            context, and there are no keys that sign grants.
    """

    def __init__(
        self,
        app: App,
        environ: Mapping[str, str] = os.environ,
        realtime: RealtimeSettings | None = None,
    ) -> None:
        self._app = app
        takers = app.context_takers
        self._place = Place(
            environ.get(ENVIRONMENT_VARIABLE, DEFAULT_ENVIRONMENT),
            app.name,
            environ.get(URL_VARIABLE, ""),
            (realtime or RealtimeSettings()) if takers else None,
        )
        try:
            self._desk = Desk(self._place)
        except Fatal as error:
            if not takers:
                raise
            name = f"{takers[0].topology}.{takers[0].lambda_id}"
            raise Fatal(f"handler {name} takes a context: {error.reason}") from error

    @property
    def tokens(self) -> HookTokens:
        """Mints and checks hook tokens."""
        return self._desk.tokens

    def handlers(self, executor: Executor) -> dict[HandlerKey, JobHandler]:
        """The App's handlers, each run of which is an execution.

        Args:
            executor: where those run that do not say it.
        """
        return {
            key: ExecutionHandler(handler, self._desk_for(handler, executor))
            for key, handler in self._app.job_handlers(current_context).items()
        }

    def close(self) -> None:
        """Free connections."""
        self._desk.close()

    def _desk_for(self, handler: JobHandler, executor: Executor) -> Callable[[], Desk]:
        if (handler.executor or executor) is Executor.PROCESS and not handler.is_async:
            return partial(desk_of_child, self._place)
        return self._own_desk

    def _own_desk(self) -> Desk:
        return self._desk


def _on_server(url: str) -> tuple[HookTokens, Callable[[], None]]:
    """Tokens of a server, and what closes its connections. Only now its client is needed."""
    store = open_store(url)
    from cape_stream.coordination.credentials import ValkeyHookTokens

    return ValkeyHookTokens(store), store.close


def _contexts(settings: RealtimeSettings, tokens: HookTokens) -> "Contexts":
    """What makes contexts; it needs the same client."""
    try:
        from cape_stream.roles.contexts import Contexts
    except ImportError as error:
        raise Fatal(NOT_INSTALLED) from error
    return Contexts(settings, tokens)
