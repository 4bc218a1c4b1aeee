"""The sockets of `cape ws`: callers with hook tokens on one side, workers on the other.

    WS /v1/call              a caller; its hook token as `Authorization: Bearer`
    WS /v1/serve?service=db  a worker; the workers' secret as `Authorization: Bearer`

Messages are JSON objects in text frames.

    relay → caller   hello{window, bytes_max}
    caller → relay   request{id, service, deadline_ms, body}   cancel{id}
    relay → caller   response{id, body}   error{id, reason, detail}
    worker → relay   offer{window}, first of all
    relay → worker   welcome{}
    relay → worker   request{id, remaining_ms, environment, app, execution, subject, body}
                     cancel{id}
    worker → relay   response{id, body}   error{id, detail}

A caller that has `window` requests under way is not read until one is answered: its own socket
holds it back. A socket whose other end takes nothing for the send deadline is cut off.
"""

import asyncio
import hmac
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from cape_stream.errors import Retry
from cape_stream.ports.credentials import AsyncHookTokens, Scope
from cape_stream.realtime.admission import asked
from cape_stream.realtime.links import LINK
from cape_stream.realtime.relay import Failure, Outcome, Relay, RelayWorker, WorkerRequest
from cape_stream.realtime.settings import RealtimeSettings

CLOSE_TOKEN = 4401
CLOSE_MALFORMED = 4400
CLOSE_LATER = 1013
SERVICE_CHARACTERS_MAX = 64


class FromCaller(msgspec.Struct, forbid_unknown_fields=True):
    """A request, or its cancellation."""

    type: str
    id: int
    service: str = ""
    deadline_ms: int = 10_000
    body: msgspec.Raw = msgspec.Raw(b"null")


class FromWorker(msgspec.Struct, forbid_unknown_fields=True):
    """An offer or an answer."""

    type: str
    id: int = 0
    window: int = 1
    body: msgspec.Raw = msgspec.Raw(b"null")
    detail: str = ""


T = TypeVar("T")
_CALLER = msgspec.json.Decoder(FromCaller)
_WORKER = msgspec.json.Decoder(FromWorker)
_JSON = msgspec.json.Encoder()


class CallServer:
    """Routes of the relay.

    Args:
        tokens: check callers.
        worker_token: what workers show; empty: no worker may come.
        settings: limits.
    """

    def __init__(
        self, tokens: AsyncHookTokens, worker_token: str, settings: RealtimeSettings
    ) -> None:
        self._tokens = tokens
        self._worker_token = worker_token.encode()
        self._settings = settings
        self.relay = Relay(settings.calls_waiting_max)
        self.routes = [
            WebSocketRoute("/v1/call", self._call),
            WebSocketRoute("/v1/serve", self._serve),
        ]

    # --- callers ---------------------------------------------------------------------------------

    async def _call(self, socket: WebSocket) -> None:
        token = asked(socket.scope).token
        scope = await self._checked(token)
        await socket.accept()
        if not isinstance(scope, Scope):
            await socket.close(scope)
            return
        caller = _Caller(socket, scope, self.relay, self._settings)
        listening = asyncio.create_task(caller.listen())
        watching = asyncio.create_task(self._watch_token(token))
        done, _ = await asyncio.wait({listening, watching}, return_when="FIRST_COMPLETED")
        for task in (listening, watching):
            task.cancel()
        await caller.leave()
        code = next(iter(done)).result() if not listening.cancelled() else CLOSE_TOKEN
        await _close(socket, code)

    async def _checked(self, token: str) -> Scope | int:
        try:
            scope = await self._tokens.check(token)
        except Retry:
            return CLOSE_LATER
        return CLOSE_TOKEN if scope is None or not scope.execution else scope

    async def _watch_token(self, token: str) -> int:
        """Return when the token is dead, or when the store could not say so for too long."""
        patience = 0
        while True:
            await asyncio.sleep(self._settings.token_check_interval_ms / 1_000)
            found = await self._checked(token)
            if isinstance(found, Scope):
                patience = 0
                continue
            patience += 1
            if found == CLOSE_TOKEN or patience > 3:
                return found

    # --- workers ---------------------------------------------------------------------------------

    async def _serve(self, socket: WebSocket) -> None:
        service = socket.query_params.get("service", "")
        shown = asked(socket.scope).token.encode()
        is_known = bool(self._worker_token) and hmac.compare_digest(shown, self._worker_token)
        await socket.accept()
        if not is_known or not 1 <= len(service) <= SERVICE_CHARACTERS_MAX:
            await socket.close(CLOSE_TOKEN if not is_known else CLOSE_MALFORMED)
            return
        sender = _Sender(socket, self._settings.send_deadline_ms)
        offer = await _received(socket, _WORKER)
        if offer is None or offer.type != "offer" or not 1 <= offer.window <= 1_000:
            await _close(socket, CLOSE_MALFORMED)
            return
        worker = RelayWorker(service, offer.window, _asking(sender), _cancelling(sender))
        self.relay.join(worker)
        await sender.send({"type": "welcome"})
        try:
            while (answer := await _received(socket, _WORKER)) is not None:
                worker.answer(answer.id, _outcome(answer))
        finally:
            self.relay.leave(worker)
        await _close(socket, CLOSE_MALFORMED)


