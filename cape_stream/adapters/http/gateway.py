"""The status gateway over HTTP, for workers and sources that cannot reach Kafka.

    POST /v1/job-statuses               reports of workers, each with the token of its job
    POST /v1/pings[?domain=D]           subjects have news
    GET  /openapi.json                  this, for programs

A body is JSON, one object or a list of them, or `application/vnd.cape.avro`: records in Confluent's
wire format, each behind its length as four bytes, big endian. The answer comes once the log has
acknowledged, with a verdict per item, in order; its status is 200 if all were accepted, 207 if some
were, 422 if none was, and 503 if any should be sent again.
"""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cape_stream.adapters.http.gateway_openapi import AVRO, JSON, OPENAPI

LENGTH_BYTES = 4


@dataclass(slots=True, frozen=True)
class Verdict:
    """What became of one item."""

    verdict: str
    """``accepted``: it is in the log; ``refused``: it never will be; ``retry``: send it again."""
    code: str = ""
    """Why not, for programs."""
    reason: str = ""
    """Why not, for people."""


Items = Sequence[object]
"""JSON values, or records as bytes."""


@dataclass(slots=True, frozen=True, kw_only=True)
class GatewayCalls:
    """What answers; each call returns one verdict an item."""

    report: Callable[[Items], Awaitable[Sequence[Verdict]]]
    ping: Callable[[Items, str | None], Awaitable[Sequence[Verdict]]]
    refuse: Callable[[str], None]
    """Counts a request that was refused as a whole, by a short name."""


@dataclass(slots=True, frozen=True, kw_only=True)
class GatewayLimits:
    """What a request may be."""

    body_bytes_max: int
    batch_max: int
    body_timeout_ms: int
    ping_token: str
    """Empty asks for none."""


class RefusedError(Exception):
    """A request that is answered without a look at its items."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code


def gateway_app(calls: GatewayCalls, limits: GatewayLimits) -> Starlette:
    """The gateway as an ASGI application."""

    async def job_statuses(request: Request) -> Response:
        return _told(await calls.report(await _items(request, limits)))

    async def pings(request: Request) -> Response:
        if not _may_ping(request, limits.ping_token):
            raise RefusedError(401, "no_ping_token", "give the ping token: Authorization: Bearer ")
        items = await _items(request, limits)
        return _told(await calls.ping(items, request.query_params.get("domain")))

    async def openapi(_: Request) -> Response:
        return JSONResponse(OPENAPI)

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError), "registered for it"
        calls.refuse(error.code)
        body = {"error": str(error), "code": error.code}
        # What is left of a body that was not read must not become the next request.
        return JSONResponse(body, error.status, headers={"connection": "close"})

    return Starlette(
        routes=[
            Route("/v1/job-statuses", job_statuses, methods=["POST"]),
            Route("/v1/pings", pings, methods=["POST"]),
            Route("/openapi.json", openapi, methods=["GET"]),
        ],
        exception_handlers={RefusedError: refused},
    )


def _told(verdicts: Sequence[Verdict]) -> Response:
    said = {each.verdict for each in verdicts}
    status = 503 if "retry" in said else 422 if said == {"refused"} else 207
    fields: list[dict[str, Any]] = [
        {"verdict": each.verdict}
        if each.verdict == "accepted"
        else {"verdict": each.verdict, "code": each.code, "reason": each.reason}
        for each in verdicts
    ]
    return JSONResponse({"verdicts": fields}, 200 if said == {"accepted"} else status)


def _may_ping(request: Request, token: str) -> bool:
    """Compared in constant time: the time an answer takes tells nothing of the token."""
    if not token:
        return True
    given = request.headers.get("authorization", "").encode("latin-1", "replace")
    return hmac.compare_digest(given, f"Bearer {token}".encode())


async def _items(request: Request, limits: GatewayLimits) -> Items:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, AVRO):
        raise RefusedError(
            415, "content_type", f"the body must be {JSON} or {AVRO}, not {kind or 'undeclared'}"
        )
    body = await _body(request, limits)
    if not body:
        raise RefusedError(400, "empty", "the body is empty")
    items = _json_items(body) if kind == JSON else _records(body)
    if not items:
        raise RefusedError(400, "empty", "the list is empty")
    if len(items) > limits.batch_max:
        text = f"{len(items)} items are more than {limits.batch_max}: send them in parts"
        raise RefusedError(413, "too_many", text)
    return items


async def _body(request: Request, limits: GatewayLimits) -> bytes:
    most = limits.body_bytes_max
    text = f"the body has more than {most} bytes: send it in parts"
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared[:20]) > most:
        raise RefusedError(413, "too_large", text)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout_ms / 1_000):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise RefusedError(413, "too_large", text)
                chunks.append(chunk)
    except TimeoutError as error:
        late = f"the body did not come within {limits.body_timeout_ms} ms"
        raise RefusedError(408, "too_slow", late) from error
    return b"".join(chunks)


def _json_items(body: bytes) -> Items:
    try:
        found = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "not_json", f"the body is not JSON: {str(error)[:200]}") from error
    return found if isinstance(found, list) else [found]


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON number")


def _records(body: bytes) -> Items:
    records, at = [], 0
    while at < len(body):
        start = at + LENGTH_BYTES
        end = start + int.from_bytes(body[at:start], "big")
        if start > len(body) or end > len(body):
            text = f"the record at byte {at} is cut off: each stands behind its length, 4 bytes"
            raise RefusedError(400, "cut_off", text)
        records.append(body[start:end])
        at = end
    return records
