"""Every topology's result against a SQL query over the source's table."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

MINUTES = """
CREATE TEMP VIEW minutes AS
SELECT tail_number, leg, departed,
       CASE WHEN arrived < departed THEN arrived + 1440 ELSE arrived END AS arrived
FROM (
    SELECT tail_number, leg,
           midnight + departed / 100 * 60 + departed % 100 AS departed,
           midnight + arrived / 100 * 60 + arrived % 100 AS arrived
    FROM (
        SELECT *, (julianday(day) - 1721424.5) * 1440 AS midnight FROM source.departures
    )
)
"""
"""1721424.5 is the Julian day before 0001-01-01, the day 1 of Python's calendar."""

WANTED = {
    "delays": """
        CREATE TEMP TABLE wanted AS
        SELECT tail_number, leg,
               count(delay) OVER legs,
               count(*) OVER legs - count(delay) OVER legs,
               coalesce(sum(delay) OVER legs, 0)
        FROM source.departures
        WINDOW legs AS (PARTITION BY tail_number ORDER BY leg)
    """,
    "rotations": """
        CREATE TEMP TABLE wanted AS
        SELECT tail_number, leg, CAST(departed AS INTEGER), CAST(arrived AS INTEGER),
               CAST(departed - lag(arrived) OVER legs AS INTEGER)
        FROM minutes
        WINDOW legs AS (PARTITION BY tail_number ORDER BY leg)
    """,
    "alerts": """
        CREATE TEMP TABLE wanted AS
        SELECT tail_number, leg, delay IS NULL OR delay >= 120
        FROM source.departures
    """,
}
"""What each topology's table has to hold."""

GOT = {
    "delays": "CREATE TEMP VIEW got AS SELECT * FROM delays",
    "rotations": "CREATE TEMP VIEW got AS SELECT * FROM rotations",
    "alerts": "CREATE TEMP VIEW got AS SELECT * FROM alerts",
}

DIFFERENCES = """
SELECT (SELECT count(*) FROM (SELECT * FROM wanted EXCEPT SELECT * FROM got))
     + (SELECT count(*) FROM (SELECT * FROM got EXCEPT SELECT * FROM wanted))
"""

DELAYS_FINAL = """
SELECT sum(flown), sum(cancelled), sum(late_sum) FROM delays AS d
WHERE leg = (SELECT max(leg) FROM delays WHERE tail_number = d.tail_number)
"""

FINAL = {
    "delays": ("{:,} flown, {:,} cancelled, {:,} minutes late in all", DELAYS_FINAL),
    "rotations": (
        "{:,} turn-rounds, {:,} minutes in all",
        "SELECT count(turn_round), sum(turn_round) FROM rotations",
    ),
    "alerts": ("{:,} alarming departures", "SELECT sum(alarming) FROM alerts"),
}
"""A topology's numbers: words, and the query that fills them."""


@dataclass(slots=True, frozen=True)
class Verdict:
    """One topology's result."""

    topology: str
    final: str
    """Its numbers, in words."""
    differences: int
    """Rows that only one side has, or has differently."""


def compare(departures: Path, ledger: Path) -> list[Verdict]:
    """Hold each topology's rows against what SQL makes of the source's table."""
    database = sqlite3.connect(ledger)
    try:
        database.execute("ATTACH DATABASE ? AS source", (str(departures),))
        database.execute(MINUTES)
        return [_verdict(database, topology) for topology in WANTED]
    finally:
        database.close()


def _verdict(database: sqlite3.Connection, topology: str) -> Verdict:
    database.execute(WANTED[topology])
    database.execute(GOT[topology])
    (differences,) = database.execute(DIFFERENCES).fetchone()
    database.execute("DROP TABLE wanted")
    database.execute("DROP VIEW got")
    words, query = FINAL[topology]
    numbers = database.execute(query).fetchone()
    return Verdict(topology, words.format(*(number or 0 for number in numbers)), int(differences))
