"""The foundation: every call ends, is carried out once, and its error says what to do."""

import threading
import time

import pytest

from cape_stream.coordination.scripts import Script
from cape_stream.coordination.store import Store
from cape_stream.errors import Fatal, Reject, Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey
from tests.waiting import eventually

SHORT_MS = 200

ADD_ONCE = Script(
    "add once", "if redis.call('SADD', KEYS[1], ARGV[1]) == 1 then redis.call('INCR', KEYS[2]) end"
)


def add_once(store: Store, request_id: str) -> None:
    key = store.keys("test")
    store.call(ADD_ONCE.call([key.of("a", "seen"), key.of("a", "count")], request_id))


def counted(store: Store) -> int:
    return int(store.command("GET", store.keys("test").of("a", "count")) or 0)


def test_call_reloads_its_script_when_the_server_has_forgotten_it(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    """B58."""
    store = open_store(valkey_server.url)
    add_once(store, "first")

    valkey_server.ask("SCRIPT", "FLUSH")
    add_once(store, "second")

    assert counted(store) == 2


def test_call_succeeds_when_the_server_was_restarted(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    """B58: connections and scripts are gone, the data are kept; nobody notices."""
    store = open_store(valkey_server.url)
    add_once(store, "first")

    valkey_server.stop()
    valkey_server.start()
    add_once(store, "second")

    assert counted(store) == 2


def test_call_is_carried_out_once_when_its_reply_is_lost(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    store = open_store(fault_proxy.url)
    add_once(store, "first")

    fault_proxy.lose_replies(1)
    add_once(store, "second")

    assert counted(store) == 2
    assert store.figures["valkey_repeats"] == 1


def test_call_ends_in_a_retry_when_the_server_is_frozen(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    store = open_store(valkey_server.url, call_timeout_ms=SHORT_MS, connect_timeout_ms=SHORT_MS)
    add_once(store, "first")

    valkey_server.freeze()
    with pytest.raises(Retry, match="did not answer add once in time"):
        add_once(store, "second")

    valkey_server.thaw()
    eventually(lambda: counted_or_none(store) is not None)


def counted_or_none(store: Store) -> int | None:
    try:
        return counted(store)
    except Retry:
        return None


def test_wait_ends_when_the_link_has_died_silently(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    """B60: a blocking pop on a dead socket hangs for ever, elsewhere."""
    store = open_store(fault_proxy.url, call_timeout_ms=SHORT_MS)
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(Retry):
            store.wait(store.keys("test").of("a", "wake"), 1_000)
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    fault_proxy.freeze()

    assert ended.wait(30)
    waiter.join()


def test_calls_fail_at_once_after_some_have_failed(open_store: OpenStore) -> None:
    store = open_store("valkey://127.0.0.1:1/0")
    for number in range(3):
        with pytest.raises(Retry, match="cannot be reached"):
            add_once(store, str(number))

    with pytest.raises(Retry, match="was not reached just now") as refused:
        add_once(store, "more")

    assert refused.value.after_ms is not None
    assert 0 < refused.value.after_ms <= 2_001


def test_calls_pass_again_when_the_server_is_back(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    store = open_store(fault_proxy.url)
    add_once(store, "first")
    fault_proxy.refuse()
    for number in range(5):
        with pytest.raises(Retry):
            add_once(store, f"lost {number}")

    fault_proxy.heal()

    eventually(lambda: counted_or_none(store) == 1)


def test_call_names_the_full_server(open_store: OpenStore, valkey_server: LocalValkey) -> None:
    store = open_store(valkey_server.url)
    valkey_server.ask("CONFIG", "SET", "maxmemory", "1")
    valkey_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")

    with pytest.raises(Retry, match="full and refuses writes"):
        add_once(store, "first")


def test_call_names_the_read_only_replica(
    open_store: OpenStore, valkey_replica: LocalValkey
) -> None:
    store = open_store(valkey_replica.url)

    with pytest.raises(Retry, match="read-only replica"):
        add_once(store, "first")


def test_call_passes_after_a_failover_behind_the_same_address(
    open_store: OpenStore, valkey_server: LocalValkey, valkey_replica: LocalValkey
) -> None:
    """The address stays (a name that is moved), the server behind it is another one."""
    with FaultProxy(valkey_server.port) as proxy:
        store = open_store(proxy.url)
        add_once(store, "first")
        valkey_server.ask("WAIT", 1, 5_000)

        valkey_server.kill()
        valkey_replica.ask("REPLICAOF", "NO", "ONE")
        proxy.move(valkey_replica.port)
        add_once(store, "second")

        assert counted(store) == 2


def test_call_names_the_foreign_value(store: Store) -> None:
    store.command("LPUSH", store.keys("test").of("a", "seen"), "of somebody else")

    with pytest.raises(Reject, match="holds what another program wrote"):
        add_once(store, "first")


def test_call_says_that_credentials_are_wrong(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    valkey_server.ask("ACL", "SETUSER", "cape", "on", ">secret", "~*", "&*", "+ping")
    address = f"127.0.0.1:{valkey_server.port}"

    for url in (f"valkey://cape:wrong@{address}", f"valkey://cape:secret@{address}"):
        with pytest.raises(Fatal, match="cape valkey doctor") as refused:
            add_once(open_store(url), "first")
        assert "secret" not in str(refused.value)


def test_many_threads_share_few_connections(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    store = open_store(valkey_server.url, connections_max=2, call_timeout_ms=20_000)

    threads = [threading.Thread(target=add_once, args=(store, f"{number}")) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counted(store) == 20


def test_slow_link_is_waited_for_within_the_timeout(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    store = open_store(fault_proxy.url)
    fault_proxy.delay(50)
    began_s = time.monotonic()

    add_once(store, "first")

    assert time.monotonic() - began_s >= 0.1
    assert counted(store) == 1
