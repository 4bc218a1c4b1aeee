"""Streams over server-sent events: framing, cursors, ends and refusals, as a client sees them."""

import http.client
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cape_stream.ports.channels import Realm
from cape_stream.realtime.grants import new_grant, sign
from cape_stream.realtime.keys import GrantKeys
from tests.integration.realtime.kit import (
    Installation,
    MemoryStage,
    SseClient,
    installation,
    wait_until,
)

LIVE = Realm("live", "app")
CASES = json.loads((Path(__file__).parents[2] / "data" / "sse-payloads.json").read_text())["cases"]


@pytest.fixture
def site() -> Iterator[Installation]:
    """An installation in memory."""
    with installation() as found:
        yield found


def get(port: int, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Any:
    """Status, headers and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers=headers or {})
    response = connection.getresponse()
    found = response.status, response.headers, response.read()
    connection.close()
    return found


def test_every_payload_arrives_once_and_exactly(site: Installation) -> None:
    server, context = site.start(), site.context()
    client = SseClient(server.port, context.grant(["room"]).token)
    client.until_event("ready")
    texts = [
        str(case["send"] if "send" in case else case["send_repeat"]["text"] * 20_000)
        for case in CASES
    ]

    for text in texts:
        context.publish("room", text)

    assert [each["data"] for each in client.until_messages(len(texts))] == texts
    assert set(client.names) == {"ready", "message"}


def test_heartbeats_are_comments_that_move_the_cursor(site: Installation) -> None:
    server, context = site.start(), site.context()
    client = SseClient(server.port, context.grant(["room"]).token)
    first = client.until_event("ready").id

    client.until(lambda: client.comments >= 3)

    assert client.last_id != first
    assert client.names == ["ready"]


def test_nothing_an_app_names_can_end_a_line(site: Installation) -> None:
    """Channel, kind and data that look like the protocol come out as data."""
    server, context = site.start(), site.context()
    channel = "data: x: event: expired id: 9"
    client = SseClient(server.port, context.grant([channel]).token)
    client.until_event("ready")

    context.publish(channel, "\n\nevent: expired\ndata: {}\n\n", kind="event: reset")

    message = client.until_messages(1)[0]
    assert message["channel"] == channel
    assert message["kind"] == "event: reset"
    assert client.names == ["ready", "message"]


def test_a_cursor_in_the_address_is_weaker_than_the_header(site: Installation) -> None:
    """A browser that reconnects repeats its address; the header is newer."""
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    client = SseClient(server.port, token)
    old = client.until_event("ready").id
    context.publish("room", 1)
    client.until_messages(1)
    client.close()
    context.publish("room", 2)

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    address = f"/v1/stream?grant={token}&last_event_id={old}"
    connection.request("GET", address, headers={"Last-Event-ID": client.last_id})
    text = b""
    with connection.getresponse() as response:
        while b"event: ready" not in text:
            text += response.read1(65_536)
    connection.close()

    assert text.count(b'"data":') == 1
    assert b'"data":2' in text


def test_an_id_comes_right_after_connect_and_resumes(site: Installation) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    client = SseClient(server.port, token)
    client.until_event("ready")
    client.close()

    context.publish("room", 1)
    context.publish("room", 2)
    again = SseClient(server.port, token, client.last_id)

    assert [each["data"] for each in again.until_messages(2)] == [1, 2]
    assert again.until_event("ready").json["resumed"] is True


@pytest.mark.parametrize("cursor", ["does-not-exist", "x" * 500, "%00", "0", "🚀".encode().hex()])
def test_an_unknown_cursor_is_told_as_a_gap(site: Installation, cursor: str) -> None:
    server, context = site.start(), site.context()
    client = SseClient(server.port, context.grant(["room"]).token, cursor)

    client.until_event("ready")

    assert client.names == ["reset", "ready"]
    assert client.events[0].json["channels"] == ["room"]
    assert client.events[0].id == cursor, "what the client has stays until there is a better one"
    assert client.events[1].json["resumed"] is False
    context.publish("room", "goes on")
    assert client.until_messages(1)[0]["data"] == "goes on"


def test_a_cursor_older_than_the_history_is_told_as_a_gap_of_that_channel() -> None:
    with installation(history_messages=3) as site:
        server, context = site.start(), site.context()
        token = context.grant(["busy", "calm"]).token
        client = SseClient(server.port, token)
        client.until_event("ready")
        client.close()
        context.publish("calm", "kept")
        for number in range(4):
            context.publish("busy", number)

        again = SseClient(server.port, token, client.last_id)
        again.until_event("ready")

        assert again.names == ["reset", "message", "ready"]
        assert again.events[0].json["channels"] == ["busy"]
        assert [each["data"] for each in again.messages] == ["kept"]


def test_a_cursor_of_another_environment_is_unknown(site: Installation) -> None:
    server, live, dev = site.start(), site.context(), site.context("dev-7")
    client = SseClient(server.port, dev.grant(["room"]).token)
    client.until_event("ready")

    other = SseClient(server.port, live.grant(["room"]).token, client.last_id)
    other.until_event("ready")

    assert other.names == ["reset", "ready"]


def test_a_stream_ends_with_its_grant_and_the_dead_grant_is_final(site: Installation) -> None:
    server, context = site.start(), site.context()
    minted = context.grant(["room"], timedelta(milliseconds=700))
    client = SseClient(server.port, minted.token)
    client.until_event("ready")

    client.until_over()

    assert client.names == ["ready", "expired"]
    assert client.events[-1].json["cursor"] == client.last_id
    again = SseClient(server.port, minted.token, client.last_id)
    assert (again.status, again.error) == (401, "expired")
    assert server.counters.ended == {"expired": 1}


def test_no_message_follows_the_expiry(site: Installation) -> None:
    server, context = site.start(), site.context()
    client = SseClient(server.port, context.grant(["room"], timedelta(milliseconds=600)).token)
    client.until_event("ready")

    number = 0
    while server.counters.ended.get("expired") is None:
        context.publish("room", number)
        number += 1
        time.sleep(0.002)
    context.publish("room", "too late")
    client.until_over()

    assert client.names[-1] == "expired"
    assert "too late" not in [each["data"] for each in client.messages]


def test_a_new_grant_resumes_where_the_old_one_ended(site: Installation) -> None:
    server, context = site.start(), site.context()
    first = SseClient(
        server.port, context.grant(["a", "b"], timedelta(milliseconds=500)).token
    ).until_over()
    sent = [context.publish("ab"[number % 2], number) for number in range(10)]

    second = SseClient(server.port, context.grant(["b", "a"]).token, first.last_id)

    assert [each["data"] for each in second.until_messages(10)] == list(range(len(sent)))
    second.until_event("ready")
    assert second.names == ["message"] * 10 + ["ready"]


def test_revoked_streams_end_at_once_and_say_so(site: Installation) -> None:
    server, context = site.start(), site.context()
    one = context.grant(["room"], holder="user-7")
    other = context.grant(["room"], holder="user-8")
    clients = [SseClient(server.port, each.token) for each in (one, one, other)]
    for client in clients:
        client.until_event("ready")

    context.revoke(holder="user-7")

    for client in clients[:2]:
        client.until_over()
        assert client.names == ["ready", "revoked"]
    refused = SseClient(server.port, one.token)
    assert (refused.status, refused.error) == (403, "revoked")
    context.publish("room", "still")
    assert clients[2].until_messages(1)[0]["data"] == "still"
    revoked_ms = context._now_ms()
    wait_until(lambda: context._now_ms() > revoked_ms)
    later = SseClient(server.port, context.grant(["room"], holder="user-7").token)
    later.until_event("ready")
    context.revoke(grant_id=other.grant_id)
    clients[2].until_over()
    assert clients[2].names[-1] == "revoked"


def refused(site: Installation, port: int, token: str) -> tuple[int, str]:
    client = SseClient(port, token)
    return client.status, client.error


def test_grants_that_are_not_ours_are_refused_for_good(site: Installation) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    head, key, payload, seal = token.split(".")
    stranger = sign(
        new_grant(LIVE, ["room"], now_ms=context._now_ms(), life_ms=1_000),
        GrantKeys.ephemeral(),
    )
    wider = sign(
        new_grant(LIVE, ["room", "all"], now_ms=context._now_ms(), life_ms=1_000),
        site.keys,
    ).split(".")[2]

    for forged in ("", "x", stranger, f"{head}.{key}.{wider}.{seal}", f"{head}.{key}.{payload}."):
        assert refused(site, server.port, forged) == (401, "malformed")

    assert server.counters.refused == {"malformed": 5}


def test_a_server_whose_clock_differs_refuses_what_it_cannot_date(site: Installation) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"], timedelta(seconds=60)).token

    server.ahead_ms = -31_000
    early = refused(site, server.port, token)
    server.ahead_ms = 61_000
    late = refused(site, server.port, token)
    server.ahead_ms = -29_000
    accepted = SseClient(server.port, token)

    assert early == (401, "not_yet_valid")
    assert late == (401, "expired")
    assert accepted.until_event("ready").json["expires_in_ms"] <= 3_600_000


def test_realms_never_hear_each_other(site: Installation) -> None:
    """The same channel name in another environment or app is another channel."""
    server = site.start()
    contexts = [site.context(*realm) for realm in (("live", "app"), ("dev", "app"), ("live", "b"))]
    clients = [SseClient(server.port, each.grant(["room"]).token) for each in contexts]
    for client in clients:
        client.until_event("ready")

    for number, context in enumerate(contexts):
        context.publish("room", number)

    for number, client in enumerate(clients):
        client.until_comments(2)
        assert [each["data"] for each in client.messages] == [number]


@pytest.mark.parametrize(
    "channel", ["room:*", "*", "room:#", "room", "room:1:", "ROOM:1", "room:1 ", "room:１"]
)
def test_no_name_widens_a_grant(site: Installation, channel: str) -> None:
    server, context = site.start(), site.context()
    client = SseClient(server.port, context.grant([channel]).token)
    client.until_event("ready")

    for name in ("room:1", "room:2", "other"):
        context.publish(name, "not for you")
    context.publish(channel, "for you")

    assert [each["data"] for each in client.until_messages(1)] == ["for you"]


def test_a_grant_that_is_shown_twice_serves_both(site: Installation) -> None:
    """A grant is a bearer's: who stole it hears what its owner hears, until it ends."""
    server, context = site.start(), site.context()
    minted = context.grant(["room"])
    clients = [SseClient(server.port, minted.token) for _ in range(2)]
    for client in clients:
        client.until_event("ready")

    context.publish("room", 1)
    for client in clients:
        assert len(client.until_messages(1)) == 1
    context.revoke(grant_id=minted.grant_id)

    for client in clients:
        assert client.until_over().names[-1] == "revoked"


def test_a_grant_may_stand_in_the_address_for_a_plain_event_source(site: Installation) -> None:
    server, context = site.start(), site.context()

    client = SseClient(server.port, context.grant(["room"]).token, in_address=True)

    client.until_event("ready")


def test_cors_lets_pages_read_streams_and_refusals() -> None:
    with installation(allowed_origins=("https://a.example",)) as site:
        server, context = site.start(), site.context()
        token = context.grant(["room"]).token
        known, strange = {"Origin": "https://a.example"}, {"Origin": "https://b.example"}

        accepted = SseClient(server.port, token, headers=known)
        stranger = SseClient(server.port, token, headers=strange)
        dead = SseClient(server.port, "x", headers=known)
        status, headers, _ = get(server.port, "/v1/stream", known, "OPTIONS")

        name = "Access-Control-Allow-Origin"
        assert accepted.response.headers[name] == "https://a.example"
        assert (stranger.status, stranger.response.headers[name]) == (403, None)
        assert (dead.status, dead.response.headers[name]) == (401, "https://a.example")
        assert status == 204
        assert "authorization" in headers["Access-Control-Allow-Headers"]


def test_streams_are_never_compressed_or_kept(site: Installation) -> None:
    server, context = site.start(), site.context()
    headers = {"Accept-Encoding": "gzip, br, zstd"}
    client = SseClient(server.port, context.grant(["room"]).token, headers=headers)

    assert client.response.headers["Content-Encoding"] is None
    assert "no-transform" in client.response.headers["Cache-Control"]
    client.until_event("ready")


def test_an_old_stream_is_asked_to_reconnect() -> None:
    with installation(stream_age_max_ms=600) as site:
        server, context = site.start(), site.context()
        token = context.grant(["room"]).token
        client = SseClient(server.port, token).until_over()
        context.publish("room", "between")

        again = SseClient(server.port, token, client.last_id)

        assert client.names == ["ready", "reconnect"]
        assert client.events[-1].json["reason"] == "age"
        assert again.until_messages(1)[0]["data"] == "between"


def test_too_many_streams_are_turned_away_for_a_while() -> None:
    with installation(connections_max=2) as site:
        server, context = site.start(), site.context()
        token = context.grant(["room"]).token
        clients = [SseClient(server.port, token) for _ in range(2)]
        for client in clients:
            client.until_event("ready")

        third = SseClient(server.port, token)
        clients[0].close()
        wait_until(lambda: server.counters.streams < 2)
        fourth = SseClient(server.port, token)

        assert (third.status, third.response.headers["Retry-After"]) == (503, "5")
        fourth.until_event("ready")


def test_the_store_being_away_is_told_and_passes() -> None:
    with installation() as site:
        server, context = site.start(), site.context()
        token = context.grant(["room"]).token
        client = SseClient(server.port, token)
        client.until_event("ready")
        assert isinstance(site.stage, MemoryStage)

        site.stage.cut()
        turned_away = SseClient(server.port, token)
        ready, _, _ = get(server.port, "/readyz")
        for number in range(5):
            context.publish("room", number)
        before = client.comments
        client.until(lambda: client.comments > before + 1)
        site.stage.heal()

        assert turned_away.status == 503
        assert ready == 503
        assert [each["data"] for each in client.until_messages(5)] == [0, 1, 2, 3, 4]
        assert client.names == ["ready", *["message"] * 5]
        assert get(server.port, "/readyz")[0] == 200


def test_lost_data_are_told_to_open_streams() -> None:
    with installation() as site:
        server, context = site.start(), site.context()
        client = SseClient(server.port, context.grant(["room"]).token)
        client.until_event("ready")
        assert isinstance(site.stage, MemoryStage)

        site.stage.store.flush()
        context.publish("room", "first of a new age")
        client.until_event("reset")
        context.publish("room", "second")

        client.until(lambda: any(each["data"] == "second" for each in client.messages))
        assert client.names[1] == "reset"


def test_health_and_figures_are_served(site: Installation) -> None:
    server, context = site.start(), site.context()
    client = SseClient(server.port, context.grant(["secret-room"]).token)
    client.until_event("ready")

    status, _, text = get(server.port, "/metrics")

    assert status == 200
    assert b"cape_realtime_streams 1\n" in text
    assert b"secret-room" not in text
    assert get(server.port, "/livez")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", "/", 404), ("GET", "/v1/stream/../../etc", 404)),
        *(("PUT", "/v1/stream", 405), ("HEAD", "/v1/stream", 405)),
    ],
)
def test_other_requests_are_answered(
    site: Installation, method: str, path: str, status: int
) -> None:
    assert get(site.start().port, path, method=method)[0] == status
