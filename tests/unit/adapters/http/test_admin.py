"""The admin API over a real socket: who is let in, and what is refused how."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from cape_stream.adapters.http.admin import BODY_BYTES_MAX, admin_app
from cape_stream.adapters.http.calls import AdminCalls, MisdirectedError
from cape_stream.adapters.http.serving import HttpServer
from cape_stream.errors import Fatal, Reject, Retry

TOKEN = "a-token-of-16-or-more"


def explain(domain: str, subject: str) -> Mapping[str, Any]:
    if subject == "elsewhere":
        raise MisdirectedError("not here", "http://127.0.0.1:9")
    if subject == "late":
        raise Retry("no answer in time")
    if domain != "orders":
        raise Reject(f"there is no domain {domain!r}")
    return {"subject": subject}


def parked(domain: str, topology: str | None, limit: int) -> Iterable[Mapping[str, Any]]:
    return [{"topology": topology, "limit": limit}]


def order(fields: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return [dict(fields)]


CALLS = AdminCalls(
    explain=explain,
    parked=parked,
    topologies=lambda domain: [{"domain": domain}],
    audit=lambda domain: [{"kind": "leaked"}, {"kind": "stuck"}],
    order=order,
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = HttpServer(admin_app(CALLS, TOKEN), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


def call(
    url: str, body: bytes | None = None, token: str = TOKEN, kind: str = "application/json"
) -> tuple[int, str]:
    request = urllib.request.Request(url, data=body)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    if body is not None:
        request.add_header("Content-Type", kind)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_questions_are_answered_as_json_and_findings_as_lines(address: str) -> None:
    assert json.loads(call(f"{address}/v1/explain?domain=orders&subject=a%20%C3%A9%2F")[1]) == {
        "subject": "a é/"
    }
    status, text = call(f"{address}/v1/parked?domain=orders&topology=T1&limit=7")
    assert (status, json.loads(text)) == (200, [{"topology": "T1", "limit": 7}])
    assert [json.loads(line) for line in call(f"{address}/v1/audit?domain=d")[1].splitlines()] == [
        {"kind": "leaked"},
        {"kind": "stuck"},
    ]
    assert call(f"{address}/v1/operations", b'{"verb": "skip"}') == (200, '[{"verb":"skip"}]')


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1]])
@pytest.mark.parametrize(
    "path", ["explain?domain=orders&subject=S", "parked?domain=d", "audit?domain=d"]
)
def test_nobody_without_the_token_is_answered(address: str, path: str, token: str) -> None:
    status, text = call(f"{address}/v1/{path}", token=token)

    assert status == 401
    assert TOKEN not in text
    assert call(f"{address}/v1/operations", b"{}", token=token)[0] == 401


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("explain?domain=orders", 400, "the parameter subject is missing"),
        ("explain?domain=x&subject=S", 400, "there is no domain 'x'"),
        ("explain?domain=orders&subject=late", 503, "no answer in time"),
        ("explain?domain=orders&subject=elsewhere", 421, "http://127.0.0.1:9"),
        ("parked?domain=d&limit=0", 400, "limit must be a whole number from 1"),
        ("parked?domain=d&limit=%EF%BC%91", 400, "limit must be a whole number from 1"),
        ("nothing", 404, "Not Found"),
    ],
)
def test_wrong_questions_are_refused_with_the_reason(
    address: str, path: str, status: int, said: str
) -> None:
    code, text = call(f"{address}/v1/{path}")

    assert (code, said in text) == (status, True), text


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"{}", "text/plain", "must be application/json, not text/plain"),
        (b"{", "application/json", "the body is not JSON"),
        (b"\xff", "application/json", "the body is not JSON"),
        (b"[]", "application/json", "must be one JSON object"),
        (b" " * (BODY_BYTES_MAX + 1), "application/json", "has more than"),
    ],
)
def test_bodies_that_are_no_order_are_refused(
    address: str, body: bytes, kind: str, said: str
) -> None:
    code, text = call(f"{address}/v1/operations", body, kind=kind)

    assert (code, said in text) == (400, True), text


def test_port_that_is_taken_is_refused_and_a_stopped_server_frees_its_own(address: str) -> None:
    taken = int(address.rsplit(":", 1)[1])
    with pytest.raises(Fatal, match="cannot listen on"):
        HttpServer(admin_app(CALLS, None), "127.0.0.1", taken)

    server = HttpServer(admin_app(CALLS, None), "127.0.0.1", 0)
    assert call(f"http://127.0.0.1:{server.port}/v1/topologies?domain=d", token="")[0] == 200
    server.stop()
    HttpServer(admin_app(CALLS, None), "127.0.0.1", server.port).stop()
