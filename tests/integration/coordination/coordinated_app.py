"""An App whose handlers coordinate: they read a cache, hold a lock, keep to a limit, and report.

It loses nothing when the server is flushed, frozen or gone, for what it stands on is the source.
"""

import os
from contextlib import ExitStack
from pathlib import Path

from cape_stream import App, Batch
from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.coordination.audit_tail import AuditTail
from cape_stream.coordination.cache import Cache, CacheSettings
from cape_stream.coordination.codecs import JsonCodec
from cape_stream.coordination.limits import Limits, LimitSettings
from cape_stream.coordination.listener import Listener
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.errors import Fenced, Retry

FOLDER = Path(os.environ.get("RUN_APP_FOLDER", "."))
URL = os.environ.get("COORDINATED_APP_URL", "valkey://127.0.0.1:1/0")

app = App("coordinated", partitions=2)
orders = app.domain(
    "orders",
    source=SqlEventSource(
        f"sqlite:///{FOLDER / 'events.sqlite'}",
        table="events",
        subject="subject",
        sequence="sequence",
        payload="payload",
        changed="id",
    ),
)
ledger = orders.topology("ledger", ordering="ordered")

store = Store(ValkeySettings(url=URL, prefix="app", call_timeout_ms=100, connect_timeout_ms=100))
locks = Locks(store)
tail = AuditTail(store)
limits = Limits(store, LimitSettings(lease_ms=2_000, fallback_slots=4))
prices: Cache[int] = Cache(store, CacheSettings("prices", 1, 200), JsonCodec(), Listener(store))


@ledger.handler(max_batch=5)
def book(batch: Batch) -> None:
    """Keep what arrives; coordinated if there is somebody to coordinate with."""
    assert prices.get(batch.subject, lambda: 7, [batch.subject]) == 7
    with ExitStack() as stack:
        stack.enter_context(limits("ledger", 20_000))
        lease = None
        try:
            lease = locks.acquire(batch.subject, wait_ms=100, ttl_ms=2_000)
        except Retry:
            store.figures.add("uncoordinated")
        _append(batch)
        if lease is not None and not lease.release():
            store.figures.add("lost")
    tail.append("w1", {"subject": batch.subject})
    try:
        prices.invalidate(batch.subject)
    except (Retry, Fenced):
        store.figures.add("uncoordinated")


def _append(batch: Batch) -> None:
    file = os.open(FOLDER / "ledger.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for event in batch:
            line = f"{batch.subject} {event.sequence} {batch.attempt} {batch.job_id}\n"
            os.write(file, line.encode())
    finally:
        os.close(file)
