"""The live audit tail."""

import itertools
import threading

import pytest

from cape_stream.coordination.audit_tail import AuditEvent, AuditTail, Gap, TailSettings
from cape_stream.coordination.store import Store
from cape_stream.errors import Reject, Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey, World
from tests.waiting import eventually


@pytest.fixture
def tail(store: Store) -> AuditTail:
    return AuditTail(store, TailSettings(most=5))


def bodies(found: list[AuditEvent | Gap] | list[AuditEvent]) -> list[object]:
    return [each.body["n"] if isinstance(each, AuditEvent) else each for each in found]


def test_newest_events_of_each_workspace_are_kept(tail: AuditTail) -> None:
    for number in range(8):
        assert tail.append("w1", {"n": number})
    tail.append("w2", {"n": "other"})

    assert bodies(tail.recent("w1")) == [3, 4, 5, 6, 7]
    assert bodies(tail.recent("w1", 2)) == [6, 7]
    assert bodies(tail.recent("w2")) == ["other"]
    assert tail.recent("nobody") == []
    assert tail.recent("w1", 0) == []


def test_old_events_are_dropped(store: Store, valkey: World) -> None:
    tail = AuditTail(store, TailSettings(kept_ms=1_000))
    valkey.server.ask("XADD", f"{valkey.prefix}:audit:{{w1}}:tail", "5-0", "r", "x", "b", "{}")

    tail.append("w1", {"n": 1})

    assert bodies(tail.recent("w1")) == [1]


def test_reader_resumes_by_id(tail: AuditTail) -> None:
    ids = [tail.append("w1", {"n": number}) for number in range(5)]
    assert ids[1] is not None

    assert bodies(tail.since("w1", ids[1])) == [2, 3, 4]
    assert bodies(tail.since("w1", str(ids[4]))) == []


def test_reader_is_told_when_events_are_gone(tail: AuditTail) -> None:
    first = str(tail.append("w1", {"n": 0}))
    for number in range(1, 8):
        tail.append("w1", {"n": number})

    assert bodies(tail.since("w1", first)) == [Gap(first), 3, 4, 5, 6, 7]
    assert bodies(tail.since("nobody", first)) == [Gap(first)]


def test_follower_sees_what_comes_after_it_began(tail: AuditTail) -> None:
    tail.append("w1", {"n": "before"})
    follower = tail.follow("w1", idle_ms=20)
    assert next(follower) is None

    for number in range(3):
        tail.append("w1", {"n": number})

    found = [each for each in itertools.islice(follower, 3) if each is not None]
    assert bodies(found) == [0, 1, 2]


def test_follower_resumes_without_a_gap_or_a_double(tail: AuditTail) -> None:
    ids = [str(tail.append("w1", {"n": number})) for number in range(4)]
    writer = threading.Thread(target=lambda: tail.append("w1", {"n": "late"}))

    follower = tail.follow("w1", after=ids[1], idle_ms=1_000)
    first = [next(follower), next(follower)]
    writer.start()
    writer.join()
    last = next(each for each in follower if each is not None)

    assert bodies([each for each in first if each is not None]) == [2, 3]
    assert bodies([last]) == ["late"]


def test_event_is_appended_once_when_the_reply_is_lost(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    tail = AuditTail(open_store(fault_proxy.url))
    tail.append("w1", {"n": 0})

    fault_proxy.lose_replies(1)
    tail.append("w1", {"n": 1})

    assert bodies(tail.recent("w1")) == [0, 1]


def test_whoever_is_audited_does_not_wait_for_the_server(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    store = open_store(fault_proxy.url)
    tail = AuditTail(store)
    fault_proxy.refuse()

    assert tail.append("w1", {"n": 1}) is None
    assert store.figures["audit_dropped"] == 1
    with pytest.raises(Retry):
        tail.recent("w1")


def test_follower_is_told_that_the_link_is_down(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    tail = AuditTail(open_store(fault_proxy.url))
    last = str(tail.append("w1", {"n": 1}))
    follower = tail.follow("w1", idle_ms=20)
    assert next(follower) is None

    fault_proxy.refuse()
    with pytest.raises(Retry):
        list(follower)
    fault_proxy.heal()

    eventually(lambda: tail.append("w1", {"n": 2}) is not None)
    assert bodies(tail.since("w1", last)) == [2]


@pytest.mark.parametrize(
    "text", ["", "-", "1", "a-1", "1-b", "1-1-1", "99999999999999999999-0", "²-0"]
)
def test_what_is_no_id_is_refused(tail: AuditTail, text: str) -> None:
    with pytest.raises(Reject, match="no id"):
        tail.since("w1", text)


def test_what_is_no_event_is_refused(tail: AuditTail) -> None:
    with pytest.raises(Reject, match="JSON"):
        tail.append("w1", {"n": object()})
    with pytest.raises(Reject, match="16384"):
        tail.append("w1", {"n": "x" * 20_000})
    with pytest.raises(Reject):
        tail.append("", {"n": 1})


def test_tail_stays_in_one_slot(open_store: OpenStore, valkey_cluster: LocalValkey) -> None:
    tail = AuditTail(open_store(valkey_cluster.url))

    tail.append("w1", {"n": 1})
    assert bodies(tail.recent("w1")) == [1]
