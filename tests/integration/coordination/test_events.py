"""Events: each once, in order, and a gap is read up or told."""

from collections.abc import Iterator

import pytest

from cape_stream.coordination.events import Publisher
from cape_stream.coordination.listener import Listener, Watch
from cape_stream.coordination.store import Store
from cape_stream.errors import Reject, Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey, World
from tests.waiting import eventually


class Ear:
    """One process that listens to the topic `news`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.heard: list[bytes] = []
        self.gaps = 0
        self.watch = Watch(store.keys("event"), "news", self.hear, self.miss)

    def hear(self, payload: bytes) -> None:
        if payload == b"poison":
            raise ValueError("a defect of the listener's user")
        self.heard.append(payload)

    def miss(self) -> None:
        self.gaps += 1


@pytest.fixture
def ear(store: Store) -> Ear:
    return Ear(store)


@pytest.fixture
def listening(store: Store) -> Iterator[Ear]:
    listener, ear = Listener(store), Ear(store)
    listener.watch(ear.watch)
    eventually(lambda: listener.staleness_ms() < 1_000)
    # From an event on that it knows, whatever it misses is read up and not only told as a gap.
    Publisher(store).publish("news", b"hello")
    eventually(lambda: ear.heard == [b"hello"])
    ear.heard.clear()
    yield ear
    listener.close()


def entries(world: World) -> list[tuple[bytes, bytes]]:
    """(id, payload) of everything in the stream."""
    key = f"{world.prefix}:event:{{news}}:log"
    return [(each, fields[b"p"]) for each, fields in world.server.ask("XRANGE", key, "-", "+")]


def messages(world: World) -> list[bytes]:
    """What pub/sub carried for each entry of the stream."""
    before, found = b"0-0", []
    for each, payload in entries(world):
        found.append(each + b" " + before + b" " + payload)
        before = each
    return found


def test_events_arrive_once_and_in_order(listening: Ear, open_store: OpenStore) -> None:
    publisher = Publisher(open_store())

    ids = [publisher.publish("news", b"%d" % number) for number in range(20)]

    eventually(lambda: len(listening.heard) == 20)
    assert listening.heard == [b"%d" % number for number in range(20)]
    assert len(set(ids)) == 20


def test_event_that_was_lost_on_a_living_link_is_read_up(
    ear: Ear, store: Store, valkey: World
) -> None:
    ear.watch.read_up(store)
    for number in range(4):
        Publisher(store).publish("news", b"%d" % number)
    first, _, third, fourth = messages(valkey)

    ear.watch.take(first, store)
    ear.watch.take(third, store)
    ear.watch.take(fourth, store)

    assert ear.heard == [b"0", b"1", b"2", b"3"]
    assert ear.gaps == 1, "the first word, and none after it"


def test_event_that_comes_twice_is_heard_once(ear: Ear, store: Store, valkey: World) -> None:
    ear.watch.read_up(store)
    Publisher(store).publish("news", b"a")
    (message,) = messages(valkey)

    ear.watch.take(message, store)
    ear.watch.take(message, store)

    assert ear.heard == [b"a"]


def test_gap_is_told_when_the_stream_no_longer_has_it(
    ear: Ear, store: Store, valkey: World
) -> None:
    ear.watch.read_up(store)
    for number in range(3):
        Publisher(store).publish("news", b"%d" % number)
    first, _, third = messages(valkey)
    ear.watch.take(first, store)
    valkey.server.ask("XTRIM", f"{valkey.prefix}:event:{{news}}:log", "MAXLEN", 1)

    ear.watch.take(third, store)

    assert ear.heard == [b"0"]
    assert ear.gaps == 2


def test_listener_survives_what_others_publish_and_what_its_user_raises(
    listening: Ear, store: Store, valkey: World
) -> None:
    channel = f"{valkey.prefix}:event:{{news}}:news"
    for junk in (b"", b"junk", b"a b c", b"\xff\xff \xff"):
        valkey.server.ask("PUBLISH", channel, junk)

    Publisher(store).publish("news", b"poison")
    Publisher(store).publish("news", b"after")

    eventually(lambda: listening.heard == [b"after"])
    assert listening.gaps == 2, "the first word, and the one after what its user raised"


def test_stream_is_bounded(store: Store, valkey: World) -> None:
    publisher = Publisher(store)
    for number in range(1_010):
        publisher.publish("news", b"%d" % number)

    assert len(entries(valkey)) == 1_000


def test_event_is_published_once_when_the_reply_is_lost(
    open_store: OpenStore, valkey_server: LocalValkey, fault_proxy: FaultProxy
) -> None:
    store = open_store(fault_proxy.url)
    publisher = Publisher(store)
    publisher.publish("news", b"a")

    fault_proxy.lose_replies(1)
    publisher.publish("news", b"b")

    key = f"{store.settings.prefix}:event:{{news}}:log"
    assert valkey_server.ask("XLEN", key) == 2


def test_publishing_is_refused_clearly(open_store: OpenStore, fault_proxy: FaultProxy) -> None:
    publisher = Publisher(open_store(fault_proxy.url))
    with pytest.raises(Reject, match="64000"):
        publisher.publish("news", bytes(64_001))
    with pytest.raises(Reject, match="topic"):
        publisher.publish("", b"a")

    fault_proxy.refuse()
    with pytest.raises(Retry):
        publisher.publish("news", b"a")
