"""Cache namespaces: B56, and races at every step of a slow fill."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cape_stream.coordination.cache import Cache, CacheSettings
from cape_stream.coordination.codecs import BytesCodec
from cape_stream.coordination.store import Store
from cape_stream.errors import Reject, Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.integration.coordination.pods import MINUTE_MS, OpenPod
from tests.valkey import LocalValkey, World
from tests.waiting import eventually


def test_value_is_computed_once_for_all_processes(open_pod: OpenPod) -> None:
    a, b = open_pod(), open_pod()

    assert a.get("u1", {"name": "Ann"}) == {"name": "Ann"}
    assert b.get("u1", "never computed") == {"name": "Ann"}
    assert a.get("u1", "never computed") == {"name": "Ann"}
    assert (a.loads, b.loads) == (1, 0)


def test_second_read_does_not_ask_the_server(open_pod: OpenPod) -> None:
    pod = open_pod()
    pod.get("u1", 1)
    calls = pod.store.figures["valkey_calls"]

    assert [pod.get("u1", 2) for _ in range(10)] == [1] * 10
    assert pod.store.figures["valkey_calls"] == calls


@pytest.mark.parametrize("how", ["tag", "key", "everything"])
def test_invalidation_reaches_every_process(open_pod: OpenPod, how: str) -> None:
    a, b = open_pod(), open_pod()
    for pod in (a, b):
        assert pod.get("u1", "old", "team:1") == "old"
        assert pod.get("u2", "old", "team:2") == "old"

    if how == "tag":
        a.cache.invalidate("team:1")
    elif how == "key":
        a.cache.invalidate_keys("u1")
    else:
        a.cache.clear()

    assert a.get("u1", "new", "team:1") == "new"
    eventually(lambda: b.get("u1", "newer", "team:1") == "new")
    kept = "new" if how == "everything" else "old"
    eventually(lambda: b.get("u2", "new", "team:2") == kept)


def test_new_version_does_not_read_values_of_the_old_one(open_pod: OpenPod) -> None:
    old, new = open_pod(version=1), open_pod(version=2)
    old.get("u1", "old form")

    assert new.get("u1", "new form") == "new form"
    assert old.get("u1", "unused") == "old form"


def test_absence_is_remembered_for_its_own_time(open_pod: OpenPod, open_store: OpenStore) -> None:
    pod, other = open_pod(negative_ttl_ms=MINUTE_MS), open_pod(negative_ttl_ms=MINUTE_MS)
    assert pod.get("u1", None) is None

    assert other.get("u1", "unused") is None
    other.cache.invalidate_keys("u1")
    assert other.get("u1", "found") == "found"

    forgetful = open_pod(name="others")
    assert forgetful.get("u1", None) is None
    assert forgetful.get("u1", "found") == "found"


def test_value_expires(open_pod: OpenPod) -> None:
    pod = open_pod(ttl_ms=50)
    pod.get("u1", "old")

    eventually(lambda: pod.get("u1", "new") == "new")


def test_failed_computation_is_raised_and_not_stored(open_pod: OpenPod) -> None:
    pod = open_pod()

    def fail() -> Any:
        raise LookupError("the database is away")

    with pytest.raises(LookupError):
        pod.get("u1", fail)

    assert open_pod().get("u1", "fine") == "fine"


# ---- races: the invalidation at every step of a slow fill ------------------------------------


class Interrupting:
    """A store that lets something happen before or after its n-th call."""

    def __init__(self, store: Store, at: int, happen: Callable[[], None], *, after: bool) -> None:
        self._call = store.call
        self._count = 0
        self._at, self._after, self._happen = at, after, happen
        store.call = self.call  # type: ignore[method-assign]  # the point of the test

    def call(self, call: Any) -> Any:
        self._count += 1
        mine = self._count == self._at
        if mine and not self._after:
            self._happen()
        reply = self._call(call)
        if mine and self._after:
            self._happen()
        return reply


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("near", [False, True])
def test_value_computed_before_an_invalidation_is_not_served_after_it(
    open_pod: OpenPod, open_store: OpenStore, at: int, after: bool, near: bool
) -> None:
    """A write and its invalidation between any two steps of a fill (lada-cache PR 124)."""
    database = {"u1": "old"}
    pod, writer, reader = open_pod(near=near), open_pod(near=False), open_pod(near=near)

    def write() -> None:
        database["u1"] = "new"
        writer.cache.invalidate("team:1")

    Interrupting(pod.store, at, write, after=after)
    first = pod.get("u1", lambda: database["u1"], "team:1")
    if database["u1"] == "old":  # fewer steps than that
        write()

    assert first in {"old", "new"}
    assert reader.get("u1", lambda: database["u1"], "team:1") == "new"
    eventually(lambda: pod.get("u1", lambda: database["u1"], "team:1") == "new")


def test_value_computed_before_an_invalidation_is_computed_again(open_pod: OpenPod) -> None:
    pod, writer = open_pod(), open_pod()
    database = {"u1": "old"}

    def load() -> str:
        found = database["u1"]
        if found == "old":
            database["u1"] = "new"
            writer.cache.invalidate("team:1")
        return found

    assert pod.get("u1", load, "team:1") == "new"
    assert pod.loads == 2
    assert writer.get("u1", "unused", "team:1") == "new"


def test_late_caller_is_not_given_a_computation_that_is_older_than_an_invalidation(
    open_pod: OpenPod, valkey_server: LocalValkey
) -> None:
    """Two callers of one process, which cannot reach the server while another one writes."""
    writer = open_pod(valkey_server.url, near=False)
    database = {"u1": "old"}
    read, go = threading.Event(), threading.Event()

    def load_slowly() -> str:
        found = database["u1"]
        read.set()
        go.wait(30)
        return found

    with FaultProxy(valkey_server.port) as proxy:
        pod = open_pod(proxy.url, near=False)
        proxy.refuse()
        found: dict[str, Any] = {}
        early = threading.Thread(target=lambda: found.update(early=pod.get("u1", load_slowly)))
        early.start()
        assert read.wait(30)
        database["u1"] = "new"
        writer.cache.invalidate_keys("u1")
        late = threading.Thread(
            target=lambda: found.update(late=pod.get("u1", lambda: database["u1"]))
        )
        late.start()
        late.join(0.2)  # it has come, and waits
        go.set()
        early.join()
        late.join()

    assert found == {"early": "old", "late": "new"}


def test_tags_may_follow_from_the_value(open_pod: OpenPod) -> None:
    """Also then an invalidation during the computation is seen."""
    pod, writer = open_pod(), open_pod(near=False)
    database = {"u1": {"team": "1", "name": "old"}}

    def load() -> Any:
        found = dict(database["u1"])
        if found["name"] == "old":
            database["u1"] = {"team": "1", "name": "new"}
            writer.cache.invalidate("team:1")
        return found

    def tags_of(value: Any) -> list[str]:
        return [f"team:{value['team']}"]

    assert name_of(pod.cache.get("u1", load, tags_of)) == "new"
    database["u1"] = {"team": "1", "name": "newest"}
    writer.cache.invalidate("team:1")
    eventually(lambda: name_of(pod.cache.get("u1", load, tags_of)) == "newest")


def name_of(value: Any) -> Any:
    return value["name"]


@pytest.mark.parametrize("during", ["flush", "load"])
def test_fill_that_spans_a_flush_of_the_server_is_not_stored(
    open_pod: OpenPod, valkey_server: LocalValkey, during: str
) -> None:
    """The invalidation is forgotten with everything else; the fill must not be believed."""
    pod, writer = open_pod(valkey_server.url), open_pod(valkey_server.url)
    database = {"u1": "old"}

    def load() -> str:
        found = database["u1"]
        if found == "old":
            database["u1"] = "new"
            writer.cache.invalidate("team:1")
            valkey_server.ask("FLUSHALL")
            if during == "flush":
                writer.get("u2", "anything")  # gives the namespace its new life
        return found

    assert pod.get("u1", load, "team:1") == "new"
    assert writer.get("u1", lambda: database["u1"], "team:1") == "new"


def test_near_cache_refuses_what_an_invalidation_has_overtaken(
    open_pod: OpenPod, valkey_server: LocalValkey
) -> None:
    """The reply of a read is held back; the invalidation comes first on the other connection."""
    writer = open_pod(valkey_server.url)
    assert writer.get("u1", "old", "team:1") == "old"
    with FaultProxy(valkey_server.port) as proxy:
        pod = open_pod(proxy.url)
        pod.get("warm", "up")
        received = pod.store.figures["events_received"]
        found: list[Any] = []
        proxy.hold_replies(saying=b"EVALSHA")
        reader = threading.Thread(target=lambda: found.append(pod.get("u1", "new", "team:1")))
        reader.start()
        eventually(lambda: proxy.is_holding())

        writer.cache.invalidate("team:1")
        eventually(lambda: pod.store.figures["events_received"] > received)
        proxy.heal()
        reader.join()

        assert found == ["old"], "the read was answered before the invalidation"
        assert pod.get("u1", "new", "team:1") == "new"


# ---- B56: the size of the index --------------------------------------------------------------


def test_index_does_not_grow_with_expired_values(open_pod: OpenPod, valkey: World) -> None:
    """B56.1."""
    pod = open_pod(near=False, ttl_ms=1)
    for number in range(500):
        pod.get(f"u{number}", number, "t")
    live = open_pod(near=False)
    live.get("live", "old", "t")
    state = f"{valkey.prefix}:cache:{{users.1}}:state"

    live.cache.invalidate("t")

    assert valkey.server.ask("ZCARD", state) == 3
    assert live.get("live", "new", "t") == "new"


def test_member_is_found_whatever_the_age_of_its_tag(
    open_pod: OpenPod, valkey_server: LocalValkey
) -> None:
    """B56.2: the tag is older than what a value of the namespace may live."""
    pod = open_pod(valkey_server.url, near=False)
    pod.cache.invalidate("t")
    pod.get("u1", "old", "t")

    pod.cache.invalidate("t")

    assert pod.get("u1", "new", "t") == "new"


def test_old_invalidations_are_forgotten(open_pod: OpenPod, valkey: World) -> None:
    pod = open_pod(near=False, ttl_ms=1)
    state = f"{valkey.prefix}:cache:{{users.1}}:state"
    pod.cache.invalidate(*(f"t{number}" for number in range(50)))
    kept_us = (1 + 600_000 + 60_000) * 1_000
    for member in valkey.server.ask("ZRANGE", state, 0, -1):
        if member.startswith(b"t:"):
            valkey.server.ask("ZINCRBY", state, -kept_us, member)

    pod.cache.invalidate("another")

    assert sorted(valkey.server.ask("ZRANGE", state, 0, -1)) == [b"e", b"s", b"t:another"]


# ---- single flight -----------------------------------------------------------------------------

STAMPEDE = """
import sys, threading, time
from cape_stream.coordination.cache import Cache, CacheSettings
from cape_stream.coordination.codecs import JsonCodec
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
store = Store(ValkeySettings(url=sys.argv[1], prefix=sys.argv[2], call_timeout_ms=10000))
settings = CacheSettings("hot", 1, 60000, flight_ms=int(sys.argv[3]))
cache = Cache(store, settings, JsonCodec())
loads, found = [], []
def load():
    loads.append(1)
    print("loading", flush=True)
    time.sleep(float(sys.argv[4]))
    return "value"
