"""Operators' verbs and what dispatchers do are shown live, and losing the server costs neither."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cape_stream.coordination.audit_tail import AuditTail
from cape_stream.coordination.store import Store
from cape_stream.roles.live_tail import WAITING_MAX, NoTail, ValkeyTail, open_tail
from tests.fault_proxy import FaultProxy
from tests.integration import run_app
from tests.integration.coordination.conftest import OpenStore
from tests.integration.test_operators import TOKEN, Running
from tests.valkey import LocalValkey
from tests.waiting import eventually


@pytest.fixture
def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, valkey_server: LocalValkey
) -> Iterator[Running]:
    monkeypatch.setenv("CAPE_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("CAPE_VALKEY_URL", valkey_server.url)
    run_app.fill(tmp_path, subjects=3, events_each=10)
    world = Running(tmp_path)
    yield world
    code, errors = run_app.end(world.process)
    assert code == 0, errors


@pytest.mark.timeout(180)
def test_order_is_shown_and_goes_through_as_well_without_the_server(
    running: Running, open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    tail = AuditTail(open_store(valkey_server.url, prefix="cape:1"))

    def shown() -> list[dict[str, object]]:
        events = [dict(each.body) for each in tail.recent("runs")]
        return [each for each in events if str(each["event"]).startswith("order ")]

    running.order("cursor", "rewind", "order-1", "ledger", "--to", "7", "--why", "a test")
    eventually(lambda: len(shown()) == 1)
    (event,) = shown()
    wanted = {"event": "order applied", "verb": "rewind", "subject": "order-1", "why": "a test"}
    assert event.items() >= wanted.items()
    assert event["detail"] == "cursor 9 → 7"

    valkey_server.freeze()
    paused = running.order("topology", "pause", "ledger", "--why", "test")
    assert paused.stdout.count("applied: paused") == 4
    valkey_server.kill()
    resumed = running.order("topology", "resume", "ledger")
    assert resumed.stdout.count("applied: resumed") == 4


def test_who_shows_events_never_waits_for_the_server(
    open_store: OpenStore, fault_proxy: FaultProxy, valkey_server: LocalValkey
) -> None:
    store = open_store(fault_proxy.url, call_timeout_ms=40_000)
    tail = ValkeyTail(AuditTail(store), "shop", store.close)
    fault_proxy.freeze()

    for number in range(WAITING_MAX + 500):
        tail.show([{"number": number}])

    assert tail.waiting <= WAITING_MAX
    closing = threading.Thread(target=tail.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive(), "it does not wait out the timeout of the call"


def test_events_are_sent_in_order_and_what_is_none_is_left_out(
    store: Store, open_store: OpenStore
) -> None:
    tail = ValkeyTail(AuditTail(store), "shop", store.close)

    tail.show([{"number": 1}, {"number": "x" * 20_000}, {"number": 3}])

    reader = AuditTail(open_store())
    eventually(lambda: [event.body["number"] for event in reader.recent("shop")] == [1, 3])
    tail.close()


def test_nothing_is_shown_where_no_server_is_named() -> None:
    assert isinstance(open_tail("shop", {}), NoTail)
