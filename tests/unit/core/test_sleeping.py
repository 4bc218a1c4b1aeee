"""Subjects with parked work leave memory, and come back when it is due, asked for, or released."""

from collections.abc import Iterable

import pytest

from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.active_row import NEVER_MS
from cape_stream.model.status import FailureClass
from cape_stream.model.topology import LambdaSpec, Ordering, RetrySpec
from tests.desk import Desk, topology

HOUR_MS = 3_600_000
HOURLY = RetrySpec(first_ms=HOUR_MS, max_ms=HOUR_MS, floor_ms=HOUR_MS)


def failed(*sequences: int, ordering: Ordering = "parallel") -> Desk:
    """These events of S failed for T1, each in a job of its own, and are tried again in an hour."""
    only = LambdaSpec(lambda_id="only", max_batch=1)
    desk = Desk(topology("T1", only, ordering=ordering, retry=HOURLY), topology("T2"))
    desk.publish("S", sequences)
    desk.ping("S", sequences[-1])
    desk.serve()
    for name in desk.names_out("T2"):
        desk.report(name)
    for name in desk.names_out("T1"):
        desk.report(name, failed=[first_of(desk, name)])
    return desk


def first_of(desk: Desk, name: str) -> int:
    return desk.jobs[name].events[0].sequence


def test_subject_with_nothing_but_parked_work_leaves_memory() -> None:
    desk = failed(1, 2)
    desk.commit()

    assert (desk.scheduler.active_subjects, desk.scheduler.parked_events) == (0, 0)
    assert (list(desk.asleep), desk.active) == (["S"], {})
    assert desk.asleep["S"].wake_ms == desk.now_ms + HOUR_MS


def test_subject_that_is_due_soon_stays_in_memory() -> None:
    desk = Desk(topology("T1"), settings=SchedulerSettings(sleep_after_ms=1_001))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    desk.report("J1", failed=[1], retry_after_ms=1_000)

    assert (desk.scheduler.active_subjects, desk.asleep) == (1, {})


@pytest.mark.parametrize("stored", [False, True])
def test_subject_comes_back_when_its_work_is_due(stored: bool) -> None:
    desk = failed(1, 2)
    if stored:
        desk.commit()
    desk.wait(HOUR_MS)

    assert desk.out("T1") == [[1], [2]]
    assert desk.newest().attempt == 2
    for name in desk.names_out():
        desk.report(name)
    desk.commit()
    assert (desk.asleep, desk.active) == ({}, {})
    assert desk.infos["S"].cursors == {"T1": 2, "T2": 2}


@pytest.mark.parametrize("stored", [False, True])
def test_news_of_a_subject_that_sleeps_reach_every_topology_that_may_have_them(
    stored: bool,
) -> None:
    desk = failed(1, ordering="ordered")
    if stored:
        desk.commit()
    desk.publish("S", [2])
    desk.ping("S", 2)
    desk.serve()

    assert (desk.out("T1"), desk.out("T2")) == ([], [[2]])
    desk.report(desk.names_out()[0])
    desk.commit()
    assert list(desk.asleep) == ["S"]
    desk.wait(HOUR_MS)
    assert desk.out("T1") == [[1]]


@pytest.mark.parametrize("stored", [False, True])
def test_ping_that_tells_a_sleeper_nothing_new_does_not_wake_it(stored: bool) -> None:
    desk = failed(1)
    if stored:
        desk.commit()
    desk.ping("S", 1)

    assert desk.scheduler.active_subjects == 0
    assert desk.counters.stale_pings == 1
    assert desk.queries == []


@pytest.mark.parametrize("stored", [False, True])
def test_late_success_of_a_sleeper_counts(stored: bool) -> None:
    desk = failed(1)
    if stored:
        desk.commit()
    first = next(name for name, job in desk.jobs.items() if job.topology == "T1")
    desk.report(first)
    desk.serve()
    desk.commit()

    assert desk.infos["S"].cursors["T1"] == 1
    assert desk.asleep == {}


