"""Readers that stop: bounded in bytes and time, at nobody else's cost; connections that died."""

import re
import socket
import threading
from collections.abc import Iterator

import pytest

from cape_stream.realtime.framing import LAST_CHUNK
from cape_stream.realtime.streams import Stream
from cape_stream.roles.realtime import allow_connections
from tests.fault_proxy import FaultProxy
from tests.integration.realtime.kit import (
    OPEN,
    Installation,
    RunningServer,
    SseClient,
    hear,
    installation,
    of_type,
    wait_until,
    websocket,
)

PAYLOAD = "x" * 60_000
TCP_REPAIR = 19
STOPPED = 1_000


@pytest.fixture
def site() -> Iterator[Installation]:
    """An installation whose readers have 200 KB, and 1.2 s."""
    with installation(
        reader_bytes_max=200_000, send_deadline_ms=1_200, history_messages=10_000
    ) as found:
        yield found


def stopped_reader(port: int, token: str, *, as_websocket: bool = False) -> socket.socket:
    """A client that asks for a stream, sees it begin, and never reads again."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", port))
    request = f"GET /v1/stream?grant={token} HTTP/1.1\r\nHost: x\r\n"
    if as_websocket:
        request += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        request += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    sock.sendall(f"{request}\r\n".encode())
    seen = b""
    while b"expires_in_ms" not in seen:
        found = sock.recv(512)
        assert found, seen
        seen += found
    return sock


def is_ended(sock: socket.socket) -> bool:
    """True once everything that was sent is read and the server has closed."""
    sock.settimeout(5)
    try:
        while sock.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def streams_are(server: RunningServer, count: int) -> None:
    wait_until(lambda: server.counters.streams == count)


def test_who_does_not_read_is_cut_off_at_its_bound_and_others_hear_everything(
    site: Installation,
) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    readers = [SseClient(server.port, token) for _ in range(5)]
    sockets = [websocket(server.port, token) for _ in range(3)]
    for reader in readers:
        reader.until_event("ready")
    stopped = [stopped_reader(server.port, token, as_websocket=flag) for flag in (False, True)]
    streams_are(server, 10)

    for number in range(30):
        context.publish("room", f"{number:06}{PAYLOAD}")
        for reader in readers:
            reader.until_messages(number + 1)
        for each in sockets:
            hear(each, of_type("message"))

    streams_are(server, 8)
    assert server.counters.ended == {"slow": 2}
    for sock in stopped:
        assert is_ended(sock)
        sock.close()
    for each in sockets:
        each.close()


@pytest.mark.parametrize("as_websocket", [False, True])
def test_who_is_stuck_below_its_bound_is_cut_off_at_the_deadline(
    site: Installation, *, as_websocket: bool
) -> None:
    """Heartbeats go on being written meanwhile; they are no progress."""
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    stopped = stopped_reader(server.port, token, as_websocket=as_websocket)

    number = 0
    while not _waiting(server):
        context.publish("room", PAYLOAD[:20_000])
        number += 1
        server.has_fanned_out(number)

    streams_are(server, 0)
    assert server.counters.ended == {"stuck": 1}
    assert is_ended(stopped)
    stopped.close()


def _waiting(server: RunningServer) -> int:
    return sum(stream.link.waiting for stream in _streams(server))


def _streams(server: RunningServer) -> list[Stream]:
    realms = list(server.server.hub._realms.values())
    return [stream for realm in realms for stream in list(realm.streams)]


def test_who_is_cut_off_resumes_without_a_gap(site: Installation) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    client = SseClient(server.port, token)
    client.until_event("ready")

    number = 0
    while server.counters.streams:
        context.publish("room", f"{number:06}{PAYLOAD}")
        number += 1
        server.has_fanned_out(number)
    client.until_over()
    again = SseClient(server.port, token, client.last_id)
    rest = again.until_messages(number - len(client.messages))

    heard = [int(each["data"][:6]) for each in [*client.messages, *rest]]
    assert heard == list(range(number))


def test_who_is_behind_hears_everything_before_the_last_word(site: Installation) -> None:
    server, context = site.start(), site.context()
    behind = stopped_reader(server.port, context.grant(["room"], holder="user-7").token)

    number = 0
    while _waiting(server) < 150_000:
        context.publish("room", f"{number:06}{PAYLOAD[:20_000]}")
        number += 1
        server.has_fanned_out(number)
    context.revoke(holder="user-7")
    streams_are(server, 0)
    told = b""
    while found := behind.recv(65_536):
        told += found

    assert re.findall(rb'"data":"(\d{6})', told) == [b"%06d" % each for each in range(number)]
    assert told.endswith(LAST_CHUNK)
    assert told.rindex(b"event: revoked") > told.rindex(b'"data":"')
    behind.close()


def test_a_thousand_stopped_readers_cost_what_is_allowed_together() -> None:
    allow_connections(3 * STOPPED)  # both ends of each are in this process
    bound = 3_000_000
    with installation(
        reader_bytes_max=200_000, readers_bytes_max=bound, send_deadline_ms=30_000
    ) as site:
        server, context = site.start(), site.context()
        token = context.grant(["room"]).token
        stopped = [stopped_reader(server.port, token) for _ in range(STOPPED)]
        reader = SseClient(server.port, token)
        reader.until_event("ready")
        streams_are(server, STOPPED + 1)
        worst = 0

        for number in range(20):
            context.publish("room", PAYLOAD)
            reader.until_messages(number + 1)
            worst = max(worst, _waiting(server))

        assert server.counters.streams < STOPPED
        assert worst <= bound + STOPPED * 200_000 // 100, "one look may be late, not a hundred"
        assert len(reader.messages) == 20
        for sock in stopped:
            sock.close()


def test_a_client_that_vanished_without_a_word_is_noticed(site: Installation) -> None:
    """Its host lost power: no FIN, no RST until something is sent to it."""
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    gone = stopped_reader(server.port, token)
    streams_are(server, 1)
    try:
        gone.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:
        pytest.skip("closing a socket in silence needs the right to administer the network")

    gone.close()

    streams_are(server, 0)
    assert server.counters.ended == {"lost": 1}


def test_a_websocket_that_answers_no_ping_is_noticed(site: Installation) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    with FaultProxy(server.port) as proxy:
        socket_ = websocket(proxy.port, token)
        hear(socket_, of_type("ready"))
        streams_are(server, 1)

        proxy.freeze()

        streams_are(server, 0)
        proxy.heal()
        socket_.close()


def test_the_system_gives_up_on_a_silent_peer(site: Installation) -> None:
    server, context = site.start(), site.context()
    SseClient(server.port, context.grant(["room"]).token).until_event("ready")

    stream = _streams(server)[0]
    sock = stream.link.transport.get_extra_info("socket")

    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1_200
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_client_that_leaves_is_forgotten(site: Installation) -> None:
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    clients = [SseClient(server.port, token) for _ in range(5)]
    sockets = [websocket(server.port, token) for _ in range(5)]
    for client in clients:
        client.until_event("ready")
    streams_are(server, 10)

    for client in clients:
        client.close()
        OPEN.remove(client)
    for each in sockets:
        each.close()

    streams_are(server, 0)
    wait_until(lambda: not server.server.hub._realms, 30)


def test_a_storm_of_publishes_reaches_who_reads_in_order() -> None:
    with installation(reader_bytes_max=4 << 20, history_messages=10_000) as site:
        _storm(site)


def _storm(site: Installation) -> None:
    server, context = site.start(), site.context()
    client = SseClient(server.port, context.grant(["room"]).token)
    client.until_event("ready")
    count = 3_000

    storm = threading.Thread(target=lambda: [context.publish("room", n) for n in range(count)])
    storm.start()
    heard = [each["data"] for each in client.until_messages(count)]
    storm.join()

    assert heard == list(range(count))


def test_a_connection_that_asks_for_nothing_is_ended(
    site: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cape_stream.realtime.links.REQUEST_DEADLINE_S", 0.3)
    server = site.start()
    with socket.create_connection(("127.0.0.1", server.port), 20) as silent:
        silent.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: ")

        assert is_ended(silent)
