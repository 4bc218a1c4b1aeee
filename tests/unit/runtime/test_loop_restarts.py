"""Engines that die and come back, or somebody in their place."""

import pytest

from cape_stream.adapters.simulated.partition import Transaction, TransactionState
from cape_stream.errors import Corrupt
from cape_stream.model.job import BACKLOG
from cape_stream.model.subject import partition_of
from cape_stream.ports.log import TopicPartition, Watermarks
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.recovery import META_KEY, TaskMeta
from tests.desk import topology
from tests.unit.runtime.engine_worlds import (
    DOMAIN,
    NAMES,
    EngineWorld,
    delivered,
    processor_of,
    task_of,
)

PINGS, STATUSES = NAMES.pings(DOMAIN), NAMES.statuses(DOMAIN)
JOBS, CHANGELOG = NAMES.jobs("general"), NAMES.changelog(DOMAIN)


def test_successor_executes_nothing_again_after_a_kill_before_any_commit() -> None:
    """B10: the job topic is the log of what was issued."""
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.commits.holds = True
    world.publish("S", 99, 100)
    world.ping("S", 100)
    world.turn(engine)
    world.kill()
    world.commits = type(world.commits)()
    (job,) = world.jobs()
    world.report(job)
    engine = world.running()
    world.turn(engine)
    world.report(job)
    world.turn(engine)

    stored = world.stored("S")
    assert stored is not None
    assert stored.cursors == {"T1": 100}
    assert len(world.jobs()) == 1
    assert processor_of(engine).counters()["repeated_events"] >= 2


def test_successor_adopts_jobs_of_the_backlog_lane_as_well() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.commits.holds = True
    world.publish("S", 99, 100)
    world.ping("S", 100)
    world.turn(engine)
    world.kill()
    world.commits = type(world.commits)()
    (record,) = world.records(JOBS)
    backlog = NAMES.jobs("general", BACKLOG)
    world.broker.delete_records(JOBS, 0, 1)
    world.broker.append(TopicPartition(backlog, 0), record.key, record.value)
    engine = world.running()
    world.turn(engine)

    assert world.jobs() == []
    assert len(world.records(backlog)) == 1
    assert processor_of(engine).load() > 0


def test_successor_takes_over_with_a_greater_epoch() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    assert task_of(engine).epoch == 1
    world.kill()
    engine = world.running()

    assert task_of(engine).epoch == 2
    metas = [r.value for r in world.records(CHANGELOG) if r.key == META_KEY]
    assert [TaskMeta.decode(value).epoch for value in metas] == [1, 2]


def test_successor_waits_for_its_claim_before_it_issues() -> None:
    world = EngineWorld(topology("T1"))
    world.commits.holds = True
    world.publish("S", 1)
    world.ping("S", 1)
    engine = world.start()
    world.turn(engine, 20)
    assert task_of(engine).state is TaskState.CLAIMING
    assert world.jobs() == []
    world.commits.holds = False
    world.commits.release()
    world.turn(engine, 20)

    assert task_of(engine).state is TaskState.RUNNING
    assert world.batches() == [("S", [1])]


def test_successor_reads_statuses_to_their_end_before_any_ping() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine)
    world.kill()
    world.publish("S", 2)
    world.ping("S", 2)
    for _ in range(1_200):
        world.report(world.jobs()[0])
    engine = world.start()
    states: list[TaskState] = []
    for _ in range(30):
        world.turn(engine, 1)
        states += [task.state for task in engine.assignment.tasks.values()]
        if states and states[-1] is TaskState.CATCHING_UP:
            assert len(world.jobs()) == 1

    assert TaskState.CATCHING_UP in states
    assert states[-1] is TaskState.RUNNING
    assert world.batches() == [("S", [1]), ("S", [2])]


def test_successor_catches_up_over_what_is_no_record() -> None:
    """Statuses end with an aborted transaction: nothing to poll, and nothing to wait for."""
    world = EngineWorld(topology("T1"))
    transaction = Transaction()
    to = TopicPartition(STATUSES, 0)
    world.broker.partition(to).append(to, b"S", b"x", 0, transaction)
    group = world.broker.group(NAMES.dispatcher_group)
    world.broker.end(transaction, group, TransactionState.ABORTED)

    engine = world.running()
    delivered(world, engine, "S", 1)
    assert world.stored("S") is not None


def test_restart_replays_only_the_tail_of_the_changelog() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    for number in range(20):
        delivered(world, engine, f"S{number}", 1)
    world.kill()
    engine = world.running()

    assert engine._restorer.rows_replayed == 0
    world.kill()
    world.disk.lose()
    engine = world.running()
    assert engine._restorer.rows_replayed > 20


def test_restart_of_an_emptied_changelog_serves_the_next_ping() -> None:
    """B03: low = high, and nothing local."""
    world = EngineWorld(topology("T1"))
    engine = world.running()
    delivered(world, engine, "S", 1)
    world.kill()
    world.disk.lose()
    world.broker.delete_records(CHANGELOG, 0, world.changelog_end().high)
    engine = world.running()
    delivered(world, engine, "acct-1", 1)

    assert engine._restorer.rows_replayed == 0
    assert world.stored("acct-1") is not None


def test_restart_rebuilds_a_table_the_changelog_no_longer_reaches() -> None:
    """B05: one line, that task alone, no row of the old copy lives on."""
    world = EngineWorld(topology("T1"), partitions=2)
    engine = world.running()
    delivered(world, engine, "S", 1)
    owner = partition_of(b"S", 2)
    world.kill()
    old = world.disk.copy()
    engine = world.running()
    delivered(world, engine, "S", 2, 3)
    world.kill()
    world.disk.put_back(old)
    world.broker.delete_records(CHANGELOG, owner, world.changelog_end(owner).high)
    engine = world.running()

    assert [line.split(":")[0] for line in engine._restorer.repairs] == [f"{DOMAIN}-{owner}"]
    assert list(task_of(engine, owner).table.scan(f"{DOMAIN}-{owner}", b"c")) == []


def test_restart_starts_at_the_earliest_kept_ping_when_the_offset_is_out_of_range() -> None:
    """B08: never at the end; the lost range is known."""
    world = EngineWorld(topology("T1"))
    for number in range(10):
        world.publish(f"S{number}", 1)
        world.ping(f"S{number}", 1)
    world.broker.delete_records(PINGS, 0, 5)
    world.broker.set_committed(NAMES.dispatcher_group, TopicPartition(PINGS, 0), 2)
    engine = world.running()
    world.turn(engine)

    assert sorted(job.subject for job in world.jobs()) == [f"S{n}" for n in range(5, 10)]
    lost = engine.assignment.lost_ranges[TopicPartition(PINGS, 0)]
    assert lost == (2, Watermarks(5, 10))


def test_row_that_became_unreadable_is_rebuilt_from_the_changelog_at_the_next_start() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    delivered(world, engine, "S", 1)
    task = task_of(engine)
    position = task.table.position(task.name)
    assert position is not None
    task.table.write(task.name, {b"cS": b"garbage"}, position)
    world.publish("S", 2)
    world.ping("S", 2)
    with pytest.raises(Corrupt, match="cursor row does not decode"):
        world.turn(engine)
    world.kill()
    world.disk.damage(task.name)
    engine = world.running()
    world.turn(engine)

    assert len(engine._restorer.repairs) == 1
    assert world.batches() == [("S", [1]), ("S", [2])]
