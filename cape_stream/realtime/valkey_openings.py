"""One script for many callers: who asks while an answer is under way shares the next round trip.

After a restart thousands of streams open at once, and a call of the client library takes longer
than the server's own work. A caller alone waits for nobody.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import redis.asyncio as redis
from redis.exceptions import NoScriptError

TOGETHER_MAX = 16
"""Callers of one round trip; each answer may hold `catch_up_bytes`."""

Value = str | bytes | int


class SharedScript:
    """A script of a server; made inside a running event loop.

    Args:
        client: carries the calls; stays open.
        text: the script.
    """

    def __init__(self, client: redis.Redis, text: str) -> None:
        self._client = client
        self._script = client.register_script(text)
        self._waiting: list[tuple[Sequence[Value], asyncio.Future[Any]]] = []
        self._carrying: asyncio.Task[None] | None = None

    async def call(self, keys: Sequence[str], arguments: Sequence[Value]) -> Any:
        """The script's answer; raises what the client library raises."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(((len(keys), *keys, *arguments), answer))
        if self._carrying is None:
            self._carrying = asyncio.create_task(self._carry())
        return await answer

    async def close(self) -> None:
        """Fail who still waits."""
        if self._carrying is not None:
            self._carrying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._carrying

    async def _carry(self) -> None:
        try:
            while self._waiting:
                some = self._waiting[:TOGETHER_MAX]
                del self._waiting[:TOGETHER_MAX]
                await self._answer(some)
        finally:
            self._carrying = None
            for _, answer in self._waiting:
                answer.cancel()

    async def _answer(self, some: Sequence[tuple[Sequence[Value], asyncio.Future[Any]]]) -> None:
        try:
            found = await self._ask([words for words, _ in some])
        except asyncio.CancelledError:
            for _, answer in some:
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, each caller re-types it
            found = [error] * len(some)
        for (_, answer), one in zip(some, found, strict=True):
            if answer.done():
                continue  # its client left
            if isinstance(one, Exception):
                answer.set_exception(one)
            else:
                answer.set_result(one)

    async def _ask(self, calls: Sequence[Sequence[Value]]) -> list[Any]:
        found = await self._round_trip(calls)
        if any(isinstance(each, NoScriptError) for each in found):
            await self._client.script_load(self._script.script)
            found = await self._round_trip(calls)
        return found

    async def _round_trip(self, calls: Sequence[Sequence[Value]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as together:
            for words in calls:
                together.execute_command("EVALSHA", self._script.sha, *words)
            found: list[Any] = await together.execute(raise_on_error=False)
            return found
