"""The demo's course: make the table, deliver, prove, tell."""

import json
import os
import sqlite3
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from cape_stream.demos.flights.departures import DEPARTURES_ALL, make_table
from cape_stream.demos.flights.ledger import REPEATED, Ledger
from cape_stream.demos.flights.pace import read_pace
from cape_stream.demos.flights.proof import Verdict, compare
from cape_stream.demos.flights.stage import Stage, staged
from cape_stream.errors import Fatal

LOOK_EVERY_S = 0.1
SAY_EVERY_S = 1.0
STALLED_S = 120.0
"""Without any progress for so long, something is broken."""
EXIT_EQUAL, EXIT_UNEQUAL = 0, 1
VIOLATIONS = ("out of order", "before delays")
"""What the handlers note when an event comes before one that has to be first."""

Say = Callable[[str], None]


def main(arguments: Namespace) -> int:
    """Run the demo; 0 if every topology has every event, in order, with the numbers SQL gives.

    Args:
        arguments: ``events`` (how many, None: all), ``backend``, ``data`` (folder, None: a
            temporary one) and ``json`` (print nothing but the result).

    Raises:
        Fatal: it cannot run here, or got stuck; the message says why.
    """
    if arguments.data is None:
        with TemporaryDirectory(prefix="cape-demo-") as temporary:
            return _play(arguments, Path(temporary))
    folder = Path(arguments.data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise Fatal(f"cannot work in {folder}: {error.strerror}; name another folder") from error
    if not is_empty:
        raise Fatal(f"{folder} is not empty: the demo starts from nothing, name another folder")
    return _play(arguments, folder.resolve())


def _play(arguments: Namespace, folder: Path) -> int:
    say = _silent if arguments.json else _say
    events = min(arguments.events or DEPARTURES_ALL, DEPARTURES_ALL)
    began_s = time.monotonic()
    aircraft = make_table(folder / "departures.sqlite", events)
    loaded_s = time.monotonic() - began_s
    say(f"{events:,} departures of {aircraft:,} aircraft are in SQLite ({loaded_s:.1f} s)")
    os.environ["CAPE_DEMO_DATA"] = str(folder)
    from cape_stream.demos.flights import topologies  # opens the files in the folder just named

    newest = _newest_legs(topologies.DEPARTURES)
    say(f"three topologies on the {arguments.backend} log; every second ping is dropped on purpose")
    with staged(topologies.app, arguments.backend, folder, newest) as stage:
        wall_s = _watch(stage, topologies.ledger, folder, events, say)
        figures = stage.figures()
    verdicts = compare(topologies.DEPARTURES, topologies.LEDGER)
    delivered = topologies.ledger.counts()
    result = _result(arguments.backend, events, wall_s, topologies.ledger, verdicts)
    _tell(result, verdicts, topologies.ledger, figures, say)
    topologies.ledger.close()
    sys.stdout.write(json.dumps(result) + "\n")
    whole = set(delivered.values()) == {events}
    fine = whole and result["sql_equal"] and not result["order_violations"]
    return EXIT_EQUAL if fine else EXIT_UNEQUAL


def _watch(stage: Stage, ledger: Ledger, folder: Path, events: int, say: Say) -> float:
    """Say how far it is, until every topology has every event; how many seconds it took."""
    started_s = said_s = moved_s = time.monotonic()
    said_done = said_jobs = last_done = 0
    while True:
        time.sleep(LOOK_EVERY_S)
        counts = ledger.counts()
        done, now_s = sum(counts.values()), time.monotonic()
        if done != last_done:
            last_done, moved_s = done, now_s
        if all(count >= events for count in counts.values()):
            return now_s - started_s
        if now_s - moved_s > STALLED_S:
            raise Fatal(f"no progress for {STALLED_S:.0f} s: {counts}; {dict(stage.figures())}")
        if now_s - said_s >= SAY_EVERY_S:
            stage.check()
            jobs, p95_ms = read_pace(folder)
            figures, since_s = stage.figures(), now_s - said_s
            say(
                f"{done / (3 * events):4.0%}  {(done - said_done) / since_s:9,.0f} events/s"
                f"  {max(0, jobs - said_jobs) / since_s:7,.0f} jobs/s  p95 {p95_ms:,} ms"
                f"  in flight {figures.get('in_flight', 0):,}"
                f"  parked {figures.get('parked', 0):,}"
            )
            said_s, said_done, said_jobs = now_s, done, jobs


def _result(
    backend: str, events: int, wall_s: float, ledger: Ledger, verdicts: list[Verdict]
) -> dict[str, object]:
    notes = ledger.notes()
    violations = sum(n for (_, what), n in notes.items() if what in VIOLATIONS)
    return {
        "demo": "flights",
        "backend": backend,
        "events": events,
        "delivered": ledger.counts(),
        "order_violations": violations,
        "sql_equal": all(verdict.differences == 0 for verdict in verdicts),
        "events_per_s": round(events / wall_s),
        "wall_s": round(wall_s, 1),
    }


def _tell(
    result: dict[str, object],
    verdicts: list[Verdict],
    ledger: Ledger,
    figures: Mapping[str, int],
    say: Say,
) -> None:
    """The summary for people."""
    counts, notes = ledger.counts(), ledger.notes()
    say("")
    for verdict in verdicts:
        topology = verdict.topology
        proof = "equal to SQL" if not verdict.differences else f"{verdict.differences:,} DIFFERENT"
        repeated = notes.get((topology, REPEATED), 0)
        say(
            f"{topology:<10} {counts[topology]:>8,} delivered, {repeated:,} more than once;"
            f" {verdict.final}: {proof}"
        )
    say(
        f"{result['order_violations']} order violations, {figures.get('jobs_retried', 0):,} jobs"
        f" retried, {figures.get('pings_dropped', 0):,} pings dropped on purpose,"
        f" {result['events_per_s']:,} events/s in {result['wall_s']} s"
    )


def _newest_legs(departures: Path) -> dict[str, int]:
    database = sqlite3.connect(departures)
    rows = database.execute("SELECT tail_number, max(leg) FROM departures GROUP BY 1").fetchall()
    database.close()
    return dict(rows)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _silent(line: str) -> None:
    """Say nothing."""
