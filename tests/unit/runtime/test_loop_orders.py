"""Operators' orders through the loop: each once, whoever dies, with an entry in the audit topic."""

from cape_stream.adapters.simulated import Faults
from cape_stream.model.operation import Outcome, Verb
from cape_stream.runtime.settings import EngineSettings
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, NAMES, EngineWorld

OPERATIONS = NAMES.operations(DOMAIN)


def finished(world: EngineWorld, subject: str, newest: int) -> None:
    """A subject with a row that says that all is done."""
    engine = world.running()
    world.publish(subject, *range(1, newest + 1))
    world.ping(subject, newest)
    world.turn(engine)
    for job in world.jobs():
        world.report(job)
    world.turn(engine, 20)
    world.kill()


def test_order_is_carried_out_and_its_entry_says_who_what_when_and_why() -> None:
    world = EngineWorld(topology("T1"))
    finished(world, "S", 3)
    engine = world.running()

    world.order(Verb.REWIND, "T1", "S", 1, why="the parser was wrong")
    world.turn(engine, 20)

    assert [event.sequence for event in world.jobs()[-1].events] == [2, 3]
    [entry] = world.audit()
    assert (entry.outcome, entry.detail) == (Outcome.APPLIED, "cursor 3 → 1")
    assert (entry.operation.who, entry.operation.why) == ("ann", "the parser was wrong")
    assert entry.operation.issued_ms <= entry.decided_ms <= world.now_ms
    assert entry.partition == 0


def test_order_is_carried_out_once_when_the_process_dies_after_it() -> None:
    world = EngineWorld(topology("T1"))
    finished(world, "S", 3)
    engine = world.running()
    world.order(Verb.REWIND, "T1", "S", 1)
    world.turn(engine, 20)
    world.report(world.jobs()[-1])
    world.turn(engine, 20)
    world.kill()

    world.turn(world.running(), 20)

    assert len(world.audit()) == 1
    assert len(world.jobs()) == 2
    assert world.committed(OPERATIONS) == 1


def test_order_is_carried_out_by_the_next_owner_when_nothing_of_it_was_stored() -> None:
    world = EngineWorld(topology("T1"))
    finished(world, "S", 3)
    engine = world.running()
    world.faults = Faults(commit_abort=1.0)
    world.order(Verb.SKIP, "T1", "S", 3)
    world.order(Verb.REWIND, "T1", "S", 1)
    world.turn(engine, 12)
    assert world.audit() == []
    world.kill()
    world.faults = Faults()

    world.turn(world.running(), 20)

    assert [entry.outcome for entry in world.audit()] == [Outcome.NOTHING, Outcome.APPLIED]
    issued = [(job.epoch, [event.sequence for event in job.events]) for job in world.jobs()[1:]]
    assert [events for _, events in issued] == [[2, 3], [2, 3]]
    assert issued[0][0] < issued[1][0], "the later delivery has the greater fencing token"


def test_order_on_a_foreign_partition_is_sent_to_the_owner_once() -> None:
    world = EngineWorld(topology("T1"), partitions=2)
    finished(world, "S", 3)
    engine = world.running()

    for partition in (0, 1):
        world.order(Verb.BACKFILL, "T1", "S", 2, partition=partition)
    world.turn(engine, 30)

    outcomes = sorted(entry.outcome for entry in world.audit())
    assert outcomes == [Outcome.APPLIED, Outcome.NOTHING]


def test_order_that_is_none_ends_as_a_dead_letter_and_the_next_is_carried_out() -> None:
    world = EngineWorld(topology("T1"))
    finished(world, "S", 3)
    engine = world.running()

    world.put_operation(b"S", b"junk")
    world.put_operation(None, None)
    world.put_operation(b"S", None)
    world.order(Verb.REWIND, "T1", "S", 1)
    world.turn(engine, 20)

    assert [letter.topic for letter in world.letters()] == [OPERATIONS, OPERATIONS]
    assert [entry.outcome for entry in world.audit()] == [Outcome.APPLIED]


def test_pause_holds_across_owners_and_resume_delivers_what_came_meanwhile() -> None:
    world = EngineWorld(topology("T1"), partitions=2)
    engine = world.running()
    world.order(Verb.PAUSE, "T1")
    world.turn(engine, 20)
    world.kill()
    engine = world.running()
    for subject in ("A", "B", "C"):
        world.publish(subject, 1)
        world.ping(subject, 1)
    world.turn(engine, 20)
    assert world.jobs() == []
    world.kill()
    engine = world.running()

    world.order(Verb.RESUME, "T1")
    world.turn(engine, 30)

    assert sorted(job.subject for job in world.jobs()) == ["A", "B", "C"]
    assert [entry.outcome for entry in world.audit()] == [Outcome.APPLIED] * 4


def test_orders_are_read_while_too_much_is_in_memory() -> None:
    world = EngineWorld(topology("T1"), settings=EngineSettings(load_max=1, sweep_interval_ms=0))
    engine = world.running()
    world.publish("A", 1)
    world.ping("A", 1)
    world.turn(engine, 20)
    assert engine.counters.throttled_turns > 0

    world.order(Verb.PAUSE, "T1")
    world.turn(engine, 20)

    assert [entry.detail for entry in world.audit()] == ["paused; 1 jobs are out"]