@pytest.mark.parametrize("clock_step_ms", [0, -24 * HOUR_MS, 24 * HOUR_MS])
def test_sleeper_outlives_its_owner_and_comes_back_in_time_whatever_the_clock(
    clock_step_ms: int,
) -> None:
    desk = failed(1)
    desk.commit()
    desk.crash(clock_step_ms=clock_step_ms)
    desk.wait(HOUR_MS)

    assert desk.counters.jobs_retried >= 1
    assert desk.jobs[list(desk.jobs)[-1]].attempt == 2


def test_sleeper_that_is_woken_twice_is_there_once() -> None:
    desk = failed(1)
    desk.commit()
    desk.now_ms += HOUR_MS
    desk.wake_due()
    desk.wake_due()
    desk.serve()

    assert desk.counters.woken == 1
    assert desk.out("T1") == [[1]]


def test_crowd_that_fails_for_ever_takes_no_memory() -> None:
    """Pain of every comparable system: failing subjects fill what the healthy ones need."""
    desk = Desk(topology("T1", retry=HOURLY), settings=SchedulerSettings(breaker_share=2))
    for number in range(150):
        desk.publish(f"S{number}", [1])
        desk.ping(f"S{number}", 1)
    desk.serve()
    for name in desk.names_out():
        desk.report(name, failed=[1])
    desk.commit()

    assert desk.scheduler.active_subjects == 0
    assert desk.scheduler.next_ms() is None
    assert len(desk.asleep) == 150


# --- quarantine ----------------------------------------------------------------------------------


def quarantining(limits: dict[FailureClass, int], ordering: Ordering = "parallel") -> Desk:
    """Event 1 of S is out for a topology that gives up after so many failures."""
    only = LambdaSpec(lambda_id="only", max_batch=1)
    retry = RetrySpec(first_ms=10, max_ms=10, floor_ms=10)
    spec = topology("T1", only, ordering=ordering, retry=retry, quarantine_after=limits)
    desk = Desk(spec)
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    return desk


def fail(desk: Desk, classes: Iterable[FailureClass]) -> None:
    """Event 1 fails in these ways, one after the other."""
    for failure_class in classes:
        (name,) = [n for n in desk.names_out() if first_of(desk, n) == 1]
        desk.report(name, failed={1: failure_class})
        desk.wait(20)


def test_event_that_failed_too_often_waits_for_a_person() -> None:
    desk = quarantining({FailureClass.PERMANENT: 2})
    fail(desk, [FailureClass.PERMANENT, FailureClass.PERMANENT])
    assert desk.events_out() == [2]
    desk.report(desk.names_out()[0])
    desk.wait(24 * HOUR_MS)

    assert desk.counters.quarantined_events == 1
    assert desk.events_out() == []
    assert desk.asleep["S"].wake_ms == NEVER_MS
    (row,) = desk.asleep["S"].lambdas
    assert (row.cursor, row.done, row.parked[0].sequence) == (-1, [2], 1)
    assert (row.parked[0].attempts, row.parked[0].failure_class) == (2, "permanent")


def test_classes_that_are_not_named_are_tried_for_ever() -> None:
    desk = quarantining({FailureClass.PERMANENT: 1})
    fail(desk, [FailureClass.TRANSIENT] * 30)

    assert desk.counters.quarantined_events == 0
    assert 1 in desk.events_out()


def test_the_class_of_the_last_failure_decides_over_all_attempts() -> None:
    desk = quarantining({FailureClass.BUG: 3})
    fail(desk, [FailureClass.TRANSIENT, FailureClass.TRANSIENT, FailureClass.BUG])

    assert desk.counters.quarantined_events == 1


def test_quarantine_in_an_ordered_topology_holds_what_follows() -> None:
    desk = quarantining({FailureClass.INVALID: 1}, ordering="ordered")
    fail(desk, [FailureClass.INVALID])
    desk.wait(24 * HOUR_MS)

    assert desk.events_out() == []
    assert desk.cursor("S", "T1") == -1


def test_quarantine_survives_a_restart_and_a_clock_that_goes_back() -> None:
    desk = quarantining({FailureClass.INVALID: 1}, ordering="ordered")
    fail(desk, [FailureClass.INVALID])
    desk.commit()
    desk.crash(clock_step_ms=-HOUR_MS)
    desk.wait(24 * HOUR_MS)

    assert desk.events_out() == []
    assert list(desk.asleep) == ["S"]
