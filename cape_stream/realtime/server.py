"""The stream server's routes: streams over SSE and WebSocket, client publishes, health.

GET  /v1/stream      grant by `Authorization: Bearer`, `?grant=`, or WebSocket subprotocol;
                     cursor by `Last-Event-ID` or `?last_event_id=`
POST /v1/publish     one signal of a client, within the bounds of its grant
GET  /v1/client.js   the browser client
GET  /livez /readyz /metrics
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.resources import files
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from cape_stream.errors import CapeError
from cape_stream.ports.channels import ChannelFeed
from cape_stream.realtime.admission import (
    CLOSE_CODE,
    STATUS,
    SUBPROTOCOL,
    Asked,
    Doorkeeper,
    asked,
)
from cape_stream.realtime.client_publish import REQUEST_BYTES_MAX, ClientPublisher
from cape_stream.realtime.context import wall_clock_ms
from cape_stream.realtime.framing import ws_text
from cape_stream.realtime.grants import Grant, Refusal
from cape_stream.realtime.hub import Hub
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.links import LINK
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.realtime.streams import Ending, Stream, Wire

STREAM_PATH = "/v1/stream"
RETRY_AFTER_S = 5
BODY_DEADLINE_S = 10.0
"""A client that has not sent its signal by then is let go."""
MALFORMED_MAX = 10
"""Messages of a WebSocket client that nobody understands, before it is let go."""
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),  # no proxy may compress or keep it
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),  # a stream is the last thing on its connection
]
PREFLIGHT_HEADERS = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, last-event-id, content-type"),
    (b"access-control-max-age", b"86400"),
]
CLOSES = {
    Ending.EXPIRED: 4401,
    Ending.REVOKED: 4403,
    Ending.RECONNECT: 1012,
}
"""Close code of a WebSocket by why its stream ended."""


class StreamServer:
    """The application; its hub lives from startup to shutdown.

    Args:
        make_feed: the store's listening side, made inside the loop.
        keys: verify grants, seal cursors.
        settings: limits.
        now_ms: the wall clock.
        more_routes: served beside the streams.
    """

    def __init__(
        self,
        make_feed: Callable[[], ChannelFeed],
        keys: GrantKeys,
        settings: RealtimeSettings,
        now_ms: Callable[[], int] = wall_clock_ms,
        more_routes: Sequence[BaseRoute] = (),
    ) -> None:
        self._make_feed = make_feed
        self._keys = keys
        self._settings = settings
        self._door = Doorkeeper(keys, settings, now_ms)
        self.hub: Hub
        self._feed: ChannelFeed
        self._publisher: ClientPublisher
        self._others = Starlette(
            routes=[
                WebSocketRoute(STREAM_PATH, self._ws_stream),
                Route("/v1/publish", self._publish, methods=["POST", "OPTIONS"]),
                Route("/v1/client.js", self._client, methods=["GET"]),
                Route("/livez", self._live, methods=["GET"]),
                Route("/readyz", self._ready, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                *more_routes,
            ],
            lifespan=self._lifespan,
        )

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application; an event stream, of which there are thousands, takes no detour."""
        if scope["type"] == "http" and scope["path"] == STREAM_PATH:
            await self._http_stream(scope, receive, send)
        else:
            await self._others(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._feed = self._make_feed()
        self.hub = Hub(self._feed, self._keys, self._settings)
        self._publisher = ClientPublisher(self._feed, self.hub.counters)
        yield
        await self.hub.close()
        await self._feed.close()

    # --- server-sent events ----------------------------------------------------------------------

    async def _http_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        shown = asked(scope)
        cors = self._door.cors(shown.origin)
        if scope["method"] == "OPTIONS":
            await _answer(send, 204, b"", [*cors, *PREFLIGHT_HEADERS])
            return
        if scope["method"] != "GET":
            await _answer(send, 405, b'{"error":"method"}', [(b"allow", b"GET, OPTIONS"), *cors])
            return
        stream = self._admitted(shown, scope, Wire.SSE)
        if not isinstance(stream, Stream):
            await _answer(send, *_refusal(stream), cors)
            return
        try:
            opening = await self.hub.join(stream, shown.cursor)
        except CapeError:  # also a channel whose keys another program spoiled
            self._let_go(stream, "unavailable")
            await _answer(send, *_refusal(503), cors)
            return
        if opening.is_revoked or stream.ending is not None:
            refusal = _late_refusal(stream, is_revoked=opening.is_revoked)
            self._let_go(stream, str(refusal))
            await _answer(send, *_refusal(refusal), cors)
            return
        try:
            await send(
                {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS + cors}
            )
            await self.hub.begin(stream, opening, is_resumed=bool(shown.cursor))
            await stream.ended
            if not stream.link.transport.is_closing():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.hub.leave(stream)

    def _admitted(self, shown: Asked, scope: Scope, wire: Wire) -> Stream | Refusal | int:
        """A stream that may be opened, or a refusal, or the status of one that has no reason."""
        if not self._door.knows_origin(shown.origin):
            self.hub.counters.refuse("origin")
            return 403
        if scope["type"] == "http" and scope["http_version"] != "1.1":
            self.hub.counters.refuse("http_version")
            return 505
        found = self._door.admit(shown.token)
        if isinstance(found, Refusal):
            self.hub.counters.refuse(found.value)
            return found
        if not self.hub.is_ready or self.hub.counters.streams >= self._settings.connections_max:
            self.hub.counters.refuse("busy")
            return 503
        grant, life_ms = found
        return Stream(scope[LINK], wire, grant, life_ms)

    def _let_go(self, stream: Stream, reason: str) -> None:
        self.hub.leave(stream)
        self.hub.counters.refuse(reason)

    # --- WebSocket -------------------------------------------------------------------------------

    async def _ws_stream(self, socket: WebSocket) -> None:
        shown = asked(socket.scope)
        has_protocol = SUBPROTOCOL in socket.scope["subprotocols"]
        stream = self._admitted(shown, socket.scope, Wire.WEBSOCKET)
        # Accepted before it is refused: a browser shows its page close codes, but no status.
        await socket.accept(subprotocol=SUBPROTOCOL if has_protocol else None)
        if not isinstance(stream, Stream):
            await socket.close(*_close(stream))
            return
        try:
            opening = await self.hub.join(stream, shown.cursor)
        except CapeError:
            self._let_go(stream, "unavailable")
            await socket.close(*_close(503))
            return
        if opening.is_revoked or stream.ending is not None:
            refusal = _late_refusal(stream, is_revoked=opening.is_revoked)
            self._let_go(stream, str(refusal))
            await socket.close(*_close(refusal))
            return
        try:
            await self.hub.begin(stream, opening, is_resumed=bool(shown.cursor))
            await self._talk(socket, stream)
        finally:
            self.hub.leave(stream)

    async def _talk(self, socket: WebSocket, stream: Stream) -> None:
        """Take what the client sends until the stream has ended."""
        listening = asyncio.create_task(self._listen(socket, stream))
        try:
            ending = await stream.ended
        finally:
            listening.cancel()
        if ending in CLOSES and not stream.link.transport.is_closing():
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await socket.close(CLOSES[ending], ending.value)

    async def _listen(self, socket: WebSocket, stream: Stream) -> None:
        malformed = 0
        while stream.ending is None:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                stream.finish(Ending.LOST)
                return
            raw = message.get("bytes") or (message.get("text") or "").encode()
            answer = await self._publisher.publish(stream.grant, raw)
            reply: dict[str, object] = {"type": "ack", "ref": answer.ref}
            if answer.reason:
                reply |= {"type": "refused", "reason": answer.reason}
            self.hub.readers.write(stream, ws_text(msgspec.json.encode(reply)))
            malformed += answer.status == 400
            if malformed > MALFORMED_MAX:
                self.hub.readers.cut(stream)

    # --- the rest --------------------------------------------------------------------------------

    async def _publish(self, request: Request) -> Response:
        shown = asked(request.scope)
        cors = self._door.cors(shown.origin)
        if request.method == "OPTIONS":
            return _response(204, b"", [*cors, *PREFLIGHT_HEADERS])
        if not self._door.knows_origin(shown.origin):
            return _response(*_refusal(403), cors)
        found = self._door.admit(shown.token)
        if isinstance(found, Refusal):
            return _response(*_refusal(found), cors)
        grant: Grant = found[0]
        try:
            async with asyncio.timeout(BODY_DEADLINE_S):
                raw = await _body(request)
        except TimeoutError:
            return _response(408, b'{"error":"timeout"}', [*cors, (b"connection", b"close")])
        if raw is None:
            return _response(413, b'{"error":"too_large"}', cors)
        try:
            if (await self._feed.revoked(grant.realm, [grant.key]))[0]:
                return _response(*_refusal(Refusal.REVOKED), cors)
        except CapeError:
            return _response(*_refusal(503), cors)
        answer = await self._publisher.publish(grant, raw)
        body: dict[str, object] = {"error": answer.reason} if answer.reason else {}
        return _response(answer.status, msgspec.json.encode(body), cors)

    async def _client(self, request: Request) -> Response:
        text = files("cape_stream.realtime").joinpath("browser", "cape-realtime.js").read_bytes()
        cors = self._door.cors(asked(request.scope).origin)
        return _response(200, text, [*cors, (b"cache-control", b"max-age=300")], "text/javascript")

    async def _live(self, _: Request) -> Response:
        failure = self.hub.failure
        return PlainTextResponse(
            f"failed: {failure!r}" if failure else "ok", 500 if failure else 200
        )

    async def _ready(self, _: Request) -> Response:
        is_ready = self.hub.is_ready
        why = "ok" if is_ready else "draining, or no link to the channel store"
        return PlainTextResponse(why, 200 if is_ready else 503)

    async def _metrics(self, _: Request) -> Response:
        return PlainTextResponse(self.hub.counters.as_text())


def _late_refusal(stream: Stream, *, is_revoked: bool) -> Refusal | int:
    """Why a stream that was admitted is not opened after all."""
    if is_revoked or stream.ending is Ending.REVOKED:
        return Refusal.REVOKED
    return Refusal.EXPIRED if stream.ending is Ending.EXPIRED else 503


def _refusal(why: Refusal | int) -> tuple[int, bytes]:
    if isinstance(why, Refusal):
        return STATUS[why], msgspec.json.encode({"error": why.value})
    words = {403: "origin", 503: "unavailable", 505: "http_1_1_only"}
    return why, msgspec.json.encode({"error": words[why]})


def _close(why: Refusal | int) -> tuple[int, str]:
    if isinstance(why, Refusal):
        return CLOSE_CODE[why], why.value
    return (4403, "origin") if why == 403 else (1013, "unavailable")


def _headers(status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> list[Any]:
    found = [(b"content-length", str(len(body)).encode()), *headers]
    if status == 503:
        found.append((b"retry-after", str(RETRY_AFTER_S).encode()))
    return found


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    found = [(b"content-type", b"application/json"), *_headers(status, body, headers)]
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": body})


def _response(
    status: int,
    body: bytes,
    headers: list[tuple[bytes, bytes]],
    media_type: str = "application/json",
) -> Response:
    response = Response(body, status, media_type=media_type)
    response.raw_headers += _headers(status, b"", headers)[1:]
    return response


async def _body(request: Request) -> bytes | None:
    """The body, or None if it is larger than any client may send."""
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > REQUEST_BYTES_MAX:
            return None
    return raw
