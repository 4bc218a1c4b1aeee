"""Both ends of `cape ws` in Python: `RequestClient` asks, `RequestWorker` answers.

async with RequestClient("ws://ws.internal:8091", hook_token) as client:
    rows = await client.call("db", {"sql": "select 1"}, deadline_ms=2_000)

await RequestWorker("ws://ws.internal:8091", "db", secret, answer).run()
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from cape_stream.errors import Fenced, Reject, Retry
from cape_stream.ports.credentials import Scope
from cape_stream.realtime.relay import Failure

MARGIN_MS = 500
"""How much longer a client waits than the relay, which knows better why there is no answer."""
RECONNECT_MS_MAX = 5_000
CLOSE_TOKEN = 4401


def _options(token: str, bytes_max: int) -> dict[str, Any]:
    return {
        "additional_headers": {"Authorization": f"Bearer {token}"},
        "compression": None,
        "max_size": bytes_max,
        "proxy": None,
    }


class RequestClient:
    """A caller's socket; requests of several tasks share it.

    Args:
        url: of `cape ws`, such as ``ws://host:8091``.
        hook_token: of the execution that asks.
        bytes_max: of one answer.
    """

    def __init__(self, url: str, hook_token: str, bytes_max: int = 1_048_576) -> None:
        self._url = url
        self._token = hook_token
        self._bytes_max = bytes_max
        self._left = contextlib.AsyncExitStack()
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def __aenter__(self) -> Self:
        try:
            self._socket: ClientConnection = await self._left.enter_async_context(
                connect(f"{self._url}/v1/call", **_options(self._token, self._bytes_max))
            )
            hello = msgspec.json.decode(await self._socket.recv())
        except ConnectionClosed as error:
            raise _ended(error) from error
        except (WebSocketException, OSError) as error:
            raise Retry(f"{self._url} cannot be reached: {error}") from error
        self._window = asyncio.Semaphore(hello["window"])
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._end_calls(Retry("the client was closed before the answer came"))
        await self._left.aclose()

    async def call(self, service: str, body: Any, *, deadline_ms: int = 10_000) -> Any:
        """Ask a service and return what it answers.

        Raises:
            Retry: no answer in time, nobody offers the service, or all are busy. The request may
                have been carried out, unless the reason says that it was not.
            Reject: the service refused it, or it is no request; repeating it changes nothing.
            Fenced: the hook token is dead: the execution is over.
        """
        number = next(self._numbers)
        try:
            async with asyncio.timeout((deadline_ms + MARGIN_MS) / 1_000), self._window:
                answer = self._answers[number] = asyncio.get_running_loop().create_future()
                request = {"type": "request", "id": number, "service": service}
                request |= {"deadline_ms": deadline_ms, "body": body}
                await self._socket.send(msgspec.json.encode(request).decode())
                found = await answer
        except ConnectionClosed as error:
            raise _ended(error) from error
        except TimeoutError as error:
            raise Retry(f"{service}: {Failure.DEADLINE.value}") from error
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionClosed):
                await self._socket.send(f'{{"type":"cancel","id":{number}}}')
            raise
        finally:
            self._answers.pop(number, None)
        if found["type"] == "response":
            return found["body"]
        is_final = found["reason"] in (Failure.FAILED, Failure.MALFORMED)
        reason = f"{service}: {found['reason']} {found['detail']}".rstrip()
        raise (Reject if is_final else Retry)(reason)

    async def _read(self) -> None:
        try:
            async for raw in self._socket:
                found = msgspec.json.decode(raw)
                answer = self._answers.get(found["id"])
                if answer is not None and not answer.done():
                    answer.set_result(found)
            error = ConnectionClosed(None, None)
        except ConnectionClosed as closed:
            error = closed
        self._end_calls(_ended(error))

    def _end_calls(self, error: Exception) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)


def _ended(error: ConnectionClosed) -> Fenced | Retry:
    if error.rcvd is not None and error.rcvd.code == CLOSE_TOKEN:
        return Fenced("the hook token is dead; the execution is over")
    return Retry(f"the connection ended: {error}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a worker is asked."""

    scope: Scope
    """On whose behalf, as the relay checked it."""
    remaining_ms: int
    """Time left when the relay sent it; nobody waits any longer."""
    body: Any


Answering = Callable[[Asked], Awaitable[Any]]


class RequestWorker:
    """Offers a service until it is cancelled; reconnects by itself.

    Args:
        url: of `cape ws`; run one worker object for each process of it.
        service: the name callers use.
        secret: the workers' secret.
        answer: answers one request; what it raises becomes the caller's `Reject`. It is cancelled
            when nobody waits any more.
        window: requests at a time.
        bytes_max: of one request.
    """

    def __init__(
        self,
        url: str,
        service: str,
        secret: str,
        answer: Answering,
        *,
        window: int = 16,
        bytes_max: int = 1_048_576,
    ) -> None:
        self._url = f"{url}/v1/serve?service={service}"
        self._secret = secret
        self._answer = answer
        self._window = window
        self._bytes_max = bytes_max
        self.is_offering = asyncio.Event()
        """Set while the relay knows it."""

    async def run(self) -> None:
        """Serve; returns only by being cancelled.

        Raises:
            Reject: the relay does not know the secret.
        """
        failures = 0
        while True:
            try:
                async with connect(self._url, **_options(self._secret, self._bytes_max)) as socket:
                    await socket.send(f'{{"type":"offer","window":{self._window}}}')
                    await socket.recv()  # its welcome
                    self.is_offering.set()
                    failures = 0
                    await self._serve(socket)
            except ConnectionClosed as error:
                if error.rcvd is not None and error.rcvd.code == CLOSE_TOKEN:
                    raise Reject("the relay does not know this worker's secret") from error
                failures += 1
            except (WebSocketException, OSError):
                failures += 1
            finally:
                self.is_offering.clear()
            bound_ms = min(RECONNECT_MS_MAX, 50 << min(failures, 10))
            await asyncio.sleep(random.uniform(0, bound_ms) / 1_000)

    async def _serve(self, socket: ClientConnection) -> None:
        under_way: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                found = msgspec.json.decode(await socket.recv())
                number = found["id"]
                if found["type"] == "cancel":
                    task = under_way.get(number)
                    if task is not None:
                        task.cancel()
                    continue
                task = under_way[number] = asyncio.create_task(self._carry_out(socket, found))
                task.add_done_callback(partial(_forget, under_way, number))
        finally:
            for task in list(under_way.values()):
                task.cancel()

    async def _carry_out(self, socket: ClientConnection, found: dict[str, Any]) -> None:
        scope = Scope(
            found["environment"], found["app"], found["execution"], found["subject"], 0, 1, ""
        )
        reply: dict[str, Any] = {"id": found["id"]}
        try:
            async with asyncio.timeout(found["remaining_ms"] / 1_000) as patience:
                body = await self._answer(Asked(scope, found["remaining_ms"], found["body"]))
            reply |= {"type": "response", "body": body}
            text = msgspec.json.encode(reply).decode()
        except Exception as error:  # noqa: BLE001  # the boundary of user code: told to the caller
            if patience.expired():
                return  # the relay has told the caller
            detail = f"{type(error).__name__}: {error}"
            reply = {"id": found["id"], "type": "error", "detail": detail}
            text = msgspec.json.encode(reply).decode()
        with contextlib.suppress(ConnectionClosed):
            await socket.send(text)


def _forget(under_way: dict[int, asyncio.Task[None]], number: int, _: object) -> None:
    under_way.pop(number, None)
