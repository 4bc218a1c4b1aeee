"""The hook token of the execution that is running: minted when it first asks, dead when it ends.

    token = hook_token()      # in a handler, or in what it calls; never outside an execution

It is minted on demand, so an execution that needs none costs nothing. The current execution is a
context variable: threads that a handler starts by itself do not inherit it, so give them the token.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from cape_stream.coordination.scopes import HOOK_LIFETIME_MAX_MS
from cape_stream.errors import CapeError, Fenced
from cape_stream.ports.credentials import HookTokens

LOGGER = logging.getLogger("cape_stream.coordination")

END_MARGIN_MS = 30_000
"""A token outlives the deadline by so long, for a handler that is late and still reported."""


class Execution:
    """One execution, and the token that it may have asked for; made by `executing`."""

    def __init__(
        self, tokens: HookTokens, names: tuple[str, str, str, str], lifetime_ms: int
    ) -> None:
        self._tokens = tokens
        self._names = names
        self._lifetime_ms = lifetime_ms
        self._lock = threading.Lock()
        self._token: str | None = None
        self._renew_s = 0.0
        self._is_over = False

    def token(self) -> str:
        """The same until the deadline; whoever runs on, because heartbeats extend its job, gets
        another one for as long again.

        Raises:
            Fenced: it has ended.
            Retry: the store cannot be reached.
        """
        with self._lock:
            if self._is_over:
                raise Fenced(f"the execution {self._names[2]} has ended")
            now_s = time.monotonic()
            if self._token is None or now_s >= self._renew_s:
                self._token = self._tokens.mint(*self._names, self._lifetime_ms)
                self._renew_s = now_s + max(1, self._lifetime_ms - END_MARGIN_MS) / 1_000
            return self._token

    def close(self) -> bool:
        """Give out no more tokens; True if there is one that has to end."""
        with self._lock:
            self._is_over = True
            return self._token is not None

    def end(self) -> None:
        """End the execution and its token."""
        if not self.close():
            return
        try:
            self._tokens.end_execution(*self._names[:3])
        except CapeError as error:
            LOGGER.warning("the token of %s ends by its time: %s", self._names[2], error)


_current: ContextVar[Execution | None] = ContextVar("execution", default=None)


@contextmanager
def executing(
    tokens: HookTokens,
    environment: str,
    app: str,
    execution: str,
    subject: str,
    remaining_ms: int,
) -> Iterator[Execution]:
    """A block that is one execution; `hook_token` works within it, and `Execution.token` likewise
    in whatever it is handed to.

    Args:
        tokens: where tokens are minted.
        environment: `live`, a preview, a dev session.
        app: the App's name.
        execution: names it, with its attempt, for ever.
        subject: on whose behalf.
        remaining_ms: until its deadline.
    """
    found = _made(tokens, (environment, app, execution, subject), remaining_ms)
    before = _current.set(found)
    try:
        yield found
    finally:
        _current.reset(before)
        found.end()


@asynccontextmanager
async def executing_async(
    tokens: HookTokens,
    environment: str,
    app: str,
    execution: str,
    subject: str,
    remaining_ms: int,
) -> AsyncIterator[Execution]:
    """The same on an event loop, which the end of a token does not hold up."""
    found = _made(tokens, (environment, app, execution, subject), remaining_ms)
    before = _current.set(found)
    try:
        yield found
    finally:
        _current.reset(before)
        if found.close():
            await asyncio.to_thread(found.end)


def _made(tokens: HookTokens, names: tuple[str, str, str, str], remaining_ms: int) -> Execution:
    lifetime_ms = min(HOOK_LIFETIME_MAX_MS, max(1, remaining_ms) + END_MARGIN_MS)
    return Execution(tokens, names, lifetime_ms)


def hook_token() -> str:
    """The token of the execution that is running here; the same until its deadline.

    Raises:
        Fenced: no execution is running here, or it has ended.
        Retry: the store cannot be reached.
    """
    found = _current.get()
    if found is None:
        raise Fenced("there is no hook token outside an execution of a handler")
    return found.token()
