"""Subjects that sleep in the table: the engine finds them when they are due, and only then."""

from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.topology import RetrySpec
from cape_stream.runtime.due_index import due_key, names_due
from cape_stream.runtime.loop import Engine
from cape_stream.runtime.settings import EngineSettings
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, NAMES, EngineWorld, processor_of

MINUTE_MS = 60_000
HOURLY = RetrySpec(first_ms=3_600_000, max_ms=3_600_000, floor_ms=3_600_000)


def sleeping(*subjects: str, settings: EngineSettings | None = None) -> tuple[EngineWorld, Engine]:
    """An engine whose subjects failed, to be tried again in an hour, and were stored so."""
    world = EngineWorld(
        topology("T1", retry=HOURLY),
        settings=settings or EngineSettings(sweep_interval_ms=0),
        scheduler=SchedulerSettings(sleep_after_ms=MINUTE_MS),
    )
    engine = world.running()
    for subject in subjects:
        world.publish(subject, 1)
        world.ping(subject, 1)
    world.turn(engine)
    for job in world.jobs():
        world.report(job, failed=[1])
    world.turn(engine)
    assert processor_of(engine).scheduler.active_subjects == 0
    return world, engine


def test_sleeper_is_two_rows_and_no_active_one() -> None:
    world, _ = sleeping("S")
    rows = {record.key: record.value for record in world.records(NAMES.changelog(DOMAIN))}

    live = sorted(key[:1] for key, value in rows.items() if key and value is not None)
    assert live == [b"\x00", b"d", b"p"]


def test_sleeper_comes_back_when_it_is_due_and_leaves_no_row_behind() -> None:
    world, engine = sleeping("S")
    world.pass_ms(59 * MINUTE_MS)
    world.turn(engine)
    assert len(world.jobs()) == 1
    world.pass_ms(MINUTE_MS)
    world.turn(engine)

    assert [job.attempt for job in world.jobs()] == [1, 2]
    world.report(world.jobs()[1])
    world.turn(engine, 12)
    rows = {record.key: record.value for record in world.records(NAMES.changelog(DOMAIN))}
    assert {key for key, value in rows.items() if value is not None} == {b"\x00meta", b"cS"}


def test_sleeper_is_found_by_the_next_owner_in_slices() -> None:
    subjects = [f"S{number}" for number in range(7)]
    world, _ = sleeping(*subjects, settings=EngineSettings(sweep_interval_ms=0, wakes_max=2))
    world.kill()
    successor = world.running()
    assert processor_of(successor).scheduler.active_subjects == 0
    world.pass_ms(60 * MINUTE_MS)
    world.turn(successor, 20)

    assert sorted(job.subject for job in world.jobs() if job.attempt == 2) == subjects


def test_sleeper_whose_rows_land_after_it_was_due_is_found_all_the_same() -> None:
    """The scan that would have found it is over by then, and the next one begins where it ended."""
    world = EngineWorld(
        topology("T1", retry=RetrySpec(first_ms=400, max_ms=400, floor_ms=400)),
        settings=EngineSettings(sweep_interval_ms=0, due_scan_interval_ms=200),
        scheduler=SchedulerSettings(sleep_after_ms=1),
    )
    engine = world.running()
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine)
    world.report(world.jobs()[0], failed=[1])
    world.commits.holds = True
    for _ in range(5):
        world.pass_ms(200)
        world.turn(engine)
    assert len(world.jobs()) == 1
    world.commits.holds = False
    world.commits.release()
    world.pass_ms(200)
    world.turn(engine)

    assert [job.attempt for job in world.jobs()] == [1, 2]


def test_ping_reaches_a_sleeper_in_the_table() -> None:
    world, engine = sleeping("S")
    world.publish("S", 2)
    world.ping("S", 2)
    world.turn(engine)

    assert [(j.attempt, [e.sequence for e in j.events]) for j in world.jobs()] == [
        (1, [1]),
        (1, [2]),
    ]


def test_due_index_ends_at_the_first_row_that_is_not_due() -> None:
    keys = [due_key(b"d", due_ms, b"S%d" % due_ms) for due_ms in (5, 255, 256, 70_000, 2**40)]

    assert list(names_due(iter(keys), b"d", 256)) == [b"S5", b"S255", b"S256"]
    assert sorted(keys) == keys