class _Caller:
    """One caller's socket."""

    def __init__(
        self, socket: WebSocket, scope: Scope, relay: Relay, settings: RealtimeSettings
    ) -> None:
        self._socket = socket
        self._scope = scope
        self._relay = relay
        self._settings = settings
        self._sender = _Sender(socket, settings.send_deadline_ms)
        self._window = asyncio.Semaphore(settings.call_window)
        self._under_way: dict[int, asyncio.Task[None]] = {}

    async def listen(self) -> int:
        """Take requests until the socket ends; the code to close it with."""
        hello = {
            "type": "hello",
            "window": self._settings.call_window,
            "bytes_max": self._settings.call_bytes_max,
        }
        await self._sender.send(hello)
        while (found := await _received(self._socket, _CALLER)) is not None:
            if found.type == "cancel":
                task = self._under_way.get(found.id)
                if task is not None:
                    task.cancel()
            elif found.type != "request" or found.id in self._under_way:
                await self._answer(found.id, Outcome(failure=Failure.MALFORMED))
            else:
                await self._window.acquire()  # not read any further until there is room
                self._under_way[found.id] = asyncio.create_task(self._carry_out(found))
        return CLOSE_MALFORMED

    async def _carry_out(self, found: FromCaller) -> None:
        try:
            deadline_ms = min(found.deadline_ms, self._settings.call_deadline_ms_max)
            if deadline_ms <= 0:
                outcome = Outcome(failure=Failure.DEADLINE)
            else:
                outcome = await self._relay.call(
                    found.service, self._scope, found.body, deadline_ms
                )
            await self._answer(found.id, outcome)
        finally:
            del self._under_way[found.id]
            self._window.release()

    async def _answer(self, request_id: int, outcome: Outcome) -> None:
        if outcome.failure is None:
            await self._sender.send({"type": "response", "id": request_id, "body": outcome.body})
        else:
            error = {"type": "error", "id": request_id, "reason": outcome.failure.value}
            await self._sender.send(error | {"detail": outcome.detail})

    async def leave(self) -> None:
        """Nobody waits for what is under way: cancel it at the workers."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Sender:
    """Writes to one socket; cuts it off when it takes nothing for too long."""

    def __init__(self, socket: WebSocket, deadline_ms: int) -> None:
        self._socket = socket
        self._deadline_s = deadline_ms / 1_000

    async def send(self, message: dict[str, Any]) -> None:
        """Send, or end the connection; who reads it learns of that."""
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._socket.send_text(_JSON.encode(message).decode())
        except TimeoutError:
            self._socket.scope[LINK].abort()
        except (WebSocketDisconnect, RuntimeError):
            return  # it has left


def _asking(sender: _Sender) -> Callable[[WorkerRequest], Any]:
    async def ask(request: WorkerRequest) -> None:
        await sender.send(
            {
                "type": "request",
                "id": request.request_id,
                "remaining_ms": request.remaining_ms,
                "environment": request.scope.environment,
                "app": request.scope.app,
                "execution": request.scope.execution,
                "subject": request.scope.subject,
                "body": request.body,
            }
        )

    return ask


def _cancelling(sender: _Sender) -> Callable[[int], None]:
    tasks: set[asyncio.Task[None]] = set()

    def cancel(request_id: int) -> None:
        task = asyncio.create_task(sender.send({"type": "cancel", "id": request_id}))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return cancel


def _outcome(answer: FromWorker) -> Outcome:
    if answer.type == "response":
        return Outcome(answer.body)
    return Outcome(failure=Failure.FAILED, detail=answer.detail)


async def _received(socket: WebSocket, decoder: "msgspec.json.Decoder[T]") -> T | None:
    """The next message; None when the socket has ended or says what is none."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    raw = message.get("bytes") or (message.get("text") or "").encode()
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


async def _close(socket: WebSocket, code: int) -> None:
    try:
        await socket.close(code)
    except (WebSocketDisconnect, RuntimeError):
        return  # it has left
