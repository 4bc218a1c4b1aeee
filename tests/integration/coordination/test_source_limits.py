"""Dispatchers share a limit for each source, and go on alone without the server."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cape_stream.coordination.limits import Limits, LimitSettings
from cape_stream.errors import Retry
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.ports.source import Changes, NotAskedError
from cape_stream.roles.source_limits import LimitedSource, SourceLimits
from cape_stream.runtime.settings import EngineSettings
from tests.fault_proxy import FaultProxy
from tests.integration import run_app
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey
from tests.waiting import eventually

LEASE_MS = 60_000
SLOW_MS = 60_000
NAME = "source shop.orders"
ONE = [EventQuery("A", 0, 10)]
TWO = [EventQuery(subject, 0, 10) for subject in "AB"]


class Source:
    """A source that does what the test says, and knows how many ask it at a time."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        self._act = act
        self._lock = threading.Lock()
        self._open = 0
        self.most = 0

    def fetch_many(self, queries: Sequence[EventQuery]) -> list[EventPage]:
        with self._lock:
            self._open += 1
            self.most = max(self.most, self._open)
        try:
            self._act()
            return [EventPage(each) for each in queries]
        finally:
            with self._lock:
                self._open -= 1

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        return Changes([], watermark or "", more=False)

    def close(self) -> None:
        """Nothing to free."""


OpenLimits = Callable[..., Limits]


@pytest.fixture
def open_limits(open_store: OpenStore) -> OpenLimits:
    def open_one(url: str = "", *, start: int = 4, **store: int) -> Limits:
        settings = LimitSettings(start=start, most=8, lease_ms=LEASE_MS, fallback_slots=2)
        return Limits(open_store(url, **store), settings)

    return open_one


def test_dispatchers_share_one_ceiling(open_limits: OpenLimits) -> None:
    both_in, go_on = threading.Barrier(3), threading.Event()

    def act() -> None:
        both_in.wait(30)
        go_on.wait(30)

    source = Source(act)
    pods = [LimitedSource(source, open_limits(start=2), NAME, SLOW_MS) for _ in range(2)]
    calls = [threading.Thread(target=pod.fetch_many, args=(ONE,)) for pod in pods]
    for call in calls:
        call.start()
    both_in.wait(30)

    with pytest.raises(NotAskedError, match="may not be called now"):
        pods[0].fetch_many(ONE)

    go_on.set()
    for call in calls:
        call.join()
    assert source.most == 2


def test_throttling_heard_by_one_dispatcher_holds_all_off(open_limits: OpenLimits) -> None:
    def throttle() -> None:
        raise Retry("slow down", 600_000)

    throttled = LimitedSource(Source(throttle), open_limits(), NAME, SLOW_MS)
    other = LimitedSource(Source(), limits := open_limits(), NAME, SLOW_MS)
    with pytest.raises(Retry, match="slow down"):
        throttled.fetch_many(ONE)

    with pytest.raises(NotAskedError):
        other.fetch_many(TWO)

    assert limits.look(NAME).held_ms > 500_000


def test_only_signs_of_too_much_lower_the_ceiling(open_limits: OpenLimits) -> None:
    limits, errors = open_limits(), [Retry("away"), Retry("away"), ValueError("a defect")]

    def fail() -> None:
        if errors:
            raise errors.pop()

    source = LimitedSource(Source(fail), limits, NAME, SLOW_MS)
    for queries, ceiling in ((TWO, 4), (ONE, 4), (TWO, 2)):
        with pytest.raises((Retry, ValueError)):
            source.fetch_many(queries)
        assert limits.look(NAME).ceiling == ceiling

    slow = LimitedSource(Source(), limits, "source shop.slow", slow_ms=0)
    assert slow.fetch_many(TWO) == [EventPage(each) for each in TWO]
    assert limits.look("source shop.slow").ceiling == 2


def test_sources_are_asked_without_the_server(
    open_limits: OpenLimits, fault_proxy: FaultProxy
) -> None:
    limits = open_limits(fault_proxy.url, call_timeout_ms=200)
    source = LimitedSource(Source(), limits, NAME, SLOW_MS)
    fault_proxy.freeze()
    assert source.fetch_many(ONE) == [EventPage(ONE[0])]
    fault_proxy.refuse()
    assert source.fetch_many(ONE) == [EventPage(ONE[0])]

    fault_proxy.heal()

    eventually(lambda: source.fetch_many(ONE) == [EventPage(ONE[0])] and is_limited(limits))


def is_limited(limits: Limits) -> bool:
    try:
        return limits.look(NAME).ceiling == 4
    except Retry:
        return False


def test_sources_are_left_alone_where_no_server_is_named() -> None:
    source = Source()
    limits = SourceLimits("shop", EngineSettings(), {})

    assert limits.around("orders", source) is source
    limits.close()


@pytest.mark.timeout(120)
def test_running_dispatcher_keeps_to_the_limit_of_its_source(
    tmp_path: Path, open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    limits = Limits(open_store(valkey_server.url, prefix="cape:1"), LimitSettings())
    run_app.fill(tmp_path, subjects=2, events_each=5)
    words = ("run", "tests.integration.run_app:app", "--data", str(tmp_path / "data"), "--quiet")
    valkey_server.ask("HSET", "cape:1:limit:{source%20runs.orders}:state", "paused", "a test")
    process = run_app.start(tmp_path, *words, environment={"CAPE_VALKEY_URL": valkey_server.url})
    try:
        tail = "cape:1:audit:{runs}:tail"
        eventually(lambda: valkey_server.ask("XLEN", tail) == 4)  # it has its partitions
        assert run_app.delivered(tmp_path, "ledger") == {}
        assert limits.look("source runs.orders").paused == "a test"

        valkey_server.ask("HDEL", "cape:1:limit:{source%20runs.orders}:state", "paused")
        run_app.wait_for(tmp_path, ["ledger", "audit"], 10, process)

        code, errors = run_app.end(process)
        assert code == 0, errors
    finally:
        run_app.clean_up()