sys.stdin.readline()
threads = [threading.Thread(target=lambda: found.append(cache.get("k", load))) for _ in range(20)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(loads), found.count("value"), flush=True)
"""


def stampede(world: World, count: int, flight_ms: int, load_s: float) -> list[Any]:
    words = [sys.executable, "-c", STAMPEDE, world.url, world.prefix, str(flight_ms), str(load_s)]
    pods = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for pod in pods:
        assert pod.stdin is not None
        pod.stdin.write("\n")
        pod.stdin.flush()
    return pods


def last_line(pod: "subprocess.Popen[str]") -> str:
    out, _ = pod.communicate(timeout=45)
    return out.splitlines()[-1]


def test_stampede_of_processes_loads_once(valkey: World) -> None:
    pods = stampede(valkey, 3, flight_ms=40_000, load_s=0.3)

    answers = [last_line(pod).split() for pod in pods]

    assert sum(int(loads) for loads, _ in answers) == 1
    assert [found for _, found in answers] == ["20"] * 3


def test_another_process_takes_over_when_the_loader_is_killed(valkey: World) -> None:
    (first,) = stampede(valkey, 1, flight_ms=1_500, load_s=40)
    assert first.stdout is not None
    assert first.stdout.readline() == "loading\n"
    others = stampede(valkey, 2, flight_ms=1_500, load_s=0.05)
    first.kill()
    first.communicate()

    answers = [last_line(pod).split() for pod in others]

    assert sum(int(loads) for loads, _ in answers) == 1
    assert [found for _, found in answers] == ["20"] * 2


# ---- without the server, and with a strange one -------------------------------------------------


def test_values_are_computed_when_the_server_is_away(
    open_pod: OpenPod, fault_proxy: FaultProxy
) -> None:
    pod = open_pod(fault_proxy.url)
    assert pod.get("u1", "old") == "old"
    fault_proxy.refuse()
    eventually(lambda: pod.listener.staleness_ms() == float("inf"))

    assert pod.get("u1", "computed") == "computed"
    with pytest.raises(Retry):
        pod.cache.invalidate("team:1")


def test_callers_of_one_process_share_computations_when_the_server_is_away(
    open_pod: OpenPod, fault_proxy: FaultProxy
) -> None:
    pod = open_pod(fault_proxy.url, near=False)
    fault_proxy.refuse()
    began, go = threading.Event(), threading.Event()

    def load() -> str:
        began.set()
        go.wait(30)
        return "computed"

    threads = [threading.Thread(target=pod.get, args=("u1", load)) for _ in range(20)]
    threads[0].start()
    assert began.wait(30)
    for thread in threads[1:]:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()

    assert 1 <= pod.loads <= 20 // 2


def test_full_server_serves_what_it_has_and_costs_no_error(
    open_pod: OpenPod, valkey_server: LocalValkey
) -> None:
    pod = open_pod(valkey_server.url, near=False)
    pod.get("u1", "stored")
    valkey_server.ask("CONFIG", "SET", "maxmemory", "1")

    assert pod.get("u1", "unused") == "stored"
    assert pod.get("u2", "computed") == "computed"

    valkey_server.ask("CONFIG", "SET", "maxmemory", "0")
    assert pod.get("u2", "stored now") == "stored now"


@pytest.mark.parametrize("words", [("SET", "hello"), ("LPUSH", "x")])
def test_foreign_value_is_a_miss_and_replaced(
    open_pod: OpenPod, valkey: World, words: tuple[str, str]
) -> None:
    pod = open_pod(near=False)
    valkey.server.ask(words[0], f"{valkey.prefix}:cache:{{users.1}}:v:u1", words[1])

    assert pod.get("u1", "computed") == "computed"
    assert pod.get("u1", "unused") == "computed"
    assert pod.store.figures["cache_foreign"] == 1


def test_undecodable_value_is_computed_anew(open_pod: OpenPod, valkey: World) -> None:
    pod = open_pod(near=False)
    pod.get("u1", "fine")
    valkey.server.ask("HSET", f"{valkey.prefix}:cache:{{users.1}}:v:u1", "d", "{not json")

    assert pod.get("u1", "computed") == "computed"
    assert pod.store.figures["cache_undecodable"] == 1


def test_value_that_is_too_large_is_served_and_not_kept(open_store: OpenStore) -> None:
    cache = Cache(open_store(), CacheSettings("big", 1, MINUTE_MS), BytesCodec())
    large = bytes((8 << 20) + 1)

    assert cache.get("k", lambda: large) == large
    assert cache.get("k", lambda: b"small") == b"small"


@pytest.mark.parametrize("key", ["a b", "a\nb", "{x}", b"\xff\x00", "é%", "k" * 1_024])
def test_odd_keys_and_tags_are_kept_apart(open_pod: OpenPod, key: Any) -> None:
    pod = open_pod(near=False)

    assert pod.get(key, "value", key) == "value"
    pod.cache.invalidate("another")
    assert pod.get(key, "unused", key) == "value"
    pod.cache.invalidate(key)
    assert pod.get(key, "new", key) == "new"


@pytest.mark.parametrize("key", ["", "k" * 1_025, "\ud800"])
def test_impossible_keys_are_refused(open_pod: OpenPod, key: str) -> None:
    with pytest.raises(Reject):
        open_pod(near=False).get(key, "value")
    with pytest.raises(Reject):
        open_pod(near=False).get("k", "value", key)


@pytest.mark.parametrize("ttl_ms", [0, -5, 2**63])
def test_impossible_times_to_live_are_refused(ttl_ms: int) -> None:
    with pytest.raises(Reject, match=str(ttl_ms)):
        CacheSettings("users", 1, ttl_ms)


def test_namespace_stays_in_one_slot(open_pod: OpenPod, valkey_cluster: LocalValkey) -> None:
    pod = open_pod(valkey_cluster.url)

    assert pod.get("u1", "old", "t1", "t2") == "old"
    pod.cache.invalidate("t1")
    assert pod.get("u1", "new", "t1") == "new"
