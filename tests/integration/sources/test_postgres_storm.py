"""Writers that interleave at random on a real PostgreSQL, and readers that must miss nothing.

A reader follows each subject as a dispatcher does: from its cursor on, cursor to the last event of
the page. A row it skipped is lost for ever. The transactions are of every bad kind: they get their
transaction id early or late, draw ids before they insert, use savepoints, roll back, dawdle.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.model.request import EventPage, EventQuery

pytestmark = pytest.mark.postgres

SUBJECTS = [f"S{number}" for number in range(4)]
WRITERS = 6
TRANSACTIONS_PER_WRITER = 60
CALM_S = 30
"""How long readers may take to see the rest once the storm is over; they need a moment."""


def transact(connection: psycopg.Connection, chance: random.Random) -> None:
    """One transaction with one to three rows, and detours."""
    if chance.random() < 0.4:
        connection.execute("SELECT pg_current_xact_id()")
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.3:
            time.sleep(chance.random() * 0.01)
        subject = chance.choice(SUBJECTS)
        savepoint = chance.random() < 0.3
        if savepoint:
            connection.execute("SAVEPOINT here")
        if chance.random() < 0.3:
            connection.execute("SELECT nextval('storm_id_seq')")
        connection.execute("INSERT INTO storm (subject) VALUES (%s)", (subject,))
        if savepoint:
            connection.execute(chance.choice(["RELEASE here", "ROLLBACK TO here"]))
    if chance.random() < 0.15:
        connection.rollback()
    else:
        connection.commit()


def write(url: str, seed: int) -> None:
    chance = random.Random(seed)
    with psycopg.connect(url) as connection:
        for _ in range(TRANSACTIONS_PER_WRITER):
            transact(connection, chance)


class Follower:
    """Follows all subjects, each from its cursor on."""

    def __init__(self, source: SqlEventSource) -> None:
        self.source = source
        self.seen: dict[str, list[int]] = {subject: [] for subject in SUBJECTS}
        self.faults = 0

    def step(self) -> None:
        queries = [
            EventQuery(subject, seen[-1] + 1 if seen else 0, 50)
            for subject, seen in self.seen.items()
        ]
        for answer in self.source.fetch_many(queries):
            if isinstance(answer, EventPage):
                numbers = [event.sequence for event in answer.events]
                self.seen[answer.query.subject] += numbers
            else:
                self.faults += 1


class Sweeper:
    """Sweeps along the column of the ids, one row a call, so that it sees each one passed."""

    def __init__(self, source: SqlEventSource) -> None:
        self.source = source
        self.watermark: str | None = None
        self.seen: dict[str, list[int]] = {subject: [] for subject in SUBJECTS}

    def step(self) -> None:
        changes = self.source.changed_since(self.watermark, 1)
        for subject, sequence in changes.subjects:
            self.seen[subject].append(sequence)
        self.watermark = changes.watermark


@pytest.fixture
def storm(postgres_url: str) -> Iterator[str]:
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(
            "CREATE TABLE storm (id BIGSERIAL PRIMARY KEY, subject TEXT NOT NULL, "
            "payload TEXT NOT NULL DEFAULT '')"
        )
        owner.execute("CREATE UNIQUE INDEX ON storm (subject, id)")
        yield postgres_url
        owner.execute("DROP TABLE storm")


def truth(url: str) -> dict[str, list[int]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT subject, id FROM storm ORDER BY id").fetchall()
    return {subject: [n for each, n in rows if each == subject] for subject in SUBJECTS}


def follow(step: Callable[[], None], stop: threading.Event, errors: list[BaseException]) -> None:
    try:
        while not stop.is_set():
            step()
    except BaseException as error:  # shown by the test that waits for the thread
        errors.append(error)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.timeout(120)
def test_readers_miss_nothing_in_a_storm_of_transactions(storm: str, seed: int) -> None:
    """Every committed row reaches every follower, in order and once; the sweep passes none."""
    sources = [
        SqlEventSource(storm, table="storm", sequence="id", changed="id", settle_wait_ms=wait_ms)
        for wait_ms in (0, 20, 20)
    ]
    followers = [Follower(source) for source in sources[:2]]
    sweeper = Sweeper(sources[2])
    stop, errors = threading.Event(), list[BaseException]()
    steps = [follower.step for follower in followers] + [sweeper.step]
    readers = [threading.Thread(target=follow, args=(step, stop, errors)) for step in steps]
    writers = [
        threading.Thread(target=write, args=(storm, 1_000 * seed + number))
        for number in range(WRITERS)
    ]

    for thread in [*readers, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    expected = truth(storm)
    total = sum(map(len, expected.values()))
    readers_seen = [follower.seen for follower in followers] + [sweeper.seen]
    until_s = time.monotonic() + CALM_S
    while time.monotonic() < until_s and not errors:
        if all(sum(map(len, seen.values())) >= total for seen in readers_seen):
            break
        time.sleep(0.05)
    stop.set()
    for thread in readers:
        thread.join()
    for source in sources:
        source.close()

    assert errors == []
    assert total > WRITERS * TRANSACTIONS_PER_WRITER
    assert readers_seen == [expected, expected, expected]
