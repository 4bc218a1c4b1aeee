"""Ownership records and their reverse index."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cape_stream.coordination.keys import Name
from cape_stream.coordination.ownership import Ownership
from cape_stream.coordination.store import Store
from cape_stream.errors import Reject, Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey, World
from tests.waiting import eventually

LONG_MS = 60_000


@pytest.fixture
def records(store: Store) -> Ownership:
    return Ownership(store, "partitions", LONG_MS)


def test_first_claim_wins_until_it_is_released(records: Ownership) -> None:
    first = records.claim("p1", "node-a")
    second = records.claim("p1", "node-b")

    assert (first.node, second.node) == ("node-a", "node-a")
    assert second.fence == first.fence
    assert records.claim("p1", "node-a").fence == first.fence
    assert records.release("p1", "node-a", first.fence)
    third = records.claim("p1", "node-b")
    assert third.node == "node-b"
    assert third.fence > first.fence


def test_expired_record_is_taken_over_and_the_late_heartbeat_refused(store: Store) -> None:
    brief, records = Ownership(store, "partitions", 100), Ownership(store, "partitions", LONG_MS)
    old = brief.claim("p1", "node-a")

    eventually(lambda: records.claim("p1", "node-b").node == "node-b")

    assert records.beat("node-a", {"p1": old.fence}) == {"p1"}
    assert not records.release("p1", "node-a", old.fence)
    (owner,) = records.owners(["p1"])
    assert owner is not None
    assert owner.node == "node-b"
    assert owner.fence > old.fence


def test_forced_claim_takes_over_at_once(records: Ownership) -> None:
    old = records.claim("p1", "node-a")

    new = records.claim("p1", "node-b", by_force=True)

    assert new.fence > old.fence
    assert records.of_node("node-a") == {}
    assert records.of_node("node-b") == {"p1": new.fence}
    assert records.beat("node-a", {"p1": old.fence}) == {"p1"}


def test_heartbeat_keeps_many_alive_and_names_what_is_lost(store: Store) -> None:
    records = Ownership(store, "partitions", LONG_MS)
    names: list[Name] = [f"p{number}" for number in range(600)]
    held = {name: records.claim(name, "node-a").fence for name in names}
    records.claim("p7", "node-b", by_force=True)

    assert records.beat("node-a", {**held, "never": 1}) == {"p7", "never"}
    assert len(records.of_node("node-a")) == 599


def test_nodes_whose_names_begin_alike_are_kept_apart(records: Ownership) -> None:
    for node in ("n", "n1", "n 1", "n!", "n{"):
        records.claim(f"of {node}", node)

    for node in ("n", "n1", "n 1", "n!", "n{"):
        assert list(records.of_node(node)) == [f"of {node}"]


def test_fence_grows_when_the_records_are_gone(records: Ownership, valkey: World) -> None:
    old = records.claim("p1", "node-a")
    valkey.server.ask("DEL", f"{valkey.prefix}:own:{{partitions}}:records")

    assert records.beat("node-a", {"p1": old.fence}) == {"p1"}
    assert records.claim("p1", "node-b").fence > old.fence


def test_claim_is_the_same_when_its_reply_is_lost(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    records = Ownership(open_store(fault_proxy.url), "partitions", LONG_MS)
    records.owners(["p1"])

    fault_proxy.lose_replies(1)
    first = records.claim("p1", "node-a")

    assert records.claim("p1", "node-a").fence == first.fence


def test_old_records_are_forgotten(store: Store, valkey: World) -> None:
    records = Ownership(store, "partitions", 100)
    for number in range(20):
        records.claim(f"p{number}", "node-a")
    eventually(lambda: records.owners(["p19"]) == [None])
    alive = Ownership(store, "partitions", LONG_MS).claim("alive", "node-b")

    assert records.forget(older_ms=0) == 20
    assert records.of_node("node-b") == {"alive": alive.fence}
    assert valkey.server.ask("ZCARD", f"{valkey.prefix}:own:{{partitions}}:nodes") == 1


def test_claims_are_refused_when_the_server_is_away(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    records = Ownership(open_store(fault_proxy.url), "partitions")
    fault_proxy.refuse()

    with pytest.raises(Retry):
        records.claim("p1", "node-a")


@pytest.mark.parametrize("name", ["", "n" * 1_025])
def test_impossible_names_are_refused(records: Ownership, name: str) -> None:
    with pytest.raises(Reject):
        records.claim(name, "node-a")
    with pytest.raises(Reject):
        records.claim("p1", name)


def test_records_stay_in_one_slot(open_store: OpenStore, valkey_cluster: LocalValkey) -> None:
    records = Ownership(open_store(valkey_cluster.url), "partitions")
    owner = records.claim("p1", "node-a")

    assert records.beat("node-a", {"p1": owner.fence}) == set()
    assert records.release("p1", "node-a", owner.fence)


NODES = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "force", "release", "beat"]),
        st.sampled_from(NODES),
        st.sampled_from(["p", "q"]),
    ),
    max_size=25,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_index_and_records_agree_after_any_interleaving(
    store: Store, valkey: World, steps: list[tuple[str, str, str]]
) -> None:
    for part in ("records", "nodes"):
        valkey.server.ask("DEL", f"{valkey.prefix}:own:{{model}}:{part}")
    records = Ownership(store, "model", LONG_MS)
    owner: dict[str, tuple[str, int]] = {}
    held: dict[tuple[str, str], int] = {}
    released: dict[str, int] = {}
    highest = 0

    for verb, node, resource in steps:
        if verb in {"claim", "force"}:
            found = records.claim(resource, node, by_force=verb == "force")
            if resource not in owner or verb == "force":
                if owner.get(resource, ("", 0))[0] != node:
                    assert found.fence > highest
                    highest = found.fence
                owner[resource] = (node, found.fence)
            assert (found.node, found.fence) == owner[resource]
            if found.node == node:
                held[node, resource] = found.fence
        elif verb == "release":
            fence = held.get((node, resource), 1)
            was_ours = owner.get(resource) == (node, fence)
            is_again = resource not in owner and released.get(resource) == fence
            assert records.release(resource, node, fence) is (was_ours or is_again)
            if was_ours:
                del owner[resource]
                released[resource] = fence
        else:
            fence = held.get((node, resource), 1)
            is_ours = owner.get(resource) == (node, fence)
            assert records.beat(node, {resource: fence}) == (set() if is_ours else {resource})

    for node in NODES:
        mine = {name: fence for name, (who, fence) in owner.items() if who == node}
        assert records.of_node(node) == mine
