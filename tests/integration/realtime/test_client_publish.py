"""What a client may publish: what its grant bounds, and nothing else."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from cape_stream.ports.contexts import PublishBounds
from tests.integration.realtime.kit import (
    Installation,
    RunningServer,
    SseClient,
    hear,
    installation,
    of_type,
    wait_until,
    websocket,
)

BOUNDS = PublishBounds(("room",), kinds=("cursor", "typing"), bytes_max=100, per_s=5)


@pytest.fixture
def site() -> Iterator[Installation]:
    """An installation in memory."""
    with installation() as found:
        yield found


def post(server: RunningServer, token: str, body: bytes) -> tuple[int, str]:
    """Status and error of one publish over HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/v1/publish", body, {"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    return response.status, found.get("error", "")


def signal(**changes: Any) -> bytes:
    return json.dumps({"channel": "room", "kind": "cursor", "data": {"x": 1}} | changes).encode()


def test_signals_reach_others_with_their_sender_and_leave_no_trace(site: Installation) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"], publish=BOUNDS, holder="user-7").token
    listener = SseClient(server.port, context.grant(["room"]).token)
    cursor = listener.until_event("ready").id
    client = websocket(server.port, token)
    hear(client, of_type("ready"))

    client.send(json.dumps({"channel": "room", "kind": "typing", "data": "a\nb", "ref": 9}))
    assert hear(client, of_type("ack"))["ref"] == 9
    assert post(server, token, signal()) == (202, "")

    typing, moved = listener.until_messages(2)
    assert typing == {
        "channel": "room",
        "kind": "typing",
        "data": "a\nb",
        "client": True,
        "sender": "user-7",
    }
    assert (moved["kind"], moved["data"]) == ("cursor", {"x": 1})
    again = SseClient(server.port, context.grant(["room"]).token, cursor)
    again.until_event("ready")
    assert again.names == ["ready"]


REFUSED = [
    (signal(channel="other"), (403, "channel")),
    (signal(channel="room:1"), (403, "channel")),
    (signal(channel="elsewhere"), (403, "channel")),
    (signal(kind="message"), (403, "kind")),
    (signal(kind=""), (403, "kind")),
    (signal(data="x" * 99), (413, "too_large")),
    (signal(data="é" * 50), (413, "too_large")),
    (b"x" * 20_000, (413, "too_large")),
    (b"", (400, "malformed")),
    (b"[]", (400, "malformed")),
    (b'{"channel":"room"}', (400, "malformed")),
    (b'{"channel":7,"data":1}', (400, "malformed")),
    (signal(environment="live"), (400, "malformed")),
    (b'{"channel":"room","data":1,"kind":"cursor"', (400, "malformed")),
    (b"\xff\xfe", (400, "malformed")),
    (b'{"channel":"room","kind":"cursor","data":' + b"[" * 5_000, (400, "malformed")),
]


@pytest.mark.parametrize(("body", "answer"), REFUSED)
def test_what_is_beyond_the_bounds_is_refused_and_the_next_is_served(
    site: Installation, body: bytes, answer: tuple[int, str]
) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room", "other"], publish=BOUNDS).token
    listener = SseClient(server.port, context.grant(["room", "other"]).token)
    listener.until_event("ready")

    assert post(server, token, body) == answer
    assert post(server, token, signal()) == (202, "")

    assert [each["data"] for each in listener.until_messages(1)] == [{"x": 1}]
    assert server.counters.client_publishes_refused in ({answer[1]: 1}, {})


def test_a_grant_without_bounds_publishes_nothing(site: Installation) -> None:
    server, context = site.start(), site.context()

    assert post(server, context.grant(["room"]).token, signal()) == (403, "channel")


def test_dead_and_revoked_grants_publish_nothing(site: Installation) -> None:
    server, context = site.start(), site.context()
    revoked = context.grant(["room"], publish=BOUNDS)
    dead = context.grant(["room"], timedelta(milliseconds=1), publish=BOUNDS)
    context.revoke(grant_id=revoked.grant_id)
    wait_until(lambda: context._now_ms() > dead.expires_ms)

    assert post(server, revoked.token, signal()) == (403, "revoked")
    assert post(server, dead.token, signal()) == (401, "expired")
    assert post(server, "nonsense", signal()) == (401, "malformed")


def test_a_storm_of_signals_is_held_to_its_rate_over_all_servers_and_connections(
    site: Installation,
) -> None:
    servers, context = [site.start(), site.start()], site.context()
    token = context.grant(["room"], publish=BOUNDS).token
    listener = SseClient(servers[0].port, context.grant(["room"]).token)
    listener.until_event("ready")

    answers = [post(servers[number % 2], token, signal()) for number in range(60)]

    told = answers.count((202, ""))
    assert told >= 5
    assert answers.count((429, "rate")) == 60 - told
    assert len(listener.until_messages(told)) == told


def test_a_websocket_that_talks_nonsense_is_let_go(site: Installation) -> None:
    server, context = site.start(), site.context()
    client = websocket(server.port, context.grant(["room"], publish=BOUNDS).token)
    hear(client, of_type("ready"))

    answered = 0
    with suppress(ConnectionClosed):
        while answered < 100:
            client.send("nonsense")
            hear(client, of_type("refused"))
            answered += 1

    assert 0 < answered < 20
    wait_until(lambda: server.counters.streams == 0)


def test_a_body_that_never_ends_is_given_up(
    site: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cape_stream.realtime.server.BODY_DEADLINE_S", 0.2)
    server, context = site.start(), site.context()
    token = context.grant(["room"], publish=BOUNDS).token
    head = f"POST /v1/publish?grant={token} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{"
    with socket.create_connection(("127.0.0.1", server.port), 20) as slow:
        slow.sendall(head.encode())

        assert slow.recv(12) == b"HTTP/1.1 408"


def test_a_signal_stays_in_its_environment(site: Installation) -> None:
    server, live, dev = site.start(), site.context(), site.context("dev-7")
    token = dev.grant(["room"], publish=BOUNDS).token
    listeners = [SseClient(server.port, each.grant(["room"]).token) for each in (live, dev)]
    for listener in listeners:
        listener.until_event("ready")

    assert post(server, token, signal()) == (202, "")

    listeners[1].until_messages(1)
    listeners[0].until_comments(2)
    assert listeners[0].messages == []
