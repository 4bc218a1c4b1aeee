"""The store for an event loop: the same calls, timeouts and errors as `Store`."""

from contextlib import suppress
from typing import Any, TypeVar

from cape_stream.coordination.breaker import Breaker
from cape_stream.coordination.clients import connect_async
from cape_stream.coordination.failures import LINK_ERRORS, code_of, is_link_error, typed
from cape_stream.coordination.figures import Figures
from cape_stream.coordination.keys import Keys
from cape_stream.coordination.scripts import Call, Steps
from cape_stream.coordination.settings import Place, ValkeySettings
from cape_stream.coordination.store import WAIT_SLICE_MS, was_cut
from cape_stream.errors import CapeError

Result = TypeVar("Result")


class AsyncStore:
    """One per event loop, whose tasks share it. See `Store`."""

    def __init__(self, settings: ValkeySettings, figures: Figures | None = None) -> None:
        self.settings = settings
        self.place = str(Place.of(settings.url))
        self.figures = Figures() if figures is None else figures
        self._breaker = Breaker(self.place)
        self._client: Any = None
        self._waiting: Any = None

    def keys(self, service: str) -> Keys:
        """The key layout of a service."""
        return Keys(self.settings.prefix, service)

    async def run(self, steps: Steps[Result]) -> Result:
        """Carry out steps to their end, and return what they return."""
        try:
            call = next(steps)
            while True:
                try:
                    reply = await self.call(call)
                except CapeError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(reply)
        except StopIteration as end:
            result: Result = end.value
            return result

    async def call(self, call: Call) -> Any:
        """See `Store.call`."""
        if not call.urgent:
            self._breaker.check()
        if self._client is None:
            self._client = connect_async(self.settings, self.settings.call_timeout_ms)
        try:
            reply = await self._repeated(call)
        except Exception as error:
            if is_link_error(error):
                self._breaker.failed()
            self.figures.add("valkey_call_errors")
            raise typed(error, self.place, call.script.name) from error
        self._breaker.succeeded()
        self.figures.add("valkey_calls")
        return reply

    async def wait(self, key: str, wait_ms: float) -> bool:
        """See `Store.wait`."""
        bound_ms = min(max(wait_ms, 1), WAIT_SLICE_MS)
        self._breaker.check()
        if self._waiting is None:
            read_timeout_ms = self.settings.call_timeout_ms + WAIT_SLICE_MS
            self._waiting = connect_async(self.settings, read_timeout_ms)
        try:
            reply = await self._waiting.execute_command("BLPOP", key, f"{bound_ms / 1_000:.3f}")
        except Exception as error:
            if is_link_error(error):
                self._breaker.failed()
            raise typed(error, self.place, "BLPOP") from error
        return reply is not None

    async def close(self) -> None:
        """Close all connections."""
        clients = [client for client in (self._client, self._waiting) if client is not None]
        self._client = self._waiting = None
        for client in clients:
            with suppress(*LINK_ERRORS):
                await client.aclose()
                if hasattr(client, "connection_pool"):
                    await client.connection_pool.disconnect()

    async def _repeated(self, call: Call) -> Any:
        try:
            return await self._send(call)
        except Exception as error:
            if code_of(error) == "READONLY":
                pool = getattr(self._client, "connection_pool", None)
                if pool is not None:  # a cluster's client asks for the nodes anew by itself
                    await pool.disconnect(inuse_connections=False)
            elif not was_cut(error):
                raise
            self.figures.add("valkey_repeats")
            return await self._send(call)

    async def _send(self, call: Call) -> Any:
        try:
            return await self._client.execute_command(*call.by_digest())
        except Exception as error:
            if code_of(error) != "NOSCRIPT":
                raise
        return await self._client.execute_command(*call.whole())
