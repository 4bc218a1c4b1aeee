"""What the layer counts, as Prometheus reads it."""

from cape_stream.coordination.events import Publisher
from cape_stream.coordination.figures import Figures
from cape_stream.coordination.listener import Listener, Watch
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.roles.valkey import FIGURES, open_store
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey, World
from tests.waiting import eventually

STALENESS = "cape_coordination_event_staleness_seconds"


def gauge(text: str) -> float:
    (line,) = [each for each in text.splitlines() if each.startswith(f"{STALENESS} ")]
    return float(line.split()[1])


def test_counts_are_written_in_the_exposition_format(store: Store) -> None:
    assert store.figures.as_text() == ""
    locks = Locks(store)
    lease = locks.acquire("job")
    assert lease is not None
    lease.release()
    locks.close()

    assert store.figures.as_text() == (
        "# TYPE cape_coordination_locks_acquired_total counter\n"
        "cape_coordination_locks_acquired_total 1\n"
        "# TYPE cape_coordination_valkey_calls_total counter\n"
        "cape_coordination_valkey_calls_total 2\n"
    )


def test_staleness_is_shown_while_somebody_listens(
    open_store: OpenStore, valkey_server: LocalValkey, fault_proxy: FaultProxy
) -> None:
    store = open_store(fault_proxy.url)
    listener = Listener(store)
    listener.watch(Watch(store.keys("event"), "news", lambda _: None, lambda: None))
    eventually(lambda: gauge(store.figures.as_text()) < 1)
    Publisher(store).publish("news", b"hello")

    fault_proxy.refuse()
    eventually(lambda: gauge(store.figures.as_text()) == float("inf"))
    fault_proxy.heal()
    eventually(lambda: gauge(store.figures.as_text()) < 1)

    listener.close()
    listener.close()
    assert STALENESS not in store.figures.as_text()


def test_of_several_gauges_the_worst_is_shown() -> None:
    figures = Figures()
    for gauge_of in (lambda: 0.5, lambda: 2.0, lambda: 1.0):
        figures.watch("event_staleness_seconds", gauge_of)

    assert gauge(figures.as_text()) == 2.0


def test_stores_of_roles_count_together(valkey: World) -> None:
    before = FIGURES["valkey_calls"]
    stores = [open_store(valkey.url) for _ in range(2)]
    for store in stores:
        Publisher(store).publish(valkey.prefix, b"hello")
        store.close()

    assert FIGURES["valkey_calls"] == before + 2
    own = Store(ValkeySettings(url=valkey.url))
    assert own.figures is not FIGURES
