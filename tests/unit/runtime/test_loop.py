"""The engine as a whole, one turn at a time, on a plain simulated log."""

import pytest

from cape_stream.adapters.simulated import BrokerSettings, Disk, Faults, SimLog
from cape_stream.errors import Fatal, Fenced
from cape_stream.model.event import Event
from cape_stream.model.status import FailureClass, StatusKind
from cape_stream.model.subject import partition_of
from cape_stream.model.topology import LambdaSpec
from cape_stream.ports.log import TopicSpec
from cape_stream.runtime.loop import check_partitions
from cape_stream.runtime.recovery import META_KEY
from cape_stream.runtime.settings import EngineSettings
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


# --- one ping's life -----------------------------------------------------------------------------


def test_engine_delivers_a_ping_to_its_stored_cursor() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1, 2)
    world.ping("S", 2)
    world.turn(engine)
    (job,) = world.jobs()
    assert [event.payload for event in job.events] == [b"e1", b"e2"]
    world.report(job)
    world.turn(engine)

    stored = world.stored("S")
    assert stored is not None
    assert stored.cursors == {"T1": 2}
    assert world.committed(PINGS) == 1
    assert world.committed(STATUSES) == 1


def test_engine_sends_jobs_before_it_stores_them() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.commits.holds = True
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine)

    assert world.batches() == [("S", [1])]
    assert world.committed(PINGS) == 0


def test_subject_that_begins_and_ends_within_one_commit_costs_one_changelog_record() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.commits.holds = True
    world.ping("before", 1)
    world.turn(engine, 6)
    assert world.commits.waiting
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine, 4, 0)
    world.report(world.jobs()[0])
    world.turn(engine, 2, 0)
    world.commits.holds = False
    world.commits.release()
    world.turn(engine, 12)

    keys = [record.key for record in world.records(CHANGELOG)]
    assert [key for key in keys if key in (b"aS", b"cS")] == [b"cS"]


def test_engine_expires_jobs_by_the_clock() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine)
    world.turn(engine, 40, 1_000)

    assert [job.attempt for job in world.jobs()][:2] == [1, 2]
    assert processor_of(engine).counters()["timeouts"] >= 1


def test_engine_takes_handed_back_jobs_up_at_once() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine)
    world.report(world.jobs()[0], kind=StatusKind.HANDED_BACK)
    world.turn(engine, 2, 0)

    assert [job.attempt for job in world.jobs()] == [1, 2]


def test_engine_works_for_all_partitions_and_sends_misplaced_pings_on() -> None:
    world = EngineWorld(topology("T1"), partitions=4)
    engine = world.running()
    for number in range(20):
        world.publish(f"S{number}", 1)
        world.ping(f"S{number}", 1, partition=0)
    world.turn(engine, 20)

    assert sorted(job.subject for job in world.jobs()) == sorted(f"S{n}" for n in range(20))
    assert all(job.partition == partition_of(job.subject.encode(), 4) for job in world.jobs())


# --- start and refusals --------------------------------------------------------------------------


def test_engine_refuses_partition_counts_that_differ_naming_both() -> None:
    """B73: pings have 6, the changelog 4."""
    log = SimLog()
    counts = {PINGS: 6, STATUSES: 6, CHANGELOG: 4, JOBS: 6, f"{JOBS}.backlog": 6}
    counts[NAMES.operations(DOMAIN)] = 6
    for name, partitions in counts.items():
        log.create_topics([TopicSpec(name=name, partitions=partitions, config={})])
    group = EngineWorld(topology("T1")).group()

    with pytest.raises(Fatal) as caught:
        check_partitions(log, [group])
    assert f"{PINGS} has 6" in caught.value.reason
    assert f"{CHANGELOG} has 4" in caught.value.reason


def test_engine_refuses_to_start_without_its_topics_and_says_how_to_make_them() -> None:
    group = EngineWorld(topology("T1")).group()

    with pytest.raises(Fatal, match=f"topics do not exist: {STATUSES}.*cape topics apply"):
        check_partitions(SimLog(), [group])


def test_engine_refuses_a_state_folder_in_use() -> None:
    """B11: the one that holds it is not disturbed; a dead one does not hold it."""
    world = EngineWorld(topology("T1"))
    engine = world.running()
    holder = world.process

    with pytest.raises(Fatal, match="state folder state is in use"):
        world.start()
    world.process = holder
    delivered(world, engine, "S", 1)
    assert world.stored("S") is not None
    world.kill()
    assert world.running() is not engine


# --- the lease -----------------------------------------------------------------------------------


