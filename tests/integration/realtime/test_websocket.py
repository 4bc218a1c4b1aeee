"""Streams over WebSocket: the same messages, ends and refusals, in frames."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.integration.realtime.kit import (
    Installation,
    hear,
    installation,
    of_type,
    wait_until,
    websocket,
)


@pytest.fixture
def site() -> Iterator[Installation]:
    """An installation in memory."""
    with installation() as found:
        yield found


def close_of(found: ClientConnection) -> tuple[int | None, str | None]:
    """Read to the end; code and reason."""
    with suppress(ConnectionClosed):
        while True:
            found.recv(timeout=20)
    return found.close_code, found.close_reason


def test_messages_come_with_ids_that_resume(site: Installation) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    first = websocket(server.port, token)
    ready = hear(first, of_type("ready"))
    context.publish("room", "one\ntwo")
    message = hear(first, of_type("message"))
    first.close()
    context.publish("room", 2)

    again = websocket(server.port, token, message["id"])

    assert ready["resumed"] is False
    assert message["data"] == "one\ntwo"
    assert hear(again, of_type("message"))["data"] == 2
    assert hear(again, of_type("ready"))["resumed"] is True


def test_heartbeats_carry_fresh_cursors(site: Installation) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    first = websocket(server.port, token)
    cursor = hear(first, of_type("ready"))["cursor"]

    fresh = hear(first, lambda found: found["type"] == "heartbeat" and found["cursor"])["cursor"]

    assert fresh != cursor
    assert hear(websocket(server.port, token, fresh), of_type("ready"))["resumed"] is True


def test_an_unknown_cursor_is_a_reset(site: Installation) -> None:
    server, context = site.start(), site.context()
    client = websocket(server.port, context.grant(["room"]).token, "unknown")

    found = json.loads(client.recv(timeout=20))

    assert (found["type"], found["channels"]) == ("reset", ["room"])
    assert hear(client, of_type("ready"))["resumed"] is False


def test_a_stream_ends_with_its_grant_and_names_its_cursor(site: Installation) -> None:
    server, context = site.start(), site.context()
    client = websocket(server.port, context.grant(["room"], timedelta(milliseconds=500)).token)

    expired = hear(client, of_type("expired"))
    code = close_of(client)
    context.publish("room", 1)
    again = websocket(server.port, context.grant(["room"]).token, expired["cursor"])

    assert code == (4401, "expired")
    assert hear(again, of_type("message"))["data"] == 1


def test_refusals_are_close_codes_a_page_can_read(site: Installation) -> None:
    server, context = site.start(), site.context()
    minted = context.grant(["room"])
    dead = context.grant(["room"], timedelta(milliseconds=1))
    context.revoke(grant_id=minted.grant_id)
    wait_until(lambda: context._now_ms() > dead.expires_ms)

    assert close_of(websocket(server.port, minted.token)) == (4403, "revoked")
    assert close_of(websocket(server.port, dead.token)) == (4401, "expired")
    assert close_of(websocket(server.port, "nonsense")) == (4401, "malformed")


def test_a_strange_origin_is_refused() -> None:
    with installation(allowed_origins=("https://a.example",)) as site:
        server, context = site.start(), site.context()
        token = context.grant(["room"]).token

        strange = websocket(server.port, token, origin="https://b.example")
        known = websocket(server.port, token, origin="https://a.example")

        assert close_of(strange) == (4403, "origin")
        assert hear(known, of_type("ready"))


def test_nothing_is_compressed(site: Installation) -> None:
    """A client that offers compression does not get it."""
    server, context = site.start(), site.context()
    with socket.create_connection(("127.0.0.1", server.port), 20) as sock:
        token = context.grant(["room"]).token
        sock.sendall(
            f"GET /v1/stream?grant={token} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Extensions: permessage-deflate\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4_096)

    assert b"101" in head.split(b"\r\n")[0]
    assert b"extensions" not in head.lower()


def test_a_restarting_server_says_so() -> None:
    with installation(drain_ms=50) as site:
        server, context = site.start(), site.context()
        client = websocket(server.port, context.grant(["room"]).token)
        hear(client, of_type("ready"))

        server.stop()

        assert hear(client, of_type("reconnect"))["reason"] == "restart"
        assert close_of(client) == (1012, "reconnect")
