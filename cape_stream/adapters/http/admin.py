"""The admin API: what `cape topology|cursor|parked|explain|audit` ask a dispatcher over HTTP.

    GET  /v1/explain?domain=D&subject=S       why a subject waits
    GET  /v1/parked?domain=D[&topology=T][&limit=N]   what is put aside here
    GET  /v1/topologies?domain=D              paused or not, and jobs out, per partition here
    GET  /v1/audit?domain=D                   findings, one JSON object a line
    POST /v1/operations                       an order; answers with its audit entries

Errors are JSON: ``{"error": "..."}``. 421 says that the subject is with another member, and names
its address in ``owner`` when the group tells it. A browser page of somebody else cannot order
anything: a body that is not declared to be JSON is refused.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cape_stream.adapters.http.calls import AdminCalls, MisdirectedError
from cape_stream.errors import CapeError, Fatal, Reject, Retry

BODY_BYTES_MAX = 65_536
PARKED_DEFAULT = 1_000
PARKED_MAX = 100_000

Endpoint = Callable[[Request], Awaitable[Response]]


def admin_app(calls: AdminCalls, token: str | None) -> Starlette:
    """The API as an ASGI application.

    Args:
        calls: what answers.
        token: what a caller has to show as ``Authorization: Bearer``; None asks for none.
    """

    async def explain(request: Request) -> Response:
        domain, subject = _wanted(request, "domain"), _wanted(request, "subject")
        return JSONResponse(await run_in_threadpool(calls.explain, domain, subject))

    async def parked(request: Request) -> Response:
        domain, topology = _wanted(request, "domain"), request.query_params.get("topology")
        limit = _count(request.query_params.get("limit"))
        found = await run_in_threadpool(lambda: list(calls.parked(domain, topology, limit)))
        return JSONResponse(found)

    async def topologies(request: Request) -> Response:
        domain = _wanted(request, "domain")
        return JSONResponse(await run_in_threadpool(lambda: list(calls.topologies(domain))))

    async def audit(request: Request) -> Response:
        domain = _wanted(request, "domain")
        found = await run_in_threadpool(lambda: list(calls.audit(domain)))
        lines = "".join(json.dumps(each) + "\n" for each in found)
        return PlainTextResponse(lines, media_type="application/x-ndjson")

    async def order(request: Request) -> Response:
        fields = await _json_body(request)
        return JSONResponse(await run_in_threadpool(lambda: list(calls.order(fields))))

    gets = (explain, parked, topologies, audit)
    routes = [
        Route(f"/v1/{each.__name__}", _guarded(each, token), methods=["GET"]) for each in gets
    ]
    routes.append(Route("/v1/operations", _guarded(order, token), methods=["POST"]))
    return Starlette(routes=routes)


def _guarded(endpoint: Endpoint, token: str | None) -> Endpoint:
    """The endpoint behind the token, with its refusals as answers."""

    async def guarded(request: Request) -> Response:
        if not _is_allowed(request, token):
            return _error(401, "give the admin token as `Authorization: Bearer ...`")
        try:
            return await endpoint(request)
        except MisdirectedError as error:
            return JSONResponse({"error": str(error), "owner": error.owner}, 421)
        except Reject as error:
            return _error(400, error.reason)
        except Retry as error:
            return _error(503, error.reason)
        except Fatal as error:
            return _error(500, error.reason)
        except CapeError as error:
            return _error(503, error.reason)

    return guarded


def _is_allowed(request: Request, token: str | None) -> bool:
    """Compared in constant time: the time an answer takes tells nothing of the token."""
    if token is None:
        return True
    given = request.headers.get("authorization", "").encode("latin-1", "replace")
    return hmac.compare_digest(given, f"Bearer {token}".encode())


def _error(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)


def _wanted(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise Reject(f"the parameter {name} is missing")
    return value


def _count(text: str | None) -> int:
    if text is None:
        return PARKED_DEFAULT
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= PARKED_MAX:
        raise Reject(f"limit must be a whole number from 1 to {PARKED_MAX}, not {text!r}")
    return int(text)


async def _json_body(request: Request) -> Mapping[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise Reject(f"the body must be application/json, not {kind or 'undeclared'}")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise Reject(f"the body has more than {BODY_BYTES_MAX} bytes")
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise Reject(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise Reject("the body must be one JSON object")
    return fields