def test_outputs_wait_while_the_proof_is_old_and_leave_with_the_next() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.commits.holds = True
    world.turn(engine, 8)
    session_ms = world.broker.settings.session_timeout_ms
    world.turn(engine, session_ms // 1_000, 1_000)
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine, 4, 0)
    assert world.jobs() == []
    assert len(task_of(engine).outbox) == 1
    world.commits.holds = False
    world.commits.release()
    world.turn(engine, 10)

    assert world.batches() == [("S", [1])]
    assert not task_of(engine).outbox


def test_engine_that_was_stopped_publishes_nothing_it_no_longer_may() -> None:
    """B13: somebody else owns the partition when it wakes."""
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1)
    world.ping("S", 1)
    sleeper = world.process
    world.pass_ms(world.broker.settings.session_timeout_ms + 1)
    other = world.start(disk=Disk("other"))
    world.turn(other, 20)
    assert world.batches() == [("S", [1])]
    world.report(world.jobs()[0])
    world.turn(other)
    before = len(world.records(CHANGELOG))
    world.process = sleeper
    world.turn(engine, 3)

    assert world.batches() == [("S", [1])]
    assert [r for r in world.records(CHANGELOG)[before:] if r.key != META_KEY] == []


def test_outputs_leave_in_the_order_in_which_they_had_to_wait() -> None:
    settings = EngineSettings(sweep_interval_ms=0, source_batch_max=1)
    world = EngineWorld(topology("T1"), settings=settings)
    engine = world.running()
    world.commits.holds = world.sources.holds = True
    for subject in ("B", "A"):
        world.publish(subject, 1)
        world.ping(subject, 1)
    world.turn(engine, 8, 500)
    for answer in world.sources.waiting:
        answer.run()
        world.turn(engine, 1, 0)
    assert [write.key for write in task_of(engine).outbox] == [b"B", b"A"]
    world.commits.holds = False
    world.commits.release()
    world.turn(engine, 10)

    assert [record.key for record in world.records(JOBS)] == [b"B", b"A"]


def test_idle_task_renews_its_proof() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    proofs = []
    for _ in range(10):
        world.turn(engine, 5, 250)
        proofs.append(task_of(engine).proof_ms)

    assert len(set(proofs)) >= 5
    assert engine._pipeline.counters.failed == 0


# --- commits -------------------------------------------------------------------------------------


def test_engine_goes_on_when_commits_fail_and_stores_all_in_the_end() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.faults = Faults(commit_abort=1.0)
    delivered(world, engine, "A", 1)
    delivered(world, engine, "B", 1)
    assert world.stored("A") is None
    world.faults = Faults()
    world.turn(engine, 12)

    assert world.stored("A") is not None
    assert world.stored("B") is not None


def test_engine_reads_its_own_rows_while_their_commit_is_on_its_way() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine)
    world.report(world.jobs()[0])
    world.commits.holds = True
    world.turn(engine, 12)
    assert not processor_of(engine).scheduler.holds("S")
    world.publish("S", 2)
    world.ping("S", 2)
    world.turn(engine)

    assert world.batches() == [("S", [1]), ("S", [2])]


def test_engine_leaves_in_good_order_with_its_last_state_stored() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1, 2)
    world.ping("S", 2)
    world.turn(engine, 3, 0)
    world.report(world.jobs()[0])
    world.turn(engine, 1, 0)
    assert world.stored("S") is None
    engine.close()

    stored = world.stored("S")
    assert stored is not None
    assert stored.cursors == {"T1": 2}
    assert engine.assignment.tasks == {}


