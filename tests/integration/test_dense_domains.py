"""A dense domain whose source has lost an event, or does not show it yet."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from cape_stream import App, Batch
from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.roles.crew import Crew
from cape_stream.roles.run import opened
from cape_stream.roles.settings_loading import load_settings
from tests.waiting import eventually


class Stage:
    """An App that runs over a table of SQLite, and what its handler was given."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.sqlite"
        with closing(sqlite3.connect(self.path)) as database:
            database.execute(
                "CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT,"
                " subject TEXT, sequence INTEGER, payload BLOB, UNIQUE (subject, sequence))"
            )
        self.found: list[tuple[str, int]] = []
        self.app = App("dense", partitions=2)
        source = SqlEventSource(f"sqlite:///{self.path}", changed="id")
        domain = self.app.domain("orders", source=source, dense=True)

        @domain.topology("ledger", ordering="ordered").handler()
        def take(batch: Batch) -> None:
            self.found += [(batch.subject, event.sequence) for event in batch]

    def add(self, subject: str, *sequences: int) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.executemany(
                "INSERT INTO events (subject, sequence, payload) VALUES (?, ?, 'x')",
                [(subject, sequence) for sequence in sequences],
            )

    def has(self, subject: str, newest: int) -> bool:
        return self.of(subject) == list(range(1, newest + 1))

    def of(self, subject: str) -> list[int]:
        return [sequence for name, sequence in self.found if name == subject]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def crew(stage: Stage, tmp_path: Path) -> Iterator[Crew]:
    given = {"process.data_dir": str(tmp_path / "data"), "refresh.interval_ms": 100}
    with opened(stage.app, load_settings(given, {})) as crew:
        crew.start()
        yield crew


def test_missing_event_is_asked_for_again_and_nothing_after_it_is_handed_out(
    stage: Stage, crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    stage.add("gap", 1, 2, 5, 6)
    stage.add("headless", 3)
    eventually(lambda: stage.of("gap") == [1, 2])
    eventually(lambda: "'gap': sequence id 3 to 4 are missing before 5" in caplog.text)
    eventually(lambda: "'headless': sequence id 0 to 2 are missing before 3" in caplog.text)

    # Whatever comes meanwhile changes nothing: others are served, and the gap is asked for.
    stage.add("gap", 7)
    for number in range(1, 15):
        stage.add("whole", number)
        eventually(partial(stage.has, "whole", number))
    assert stage.of("gap") == [1, 2]
    assert stage.of("headless") == []

    stage.add("gap", 4, 3)
    stage.add("headless", 0, 1, 2)
    eventually(lambda: stage.of("gap") == [1, 2, 3, 4, 5, 6, 7])
    eventually(lambda: stage.of("headless") == [0, 1, 2, 3])
    assert crew.failure is None
