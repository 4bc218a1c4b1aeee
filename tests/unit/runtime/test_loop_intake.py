"""What an engine meets at its sources, in its topics and in its table."""

from collections.abc import Sequence
from typing import Any

import pytest

from cape_stream.adapters.simulated import Faults
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.event import Event
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.ports.source import Changes
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.settings import EngineSettings
from tests.desk import topology
from tests.unit.runtime.engine_worlds import (
    DOMAIN,
    NAMES,
    EngineWorld,
    processor_of,
    task_of,
)

PINGS, STATUSES = NAMES.pings(DOMAIN), NAMES.statuses(DOMAIN)


# --- sources -------------------------------------------------------------------------------------


class BadSource:
    """Fails for one subject, in a way that nobody foresaw."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def fetch_many(self, queries: Sequence[EventQuery]) -> list[EventPage]:
        """See `EventSource.fetch_many`."""
        is_bad = any(query.subject == "bad-1" for query in queries)
        if is_bad and isinstance(self.reply, Exception):
            raise self.reply
        return [
            EventPage(query, self.reply if query.subject == "bad-1" else [Event(1, b"x")])
            for query in queries
        ]

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """Not asked here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free."""


@pytest.mark.parametrize("reply", [TypeError("unexpected"), None, 7, [None], iter([]), [b"x"]])
def test_source_that_fails_for_one_subject_for_ever_delays_nobody_else(reply: object) -> None:
    """B24: 50 others on the same partition are served."""
    world = EngineWorld(topology("T1"), source=BadSource(reply))
    engine = world.running()
    world.ping("bad-1", 1)
    world.turn(engine)
    for number in range(50):
        world.ping(f"S{number}", 1)
        world.ping("bad-1", 1 + number)
    world.turn(engine, 30)

    assert sorted(job.subject for job in world.jobs()) == sorted(f"S{n}" for n in range(50))
    assert processor_of(engine).counters()["query_faults"] >= 3
    assert task_of(engine).state is TaskState.RUNNING


def test_subject_that_its_source_fails_for_is_shown_until_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B24: in health and metrics, in a line now and then, and by name to whoever asks."""
    source = BadSource(TypeError("unexpected"))
    world = EngineWorld(topology("T1"), source=source)
    engine = world.running()
    questions = engine.sources[DOMAIN]
    for number in range(4):
        world.ping("bad-1", 1 + number)
        world.turn(engine)

    assert dict(questions.failing) == {"bad-1": "TypeError: unexpected"}
    said = [each.message for each in caplog.records if "fails for" in each.message]
    assert said == [f"the source of {DOMAIN} fails for 'bad-1': TypeError: unexpected"]
    source.reply = [Event(1, b"x")]
    world.turn(engine, 60, 50)
    assert dict(questions.failing) == {}


def test_source_that_is_down_costs_few_faults_and_brings_everything_when_it_is_back() -> None:
    settings = EngineSettings(sweep_interval_ms=0, source_failing_subjects=4)
    world = EngineWorld(topology("T1"), settings=settings)
    engine = world.running()
    world.source.go_down(60_000)
    for number in range(100):
        world.publish(f"S{number}", 1)
        world.ping(f"S{number}", 1)
    world.turn(engine, 1_190, 50)
    faults = processor_of(engine).counters()["query_faults"]
    assert world.jobs() == []
    world.turn(engine, settings.source_backoff_max_ms // 50 + 20, 50)

    assert 3 <= faults <= 8
    assert sorted(job.subject for job in world.jobs()) == sorted(f"S{n}" for n in range(100))


def test_source_that_hangs_is_given_up_and_asked_again() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1)
    world.sources.holds = True
    world.ping("S", 1)
    world.turn(engine)
    world.turn(engine, 2, world.settings.source_timeout_ms)
    world.sources.holds = False
    world.turn(engine, 20, 50)

    assert world.batches() == [("S", [1])]


