"""No gap and no duplicate: renewals, cut links, restarts and several servers, on a real Valkey."""

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cape_stream.ports.contexts import PublishBounds
from cape_stream.realtime.context import RealtimeContext
from tests.fault_proxy import FaultProxy
from tests.integration.realtime.kit import (
    Installation,
    RunningServer,
    SseClient,
    ValkeyStage,
    installation,
    wait_until,
)
from tests.valkey import LocalValkey

RENEWALS = 12
PAUSE_S = 0.002


@pytest.fixture
def site(valkey_server: LocalValkey) -> Iterator[Installation]:
    """An installation on a Valkey of its own."""
    with installation(valkey_server.url, history_messages=20_000) as found:
        yield found


@contextmanager
def publishing(context: RealtimeContext, channels: list[str]) -> Iterator[list[int]]:
    """Somebody who never stops publishing while the block runs; what was told, in order."""
    told: list[int] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            context.publish(channels[len(told) % len(channels)], len(told))
            told.append(len(told))
            time.sleep(PAUSE_S)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        stop.set()
        thread.join()


def numbers(clients: list[SseClient]) -> list[Any]:
    return [each["data"] for client in clients for each in client.messages]


def until_caught_up(client: SseClient, told: list[int]) -> None:
    """Read until what was told last has been heard."""
    client.until(lambda: bool(client.messages) and client.messages[-1]["data"] == told[-1])


def assert_continuous(heard: list[Any], told: list[int]) -> None:
    """Each once and in order, from the first one heard to the last one told."""
    assert heard == list(range(heard[0], told[-1] + 1))


def test_renewals_lose_and_repeat_nothing(site: Installation) -> None:
    """Each stream ends by expiry or in the middle of a read, and goes on with a new grant."""
    server, context = site.start(), site.context()
    channels = ["a", "b", "c"]
    chance = random.Random(7)
    clients: list[SseClient] = []

    def renew(life_ms: int) -> SseClient:
        token = context.grant(channels, timedelta(milliseconds=life_ms)).token
        cursor = clients[-1].last_id if clients else ""
        clients.append(SseClient(server.port, token, cursor))
        return clients[-1]

    renew(60_000).until_event("ready")
    with publishing(context, channels) as told:
        for number in range(RENEWALS):
            if number % 2:
                renew(150).until_over()
            else:
                wanted = chance.randrange(1, 30)
                renew(60_000).until_messages(wanted)
            clients[-1].close()
        last = renew(60_000)
        last.until_messages(1)
    until_caught_up(last, told)

    assert_continuous(numbers(clients), told)
    assert "reset" not in {name for client in clients for name in client.names}


def test_a_cut_link_to_the_store_loses_and_repeats_nothing(
    valkey_server: LocalValkey, fault_proxy: FaultProxy
) -> None:
    with installation(valkey_server.url, fault_proxy.url, history_messages=20_000) as site:
        server, context = site.start(), site.context()
        client = SseClient(server.port, context.grant(["a", "b"]).token)
        client.until_event("ready")

        with publishing(context, ["a", "b"]) as told:
            for number in range(4):
                client.until_messages(20 * (number + 1))
                fault_proxy.cut()
                wait_until(partial(_has_caught_up, server, number + 1))
            client.until_messages(100)
        until_caught_up(client, told)

        assert_continuous(numbers([client]), told)
        assert "reset" not in client.names


def test_streams_that_open_while_the_link_flaps_miss_nothing(
    valkey_server: LocalValkey, fault_proxy: FaultProxy
) -> None:
    with installation(valkey_server.url, fault_proxy.url, history_messages=20_000) as site:
        server, context = site.start(), site.context()
        token = context.grant(["a", "b"]).token
        with publishing(context, ["a", "b"]) as told:
            clients = []
            for number in range(12):
                if number % 3 == 0:
                    fault_proxy.cut()
                wait_until(lambda: server.server.hub.is_ready)
                client = SseClient(server.port, token)
                if client.status == 200:
                    clients.append(client)
            for client in clients:
                client.until_messages(5)
        for client in clients:
            until_caught_up(client, told)

        assert len(clients) > 3
        for client in clients:
            assert_continuous(numbers([client]), told)


