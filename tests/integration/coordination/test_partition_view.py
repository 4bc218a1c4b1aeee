"""Which dispatcher owns which partitions, as a view."""

from pathlib import Path

import pytest

from cape_stream.coordination.audit_tail import AuditTail
from cape_stream.coordination.ownership import Ownership
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.errors import Retry
from cape_stream.roles.partition_view import PartitionView, open_view
from tests.fault_proxy import FaultProxy
from tests.integration import run_app
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey
from tests.waiting import eventually


class Node:
    """One dispatcher, as far as the view is concerned."""

    def __init__(self, store: Store, name: str) -> None:
        self.owned: list[str] = []
        self.records = Ownership(store, "partitions of shop", 60_000)
        self.tail = AuditTail(store)
        self.view = PartitionView(self.records, self.tail, "shop", name, lambda: self.owned)

    def own(self, *names: str) -> None:
        self.owned = list(names)
        self.view.turn()


def test_view_follows_the_group(open_store: OpenStore) -> None:
    a, b = Node(open_store(), "a"), Node(open_store(), "b")
    a.own("orders-0", "orders-1")

    b.own("orders-1")  # the group gave it to b; a has not heard of it yet
    a.own("orders-0")

    assert set(a.records.of_node("a")) == {"orders-0"}
    assert set(a.records.of_node("b")) == {"orders-1"}
    events = [event.body["event"] for event in a.tail.recent("shop")]
    assert events.count("partition taken") == 3
    a.view.close()
    assert a.records.of_node("a") == {}


def test_view_is_shown_anew_after_a_flush(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    node = Node(open_store(valkey_server.url), "a")
    node.own("orders-0")

    valkey_server.ask("FLUSHALL")
    node.own("orders-0")

    assert set(node.records.of_node("a")) == {"orders-0"}


def test_view_catches_up_after_an_outage(open_store: OpenStore, fault_proxy: FaultProxy) -> None:
    node = Node(open_store(fault_proxy.url), "a")
    node.own("orders-0")
    fault_proxy.refuse()
    with pytest.raises(Retry):
        node.own("orders-1")
    fault_proxy.heal()

    def has_caught_up() -> bool:
        try:
            node.own("orders-1")
        except Retry:
            return False
        return True

    eventually(has_caught_up)
    assert set(node.records.of_node("a")) == {"orders-1"}


def test_there_is_no_view_without_a_server() -> None:
    assert open_view("shop", "a", list, {}) is None


@pytest.mark.timeout(120)
def test_running_dispatcher_is_shown(tmp_path: Path, valkey_server: LocalValkey) -> None:
    run_app.fill(tmp_path, subjects=2, events_each=1)
    words = ("run", "tests.integration.run_app:app", "--data", str(tmp_path / "data"), "--quiet")
    store = Store(ValkeySettings(url=valkey_server.url))
    records = Ownership(store, "partitions of runs")
    process = run_app.start(tmp_path, *words, environment={"CAPE_VALKEY_URL": valkey_server.url})
    try:
        eventually(lambda: len(AuditTail(store).recent("runs")) == 4)
        (node,) = {str(event.body["node"]) for event in AuditTail(store).recent("runs")}
        assert len(records.of_node(node)) == 4

        code, errors = run_app.end(process)

        assert code == 0, errors
        assert records.of_node(node) == {}
    finally:
        store.close()
        run_app.clean_up()
