"""An App over an outbox: told by notices alone, by refresh alone, pruned behind its slowest."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest

from cape_stream import App, Batch
from cape_stream.adapters.kafka import KafkaLog, KafkaSettings
from cape_stream.adapters.sources.outbox import PostgresOutbox
from cape_stream.roles.crew import Crew
from cape_stream.roles.run import opened
from cape_stream.roles.settings_loading import load_settings
from cape_stream.roles.topics import topic_specs
from tests.integration.sources.asking import Connect, new_name
from tests.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]


class Stage:
    """An App with two topologies over an outbox of its own, and what they were given."""

    def __init__(self, url: str, writer: psycopg.Connection[Any], folder: Path) -> None:
        self.table = new_name("outbox")
        self.outbox = PostgresOutbox(
            url, table=self.table, prune_every=timedelta(milliseconds=100), keep=timedelta(0)
        )
        self.outbox.create()
        self.writer = writer
        self.folder = folder
        self.quick: list[tuple[str, int]] = []
        self.slow: list[tuple[str, int]] = []
        self.open_gate = Event()
        self.app = App(self.table.replace("_", "-"), partitions=2)
        domain = self.app.domain("orders", source=self.outbox)

        @domain.topology("quick").handler()
        def take(batch: Batch) -> None:
            self.quick += [(batch.subject, event.sequence) for event in batch]

        @domain.topology("slow").handler()
        def wait(batch: Batch) -> Any:
            for event in batch:
                if batch.subject == "stuck" and not self.open_gate.is_set():
                    yield event.retry(after=0.2)
                else:
                    self.slow.append((batch.subject, event.sequence))
                    yield event.done()

    def insert(self, *subjects: str) -> None:
        for subject in subjects:
            self.writer.execute(
                f"INSERT INTO {self.table} (subject, payload) VALUES (%s, 'x')", (subject,)
            )

    def rows(self) -> list[tuple[str, int]]:
        return self.writer.execute(
            f"SELECT subject, sequence FROM {self.table} ORDER BY id"
        ).fetchall()

    @contextmanager
    def running(self, refresh_ms: int) -> Iterator[Crew]:
        given = {"process.data_dir": str(self.folder), "refresh.interval_ms": refresh_ms}
        with opened(self.app, load_settings(given, {})) as crew:
            crew.start()
            yield crew
            assert crew.failure is None


@pytest.fixture
def stage(postgres_url: str, connect: Connect, tmp_path: Path) -> Stage:
    return Stage(postgres_url, connect(autocommit=True), tmp_path)


def has(found: list[tuple[str, int]], *wanted: tuple[str, int]) -> Callable[[], bool]:
    return lambda: set(found) >= set(wanted)


def test_rows_are_delivered_when_nothing_but_the_trigger_tells_of_them(stage: Stage) -> None:
    with stage.running(refresh_ms=3_600_000) as crew:
        stage.insert("first")
        # The sweep with which refresh begins may find the first ones, and no later one.
        for number in range(2, 8):
            stage.insert(f"S{number}")
            eventually(has(stage.quick, (f"S{number}", number)))
        eventually(lambda: crew.figures()["outbox_pings"] > 0)


def test_rows_whose_notice_was_lost_are_found_by_refresh(stage: Stage) -> None:
    stage.writer.execute(f"DROP TRIGGER {stage.table}_notify ON {stage.table}")
    with stage.running(refresh_ms=100) as crew:
        for number in range(1, 4):
            stage.insert(f"S{number}")
            eventually(has(stage.slow, (f"S{number}", number)))
        assert crew.figures()["outbox_pings"] == 0


def test_rows_are_pruned_behind_the_slowest_topology(stage: Stage) -> None:
    """What one of them has not done yet stays, whoever else has; it goes when that one has."""
    with stage.running(refresh_ms=100):
        stage.insert("swift", "stuck", "swift", "stuck")
        eventually(has(stage.quick, ("stuck", 2), ("stuck", 4), ("swift", 3)))
        eventually(lambda: ("swift", 3) not in stage.rows())
        assert stage.rows() == [("stuck", 2), ("stuck", 4)]

        stage.open_gate.set()

        eventually(has(stage.slow, ("stuck", 2), ("stuck", 4)))
        eventually(lambda: stage.rows() == [])
        stage.insert("stuck")
        eventually(has(stage.slow, ("stuck", 5)))


@pytest.mark.timeout(240)
def test_rows_are_delivered_and_pruned_by_roles_on_kafka(
    stage: Stage, kafka_bootstrap: str
) -> None:
    """Nobody refreshes there: the outbox role alone tells of the rows."""
    log = KafkaLog(KafkaSettings(bootstrap_servers=kafka_bootstrap))
    log.create_topics(topic_specs(stage.app))
    given = {
        "process.data_dir": str(stage.folder),
        "kafka.bootstrap_servers": kafka_bootstrap,
    }
    roles = ("dispatcher", "worker", "outbox")
    stage.outbox.news(0)  # listens from here on, so that the first row is heard of, too
    with opened(stage.app, load_settings(given, {}), backend_name="kafka", roles=roles) as crew:
        crew.start()
        stage.insert("swift", "stuck")
        eventually(has(stage.quick, ("swift", 1), ("stuck", 2)), 120)
        eventually(lambda: stage.rows() == [("stuck", 2)], 120)
        assert crew.failure is None