def test_a_flushed_store_is_a_reset_and_goes_on(
    site: Installation, valkey_server: LocalValkey
) -> None:
    server, context = site.start(), site.context()
    client = SseClient(server.port, context.grant(["room"]).token)
    client.until_event("ready")
    context.publish("room", 0)
    client.until_messages(1)

    valkey_server.ask("FLUSHALL")
    client.until_event("reset")
    context.publish("room", 1)

    assert client.until_messages(2)[-1]["data"] == 1


def test_a_store_that_restarts_with_its_data_loses_nothing(
    site: Installation, valkey_server: LocalValkey
) -> None:
    server, context = site.start(), site.context()
    client = SseClient(server.port, context.grant(["room"]).token)
    client.until_event("ready")
    context.publish("room", 0)
    client.until_messages(1)

    valkey_server.stop()
    valkey_server.start()
    wait_until(lambda: _published(lambda: context.publish("room", 1)))

    assert [each["data"] for each in client.until_messages(2)] == [0, 1]
    assert "reset" not in client.names


def test_a_frozen_store_stops_neither_heartbeats_nor_ends(
    site: Installation, valkey_server: LocalValkey
) -> None:
    server, context = site.start(store_timeout_ms=500), site.context()
    client = SseClient(server.port, context.grant(["room"], timedelta(seconds=4)).token)
    client.until_event("ready")

    valkey_server.freeze()
    try:
        wait_until(lambda: not server.server.hub.is_ready)
        refused = SseClient(server.port, context_token(site))
        before = client.comments
        client.until_over()
    finally:
        valkey_server.thaw()

    assert refused.status == 503
    assert client.comments > before
    assert client.names == ["ready", "expired"]


def context_token(site: Installation) -> str:
    return site.context().grant(["room"]).token


def test_a_restart_spreads_reconnects_and_loses_nothing(site: Installation) -> None:
    """Every stream is asked to go at a moment of its own, and goes on at the other server."""
    old, context = site.start(drain_ms=1_500), site.context()
    new = site.start()
    token = context.grant(["room"]).token
    clients = [SseClient(old.port, token) for _ in range(12)]
    for client in clients:
        client.until_event("ready")
    over_s: dict[int, float] = {}

    def read(number: int) -> None:
        clients[number].until_over()
        over_s[number] = time.monotonic()

    readers = [threading.Thread(target=read, args=(number,)) for number in range(len(clients))]
    with publishing(context, ["room"]) as told:
        for reader in readers:
            reader.start()
        stopping = threading.Thread(target=old.stop)
        stopping.start()
        for reader in readers:
            reader.join()
        again = [SseClient(new.port, token, client.last_id) for client in clients]
        for client in again:
            client.until_messages(1)
        stopping.join()
    for before, after in zip(clients, again, strict=True):
        until_caught_up(after, told)
        assert before.names[-1] == "reconnect"
        assert before.events[-1].json["reason"] == "restart"
        assert_continuous(numbers([before, after]), told)
    moments = sorted(over_s.values())
    assert moments[-1] - moments[0] > 0.5, "they left one after the other, not all at once"


def test_several_servers_share_a_port_and_hear_the_same(site: Installation) -> None:
    first = site.start()
    servers: list[RunningServer] = [first]
    servers += [site.start(port=first.port) for _ in range(2)]
    context = site.context()
    token = context.grant(["room"]).token
    clients = [SseClient(first.port, token) for _ in range(30)]
    for client in clients:
        client.until_event("ready")

    sent = list(range(20))
    for number in sent:
        context.publish("room", number)

    for client in clients:
        assert [each["data"] for each in client.until_messages(20)] == sent
    assert sum(server.counters.streams for server in servers) == 30
    assert max(server.counters.streams for server in servers) < 30