def test_answer_for_a_task_that_left_is_dropped() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1)
    world.sources.holds = True
    world.ping("S", 1)
    world.turn(engine)
    engine.close()
    world.sources.release()
    engine._take_answers(world.now_ms)

    assert world.jobs() == []


# --- bad records ---------------------------------------------------------------------------------


def test_bad_records_end_as_dead_letters_and_the_next_is_served() -> None:
    """B25, B30: with where they stood, why, and their bytes unchanged; exactly once."""
    world = EngineWorld(topology("T1"))
    engine = world.running()
    for subject in ("A", "B", "C"):
        world.publish(subject, 1)
    world.ping("A", 1)
    world.put_ping(b"acct-7", b"\x00\x7f\xff\xff\xff\x00")
    world.ping("B", 1)
    world.put_ping(None, None)
    world.put_ping(b"acct-7", None)
    world.put_status(b"S", b"junk")
    world.ping("C", 1)
    world.turn(engine, 20)

    assert sorted(job.subject for job in world.jobs()) == ["A", "B", "C"]
    letters = [(each.topic, each.partition, each.offset, each.value) for each in world.letters()]
    assert sorted(letters, key=str) == sorted(
        [
            (PINGS, 0, 1, b"\x00\x7f\xff\xff\xff\x00"),
            (PINGS, 0, 3, None),
            (STATUSES, 0, 0, b"junk"),
        ],
        key=str,
    )
    assert all(letter.reason for letter in world.letters())
    assert world.committed(PINGS) == 6
    world.kill()
    world.turn(world.running())
    assert len(world.letters()) == 3


def test_dead_letter_waits_for_its_commit() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.faults = Faults(commit_abort=1.0)
    world.put_ping(b"S", b"junk")
    world.turn(engine, 12)
    assert world.letters() == []
    world.faults = Faults()
    world.turn(engine, 12)

    assert len(world.letters()) == 1


# --- sweeps --------------------------------------------------------------------------------------


def sweeping(*, rows: int = 500) -> EngineWorld:
    settings = EngineSettings(sweep_interval_ms=1_000, sweep_rows=rows)
    return EngineWorld(topology("T1"), topology("T2"), settings=settings)


def test_sweep_finds_a_cold_subject_that_lags() -> None:
    world = sweeping(rows=1)
    engine = world.running()
    for number in range(5):
        subject = f"S{number}"
        world.publish(subject, 1)
        world.ping(subject, 1)
    world.turn(engine, 20)
    for job in world.jobs():
        world.report(job)
    world.turn(engine, 20)
    world.kill()
    # The topology is new: every stored subject lags behind for it, and nobody pings.
    world.plan = EngineWorld(topology("T1"), topology("T3")).plan
    engine = world.running()
    world.turn(engine, 100, 50)

    new = [job for job in world.jobs() if job.topology == "T3"]
    assert sorted(job.subject for job in new) == [f"S{n}" for n in range(5)]
    assert processor_of(engine).counters()["swept_subjects"] == 5


def test_sweep_executes_nothing_again_whose_commit_is_on_its_way() -> None:
    world = sweeping()
    engine = world.running()
    world.publish("S", 1, 2)
    world.ping("S", 2)
    world.turn(engine)
    task = task_of(engine)
    old = {b"cS": world.codec.encode_cursors(CursorInfo("S", 2, {"T1": 0, "T2": 0}))}
    position = task.table.position(task.name)
    assert position is not None
    task.table.write(task.name, old, position)
    for job in world.jobs():
        world.report(job)
    world.commits.holds = True
    world.turn(engine, 12)
    assert not processor_of(engine).scheduler.holds("S")
    world.turn(engine, 5, 300)
    world.commits.holds = False
    world.commits.release()
    world.turn(engine, 20)

    assert len(world.jobs()) == 2


def test_sweep_rests_while_inputs_are_closed() -> None:
    world = sweeping()
    engine = world.running()
    engine._closed_inputs = frozenset({PINGS})
    task_of(engine).sweep_due_ms = None
    engine._sweep(task_of(engine), processor_of(engine), world.now_ms)

    assert task_of(engine).sweep_due_ms is None
