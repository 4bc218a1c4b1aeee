import pytest

from cape_stream.model.job import BACKLOG
from cape_stream.ports.log import Record
from cape_stream.runtime.worker_intake import Intake
from tests.unit.runtime.worker_worlds import PARTITIONS, PlainWorld


def open_intake(world: PlainWorld, *, backlog_percent: int = 5, prefetch: int = 100) -> Intake:
    return Intake(world.log, world.names, ("general",), prefetch, backlog_percent)


def join(world: PlainWorld, *members: Intake) -> None:
    """Let the group settle."""
    for _ in range(10):
        world.clock.sleep_ms(1_000)
        for member in members:
            member.fill(0)


def drain(intake: Intake) -> list[Record]:
    taken = []
    while (record := intake.take_now()) is not None:
        taken.append(record)
    return taken


def places(records: list[Record]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


def test_partition_that_leaves_takes_its_waiting_records_along_and_loses_none() -> None:
    world = PlainWorld()
    for _ in range(20):
        world.issue(world.job("delays"))
    first = open_intake(world)
    join(world, first)
    taken = [record for _ in range(4) if (record := first.take_now()) is not None]
    waiting = first.waiting

    second = open_intake(world)
    join(world, first, second)
    left, moved = drain(first), drain(second)

    assert (len(taken), waiting) == (4, 16)
    assert len(left) + len(moved) == 16
    assert {record.partition for record in left}.isdisjoint(record.partition for record in moved)
    expected = [(partition, offset) for partition in range(PARTITIONS) for offset in range(10)]
    assert places(taken + left + moved) == expected


def test_leaving_the_group_commits_what_was_taken_and_leaves_the_rest() -> None:
    world = PlainWorld()
    for _ in range(20):
        world.issue(world.job("delays"))
    first = open_intake(world)
    join(world, first)
    taken = [record for _ in range(7) if (record := first.take_now()) is not None]
    first.stop()
    first.close()

    second = open_intake(world)
    join(world, second)

    assert first.take_now() is None
    assert sum(world.committed()) == 7
    assert len(places(taken + drain(second))) == len(set(places(taken))) + 13


def test_partition_that_was_lost_is_not_committed() -> None:
    world = PlainWorld()
    for _ in range(10):
        world.issue(world.job("delays"))
    intake = open_intake(world)
    join(world, intake)
    intake.take_now()
    world.clock.sleep_ms(60_000)
    other = open_intake(world)
    other.fill(0)
    world.clock.sleep_ms(1_000)
    other.fill(0)
    intake.fill(0)
    intake.commit()

    assert sum(world.committed()) == 0


def lanes_of(world: PlainWorld, records: list[Record]) -> list[str]:
    return [world.names.lane_of(record.topic) for record in records]


@pytest.mark.parametrize(("percent", "of_100"), [(0, 0), (1, 1), (5, 5), (33, 33), (50, 50)])
def test_backlog_has_its_share_while_live_jobs_wait_and_no_more(percent: int, of_100: int) -> None:
    world = PlainWorld()
    for _ in range(100):
        world.issue(world.job("delays"))
        world.issue(world.job("delays"), backlog=True)
    intake = open_intake(world, backlog_percent=percent)
    join(world, intake)
    taken = [record for _ in range(100) if (record := intake.take_now()) is not None]

    assert len(taken) == 100
    assert lanes_of(world, taken).count(BACKLOG) == of_100


def test_backlog_is_owed_nothing_for_the_time_it_was_alone_or_away() -> None:
    world = PlainWorld()
    for _ in range(40):
        world.issue(world.job("delays"), backlog=True)
    intake = open_intake(world, backlog_percent=50)
    join(world, intake)
    alone = [record for _ in range(30) if (record := intake.take_now()) is not None]
    for _ in range(10):
        world.issue(world.job("delays"))
    join(world, intake)
    both = lanes_of(world, drain(intake))

    assert len(alone) == 30
    assert both[:10].count(BACKLOG) == 5
    assert len(both) == 20


def test_backlog_goes_on_where_live_jobs_never_end() -> None:
    world = PlainWorld()
    for _ in range(3):
        world.issue(world.job("delays"), backlog=True)
    intake = open_intake(world, prefetch=10)
    join(world, intake)
    left = 3
    for _ in range(100):
        while intake.waiting < 10 + left:
            world.issue(world.job("delays"))
            intake.fill(0)
        record = intake.take_now()
        assert record is not None
        left -= lanes_of(world, [record]).count(BACKLOG)
        if not left:
            break

    assert left == 0


def test_live_only_taker_leaves_the_backlog_alone_even_when_it_is_due() -> None:
    world = PlainWorld()
    for _ in range(3):
        world.issue(world.job("delays"))
    world.issue(world.job("delays"), backlog=True)
    intake = open_intake(world, backlog_percent=50)
    join(world, intake)
    intake.take_now()
    taken = [intake.take(live_only=True), intake.take(live_only=True)]
    intake.stop()

    assert BACKLOG not in lanes_of(world, [each for each in taken if each is not None])
    assert intake.take(live_only=True) is None
    assert intake.waiting == 1