def test_the_rights_that_the_page_names_are_enough(valkey_server: LocalValkey) -> None:
    page = (Path(__file__).parents[3] / "docs" / "realtime.md").read_text()
    named = re.search(r"`(~cape:rt:[^`]*)`", page)
    assert named is not None
    valkey_server.ask("ACL", "SETUSER", "rt", "on", ">secret", *named.group(1).split())
    with installation(valkey_server.url.replace("//", "//rt:secret@")) as site:
        server, context = site.start(), site.context()
        bounds = PublishBounds(("room",))
        minted = context.grant(["room"], publish=bounds, holder="u")
        client = SseClient(server.port, minted.token)
        client.until_event("ready")

        context.publish("room", 1)
        context.publish("room", 2, ephemeral=True)
        assert len(client.until_messages(2)) == 2
        client.until_comments(4)  # marks are made in between
        context.revoke(grant_id=minted.grant_id)
        assert client.until_over().names[-1] == "revoked"
        assert valkey_server.ask("ACL", "LOG") == []


def test_a_publish_is_one_round_trip(site: Installation, valkey_server: LocalValkey) -> None:
    """The server says how often it has read something from a client."""
    context, count = site.context(), 200
    context.publish("room", "first")  # makes the script known

    first = reads_of(valkey_server)
    before = reads_of(valkey_server)
    for number in range(count):
        context.publish("room", number)
    after = reads_of(valkey_server)

    asking = before - first
    assert after - before == count + asking


def reads_of(server: LocalValkey) -> int:
    found: int = server.ask("INFO", "stats")["total_reads_processed"]
    return found


def test_everything_of_a_realm_is_in_one_slot(valkey_cluster: LocalValkey) -> None:
    """A cluster refuses a script that touches two."""
    with installation(valkey_cluster.url) as site:
        server, context = site.start(), site.context("dev}{7", "a:b/c")
        minted = context.grant(["a", "{b}", "c}d{"], holder="u")
        client = SseClient(server.port, minted.token)
        cursor = client.until_event("ready").id
        client.close()
        for number, channel in enumerate(("a", "{b}", "c}d{")):
            context.publish(channel, number)

        again = SseClient(server.port, minted.token, cursor)

        assert [each["data"] for each in again.until_messages(3)] == [0, 1, 2]
        context.revoke(holder="u")
        assert again.until_over().names[-1] == "revoked"


def test_hundreds_who_come_at_once_are_all_let_in(site: Installation) -> None:
    """As after a restart without grace: nobody is told that the store has too few connections."""
    server, context = site.start(), site.context()
    token = context.grant(["room"]).token
    request = f"GET /v1/stream?grant={token} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    sockets = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(400)]

    for sock in sockets:
        sock.sendall(request)

    for sock in sockets:
        assert sock.recv(12) == b"HTTP/1.1 200"
        sock.close()


def test_a_foreign_value_under_our_keys_is_refused_and_the_next_is_served(
    site: Installation, valkey_server: LocalValkey
) -> None:
    server, context = site.start(), site.context()
    valkey_server.ask("SET", "cape:rt:{app/live}:h:bad", "not a stream")
    valkey_server.ask("SET", "cape:rt:{app/live}:l:bad", "7")
    assert isinstance(site.stage, ValkeyStage)
    client = SseClient(server.port, context.grant(["good"]).token)
    client.until_event("ready")

    with pytest.raises(Exception, match="refused"):
        context.publish("bad", 1)
    context.publish("good", 2)

    assert client.until_messages(1)[0]["data"] == 2
    turned_away = SseClient(server.port, context.grant(["bad"]).token, client.last_id)
    assert (turned_away.status, turned_away.error) == (503, "unavailable")


def test_a_spoiled_channel_is_a_gap_when_the_link_comes_back(
    valkey_server: LocalValkey, fault_proxy: FaultProxy
) -> None:
    """One key that another program overwrote must not end the server of everybody else."""
    with installation(valkey_server.url, fault_proxy.url) as site:
        server, context = site.start(), site.context()
        client = SseClient(server.port, context.grant(["good", "bad"]).token)
        client.until_event("ready")

        valkey_server.ask("SET", "cape:rt:{app/live}:h:bad", "not a stream")
        valkey_server.ask("SET", "cape:rt:{app/live}:l:bad", "7")
        fault_proxy.cut()
        client.until_event("reset")
        context.publish("good", 1)

        assert client.until_messages(1)[0]["data"] == 1
        assert server.server.hub.failure is None


def _has_caught_up(server: RunningServer, times: int) -> bool:
    return bool(server.counters.catch_ups >= times)


def _published(publish: Callable[[], object]) -> bool:
    try:
        publish()
    except Exception:
        return False
    return True
