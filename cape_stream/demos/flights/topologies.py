"""What a user of cape_stream writes: a domain, three topologies, and their handlers.

delays     ordered: running delay statistics per aircraft
rotations  ordered, after delays: one lambda reads the times of a leg; the next, fed by its
           output, computes how long the aircraft stood on the ground before it
alerts     parallel, in batches: which legs were cancelled or two hours late; 1 event in 500
           fails on its first two attempts
"""

import os
import sqlite3
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from zlib import crc32

from cape_stream import App, Batch, EventResult, RetrySpec
from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.demos.flights.ledger import Ledger
from cape_stream.demos.flights.pace import Pace

FOLDER = Path(os.environ.get("CAPE_DEMO_DATA", "."))
DEPARTURES = FOLDER / "departures.sqlite"
LEDGER = FOLDER / "ledger.sqlite"
PARTITIONS = 8
FAILING_SHARE = 500
FAILING_ATTEMPTS = 2
ALARMING_MINUTES = 120
DAY_MINUTES = 24 * 60

ledger = Ledger(LEDGER)
pace = Pace(FOLDER)

app = App("flights-demo", partitions=PARTITIONS)
flights = app.domain(
    "flights",
    source=SqlEventSource(
        f"sqlite:///{DEPARTURES}",
        table="departures",
        subject="tail_number",
        sequence="leg",
        payload="payload",
        changed="id",
    ),
)
quick_retry = RetrySpec(first_ms=200, max_ms=5_000)

delays = flights.topology("delays", ordering="ordered", retry=quick_retry)


@delays.handler(timeout=timedelta(seconds=60))
def statistics(batch: Batch) -> None:
    """Add each leg to the aircraft's running totals; needs them in order."""
    first = batch.events[0].sequence
    with ledger.writing() as database:
        last = database.execute(
            "SELECT leg, flown, cancelled, late_sum FROM delays WHERE tail_number = ?"
            " AND leg < ? ORDER BY leg DESC LIMIT 1",
            (batch.subject, first),
        ).fetchone()
        leg, flown, cancelled, late_sum = last or (-1, 0, 0, 0)
        if leg != first - 1:
            ledger.note(database, "delays", "out of order", 1)
        rows = []
        for event in batch:
            delay = event.json()["dep_delay"]
            if delay == "NA":
                cancelled += 1
            else:
                flown += 1
                late_sum += int(float(delay))
            rows.append((batch.subject, event.sequence, flown, cancelled, late_sum))
        ledger.store(database, "delays", rows)
    pace.job(batch)


rotations = flights.topology("rotations", ordering="ordered", after=[delays], retry=quick_retry)


@rotations.handler(timeout=timedelta(seconds=60))
def times(batch: Batch) -> Iterator[EventResult]:
    """Minutes since the beginning of our era at which each leg departed and arrived."""
    for event in batch:
        flight = event.json()
        day = date(int(flight["year"]), int(flight["month"]), int(flight["day"]))
        departed = _minutes(day, flight["dep_time"])
        arrived = _minutes(day, flight["arr_time"])
        if departed is not None and arrived is not None and arrived < departed:
            arrived += DAY_MINUTES
        yield event.done(output=[departed, arrived])
    pace.job(batch)


@rotations.handler(inputs=times, timeout=timedelta(seconds=60))
def turn_rounds(batch: Batch) -> None:
    """Minutes between the arrival of the leg before and the departure of this one."""
    first = batch.events[0].sequence
    with ledger.writing() as database:
        leg, arrived_before = database.execute(
            "SELECT leg, arrived FROM rotations WHERE tail_number = ? AND leg < ?"
            " ORDER BY leg DESC LIMIT 1",
            (batch.subject, first),
        ).fetchone() or (-1, None)
        if leg != first - 1:
            ledger.note(database, "rotations", "out of order", 1)
        if not _delays_have(database, batch):
            ledger.note(database, "rotations", "before delays", 1)
        rows = []
        for event in batch:
            departed, arrived = event.input
            known = departed is not None and arrived_before is not None
            turn_round = departed - arrived_before if known else None
            rows.append((batch.subject, event.sequence, departed, arrived, turn_round))
            arrived_before = arrived
        ledger.store(database, "rotations", rows)
    pace.job(batch)


alerts = flights.topology("alerts", retry=quick_retry)


@alerts.handler(max_batch=20, timeout=timedelta(seconds=60))
def alarming(batch: Batch) -> Iterator[EventResult]:
    """Mark legs that were cancelled or very late."""
    rows = []
    results = []
    for event in batch:
        if _fails(batch, event.sequence):
            results.append(event.fail("transient", "fails on its first two attempts, on purpose"))
            continue
        delay = event.json()["dep_delay"]
        alarm = delay == "NA" or float(delay) >= ALARMING_MINUTES
        rows.append((batch.subject, event.sequence, int(alarm)))
        results.append(event.done())
    with ledger.writing() as database:
        ledger.store(database, "alerts", rows)
    pace.job(batch)
    yield from results


def _fails(batch: Batch, sequence: int) -> bool:
    chosen = crc32(f"{batch.subject}/{sequence}".encode()) % FAILING_SHARE == 0
    return chosen and batch.attempt <= FAILING_ATTEMPTS


def _minutes(day: date, hhmm: str) -> int | None:
    if hhmm == "NA":
        return None
    time = int(float(hhmm))
    return day.toordinal() * DAY_MINUTES + time // 100 * 60 + time % 100


def _delays_have(database: sqlite3.Connection, batch: Batch) -> bool:
    """True if the topology before this one has done all of the batch."""
    (count,) = database.execute(
        "SELECT count(*) FROM delays WHERE tail_number = ? AND leg BETWEEN ? AND ?",
        (batch.subject, batch.events[0].sequence, batch.events[-1].sequence),
    ).fetchone()
    return bool(count == len(batch))
