"""Near caches whose link breaks, in all the ways a link can: B54."""

import pytest

from cape_stream.errors import Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.integration.coordination.pods import OpenPod, Pod
from tests.valkey import LocalValkey
from tests.waiting import eventually


def test_nothing_stale_is_served_after_a_cut_link_is_back(
    open_pod: OpenPod, valkey_server: LocalValkey
) -> None:
    """B54.1: cut, written meanwhile, restored."""
    a = open_pod(valkey_server.url)
    with FaultProxy(valkey_server.port) as proxy:
        b = open_pod(proxy.url)
        assert a.get("user:1", "old") == b.get("user:1", "old") == "old"

        proxy.refuse()
        eventually(lambda: b.listener.staleness_ms() == float("inf"))
        a.cache.invalidate_keys("user:1")
        assert b.get("user:1", "new") == "new", "bypassed while the link is down"
        proxy.heal()

        eventually(lambda: b.listener.staleness_ms() < 1_000)
        assert b.get("user:1", "new") == "new"


def test_missed_events_are_caught_up_without_a_flush(
    open_pod: OpenPod, valkey_server: LocalValkey
) -> None:
    a = open_pod(valkey_server.url)
    with FaultProxy(valkey_server.port) as proxy:
        b = open_pod(proxy.url)
        a.cache.invalidate_keys("u0")
        eventually(lambda: b.store.figures["events_received"] == 1)
        assert [b.get(f"u{n}", n) for n in range(5)] == [0, 1, 2, 3, 4]
        gaps = b.store.figures["event_gaps"]

        proxy.cut(saying=b"SUBSCRIBE")
        a.cache.invalidate_keys("u1")
        eventually(lambda: b.store.figures["event_links_lost"] == 1)
        eventually(lambda: b.listener.staleness_ms() < 1_000)

        loads = b.loads
        assert [b.get(f"u{n}", "new") for n in range(5)] == [0, "new", 2, 3, 4]
        assert b.loads == loads + 1
        assert b.store.figures["event_gaps"] == gaps


def test_half_open_link_is_noticed_and_bypassed(
    open_pod: OpenPod, valkey_server: LocalValkey
) -> None:
    """B54.2: the link is there and brings nothing."""
    a = open_pod(valkey_server.url)
    with FaultProxy(valkey_server.port) as proxy:
        b = open_pod(proxy.url)
        assert b.get("user:1", "old") == "old"

        proxy.freeze(saying=b"SUBSCRIBE")
        a.cache.invalidate_keys("user:1")

        eventually(lambda: b.get("user:1", "new") == "new")
        assert b.store.figures["cache_hits"] + b.loads >= 1
        eventually(lambda: b.store.figures["event_links_lost"] >= 1)


def test_subscriber_that_the_server_cuts_for_being_slow_catches_up(
    open_pod: OpenPod, valkey_server: LocalValkey
) -> None:
    """B54.2: closed by the server for exceeding its output buffer."""
    a = open_pod(valkey_server.url)
    with FaultProxy(valkey_server.port) as proxy:
        b = open_pod(proxy.url)
        assert b.get("user:1", "old") == "old"
        valkey_server.ask("CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 1mb 1")
        proxy.freeze(saying=b"SUBSCRIBE")
        (channel,) = valkey_server.ask("PUBSUB", "CHANNELS", "*")

        eventually(lambda: flooded(valkey_server, channel))
        a.cache.invalidate_keys("user:1")
        proxy.heal()

        eventually(lambda: b.store.figures["event_links_lost"] >= 1)
        eventually(lambda: b.listener.staleness_ms() < 1_000)
        assert b.get("user:1", "new") == "new"


def flooded(server: LocalValkey, channel: bytes) -> bool:
    """Publish until one subscriber of two is gone."""
    return bool(server.ask("PUBLISH", channel, b"0-0 0-0 " + bytes(1 << 20)) == 1)


def test_view_is_flushed_when_the_stream_has_been_cut_short(
    open_pod: OpenPod, valkey_server: LocalValkey
) -> None:
    a = open_pod(valkey_server.url)
    with FaultProxy(valkey_server.port) as proxy:
        b = open_pod(proxy.url)
        assert b.get("user:1", "old") == "old"

        proxy.refuse()
        a.cache.invalidate_keys("user:1")
        log = next(iter(valkey_server.ask("KEYS", "*:log")))
        valkey_server.ask("DEL", log)
        proxy.heal()

        eventually(lambda: b.store.figures["event_gaps"] >= 1)
        eventually(lambda: b.listener.staleness_ms() < 1_000)
        assert b.get("user:1", "new") == "new"


def test_near_cache_is_rebuilt_after_a_failover(
    open_pod: OpenPod, valkey_server: LocalValkey, valkey_replica: LocalValkey
) -> None:
    """Redisson #4653: a near cache stayed stale after a failover."""
    with FaultProxy(valkey_server.port) as proxy:
        a, b = open_pod(proxy.url), open_pod(proxy.url)
        assert a.get("user:1", "old") == b.get("user:1", "old") == "old"
        valkey_server.ask("WAIT", 1, 5_000)

        valkey_server.kill()
        valkey_replica.ask("REPLICAOF", "NO", "ONE")
        proxy.move(valkey_replica.port)
        eventually(lambda: is_invalidated(a, "user:1"))

        eventually(lambda: b.get("user:1", "new") == "new")


def test_invalidation_waits_for_as_many_replicas_as_are_asked_for(
    open_store: OpenStore, valkey_server: LocalValkey, valkey_replica: LocalValkey
) -> None:
    """On the connection that wrote it: on another one there is nothing to wait for."""
    pod = Pod(open_store(valkey_server.url, replicas_min=1, call_timeout_ms=20_000), near=False)
    pod.cache.invalidate("team:1")

    impatient = Pod(open_store(valkey_server.url, replicas_min=1, call_timeout_ms=600), near=False)
    valkey_replica.freeze()
    with pytest.raises(Retry, match="to 0 replicas"):
        impatient.cache.invalidate("team:1")
    valkey_replica.thaw()

    pod.cache.invalidate("team:1")


def is_invalidated(pod: Pod, key: str) -> bool:
    try:
        pod.cache.invalidate_keys(key)
    except Retry:
        return False
    return True
