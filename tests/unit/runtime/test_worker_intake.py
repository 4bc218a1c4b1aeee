from cape_stream.ports.log import Record
from cape_stream.runtime.worker_intake import Intake
from tests.unit.runtime.worker_worlds import PARTITIONS, PlainWorld


def open_intake(world: PlainWorld) -> Intake:
    return Intake(world.log, world.names, ("general",), prefetch=100)


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