def test_engine_works_on_and_commits_nothing_while_it_has_no_membership_to_prove(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Kafka member that was put out has none until it has joined again."""

    def refuse() -> None:
        raise Fenced("not joined")

    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.turn(engine)
    with monkeypatch.context() as patch:
        patch.setattr(engine._member, "ownership", refuse)
        delivered(world, engine, "S", 1)
        world.turn(engine)
        assert world.stored("S") is None
        assert engine._pipeline.counters.fenced >= 1
    world.turn(engine)

    assert world.stored("S") is not None


def test_engine_leaves_in_good_order_without_a_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise Fenced("not joined")

    world = EngineWorld(topology("T1"))
    engine = world.running()
    delivered(world, engine, "S", 1)
    monkeypatch.setattr(engine._member, "ownership", refuse)
    engine.close()

    assert engine.assignment.tasks == {}


def test_engine_closes_when_it_is_told_to_stop() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.start()
    turns = iter(range(30))
    engine.run(lambda: next(turns) == 25)

    assert engine.assignment.tasks == {}
    assert engine.counters.turns == 25


# --- back-pressure -------------------------------------------------------------------------------


def test_full_producer_pauses_all_inputs_and_loses_nothing() -> None:
    """B16: a local queue of 10 and 30 jobs."""
    world = EngineWorld(topology("T1"), broker=BrokerSettings(producer_records_max=10))
    engine = world.running()
    for number in range(30):
        world.publish(f"S{number}", 1)
        world.ping(f"S{number}", 1)
    world.turn(engine, 3, 0)
    assert task_of(engine).outbox
    assert engine._closed_inputs == {PINGS, STATUSES, NAMES.operations(DOMAIN)}
    world.turn(engine, 20)

    assert sorted(job.subject for job in world.jobs()) == sorted(f"S{n}" for n in range(30))
    assert engine._closed_inputs == frozenset()
    assert engine.counters.throttled_turns > 0
    world.ping("S0", 1)
    delivered(world, engine, "after", 1)
    assert world.stored("after") is not None


def test_load_limit_pauses_pings_and_not_statuses() -> None:
    settings = EngineSettings(sweep_interval_ms=0, load_max=10, poll_records_max=5)
    world = EngineWorld(topology("T1"), settings=settings)
    engine = world.running()
    for number in range(40):
        world.publish(f"S{number}", 1)
        world.ping(f"S{number}", 1)
    world.turn(engine, 20)
    assert engine._closed_inputs == {PINGS}
    assert len(world.jobs()) < 15
    reported = 0
    for _ in range(100):
        for job in world.jobs()[reported:]:
            world.report(job)
            reported += 1
        world.turn(engine, 2)

    assert reported == 40
    assert engine._closed_inputs == frozenset()
    assert all(world.stored(f"S{number}") is not None for number in range(40))


def test_job_given_up_by_the_client_goes_out_again() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1)
    world.faults = Faults(send_fail=1.0)
    world.ping("S", 1)
    world.turn(engine, 3, 0)
    assert world.jobs() == []
    world.faults = Faults()
    world.turn(engine)

    assert world.batches() == [("S", [1])]
    assert engine.counters.failed_sends >= 1
    world.report(world.jobs()[0])
    world.turn(engine)
    assert world.stored("S") is not None


def test_job_that_the_client_never_takes_waits_and_its_neighbours_do_not() -> None:
    """A log whose record limit is below what a job may have."""
    world = EngineWorld(topology("T1"), broker=BrokerSettings(record_bytes_max=600))
    engine = world.running()
    world.source.publish("large", Event(1, bytes(1_000)))
    world.publish("small", 1)
    world.ping("large", 1)
    world.ping("small", 1)
    world.turn(engine)

    assert world.batches() == [("small", [1])]
    large = processor_of(engine).scheduler.subject("large")
    assert large is not None
    (parked,) = large.lambdas[0].parked.values()
    assert parked.failure_class is FailureClass.INVALID
    assert "over the limit 600" in parked.last_error


def test_poll_that_finds_the_log_away_is_tried_again() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.faults = Faults(poll_retry=1.0)
    world.turn(engine, 3)
    world.faults = Faults()
    delivered(world, engine, "S", 1)

    assert engine.counters.log_absences == 3
    assert world.stored("S") is not None


# --- several domains -----------------------------------------------------------------------------


def test_queues_have_topics_of_their_own() -> None:
    world = EngineWorld(
        topology("T1", LambdaSpec(lambda_id="x", queue="bulk")), topology("T2"), partitions=2
    )
    engine = world.running()
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine)

    assert [job.topology for job in world.jobs("bulk")] == ["T1"]
    assert [job.topology for job in world.jobs("general")] == ["T2"]


def test_two_members_share_the_partitions_and_both_deliver() -> None:
    """B01: partitions move while work is under way, and nobody dies of it."""
    world = EngineWorld(topology("T1"), partitions=4)
    first = world.running()
    for number in range(40):
        world.publish(f"S{number}", 1)
        world.ping(f"S{number}", 1)
    world.turn(first, 2, 0)
    first_process = world.process
    second = world.start(disk=Disk("second"))
    for _ in range(60):
        world.process = first_process
        world.turn(first, 1, 10)
        world.turn(second, 1, 10)
        for job in world.jobs()[:5]:
            world.report(job)

    assert len(first.assignment.tasks) == len(second.assignment.tasks) == 2
    assert sorted(job.subject for job in world.jobs()) == sorted(f"S{n}" for n in range(40))
