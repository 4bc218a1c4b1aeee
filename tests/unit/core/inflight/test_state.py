from cape_stream.core.breaker import BreakerSettings
from cape_stream.core.inflight.lambda_state import JobRecord, Parked
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import compile_plan
from cape_stream.core.valves import valves_of
from cape_stream.model.topology import DomainSpec
from tests.desk import topology


def inflight_of_one() -> InflightState:
    plan = compile_plan(DomainSpec(name="D", topologies=(topology("T1"),)))
    return InflightState(valves_of(plan, BreakerSettings(), 1))


def active(inflight: InflightState, name: str = "S") -> SubjectState:
    subject = SubjectState(name, [-1], -1)
    inflight.subjects[name] = subject
    return subject


def test_inflight_registers_and_releases_in_all_three_places() -> None:
    inflight = inflight_of_one()
    subject = active(inflight)
    record = JobRecord("J1", subject, 0, [1], 1, 0, 1_000, 500)

    inflight.register(subject.lambdas[0], record)
    assert inflight.jobs == {"J1": record}
    assert subject.lambdas[0].jobs == [record]
    assert inflight.next_ms() is not None
    assert (subject.open_jobs, subject in inflight.dirty) == (1, True)

    inflight.dirty.clear()
    inflight.release(subject.lambdas[0], record)
    assert (inflight.jobs, subject.lambdas[0].jobs, inflight.next_ms()) == ({}, [], None)
    assert (subject.open_jobs, subject in inflight.dirty) == (0, True)


def test_inflight_wakes_a_subject_once_when_its_parked_events_are_due() -> None:
    inflight = inflight_of_one()
    subject = active(inflight)
    for sequence, due_ms in ((1, 100), (2, 90), (3, 200)):
        inflight.park(subject, subject.lambdas[0], sequence, Parked(1, 1, due_ms))

    assert subject.parked == 3
    assert inflight.next_ms() == 90
    assert inflight.wakes.take(89) == []
    assert inflight.wakes.take(100) == [subject]
    inflight.wake_at(subject, subject.next_due_ms(100))
    assert inflight.next_ms() == 200


def test_inflight_does_not_wake_a_subject_that_has_ended_or_began_anew() -> None:
    inflight = inflight_of_one()
    old = active(inflight)
    inflight.wake_at(old, 100)
    inflight.retire(old)
    active(inflight)

    assert inflight.wakes.take(100) == []


def test_inflight_wakes_in_the_order_of_the_due_times() -> None:
    inflight = inflight_of_one()
    late, early = active(inflight, "late"), active(inflight, "early")
    inflight.wake_at(late, 100)
    inflight.wake_at(early, 50)

    assert inflight.wakes.take(100) == [early, late]


def test_inflight_is_due_at_the_sooner_of_expiry_and_wake() -> None:
    inflight = inflight_of_one()
    subject = active(inflight)
    record = JobRecord("J1", subject, 0, [1], 1, 0, 10_000, 0)
    inflight.register(subject.lambdas[0], record)
    inflight.wake_at(subject, 50)

    assert inflight.next_ms() == 50
    inflight.wakes.take(50)
    inflight.wake_at(subject, 1_000_000)
    due_ms = inflight.next_ms()
    assert due_ms is not None
    assert 10_000 <= due_ms < 11_000


def test_inflight_unparks() -> None:
    inflight = inflight_of_one()
    subject = active(inflight)
    parked = Parked(1, 1, 100)
    inflight.park(subject, subject.lambdas[0], 1, parked)

    assert inflight.unpark(subject, subject.lambdas[0], 1) is parked
    assert (subject.parked, subject.lambdas[0].parked) == (0, {})


def test_inflight_remembers_ended_subjects_until_they_are_stored() -> None:
    inflight = inflight_of_one()
    subject = active(inflight)
    inflight.dirty[subject] = None
    inflight.retire(subject)

    assert inflight.subjects == {}
    assert inflight.dirty == {}
    assert inflight.finished == {"S": subject}
