"""Limits, lines and lanes: who may have a job now, and who waits for whom."""

from collections import OrderedDict

from cape_stream.core.breaker import BreakerSettings, BreakerState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.core.valves import (
    LINE_MAX,
    QUEUE_FIRST,
    QUEUE_LEAST,
    QueueGate,
    TopologyGate,
    valves_of,
)
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.job import BACKLOG, LIVE
from cape_stream.model.topology import LambdaSpec, RetrySpec, TopologySpec
from tests.desk import Desk, topology

SINGLE = LambdaSpec(lambda_id="only", max_batch=1)


def limited(
    name: str, in_flight_max: int | None = None, per_s: float | None = None
) -> TopologySpec:
    return TopologySpec(
        name=name, lambdas=(SINGLE,), in_flight_max=in_flight_max, jobs_per_s_max=per_s
    )


def pinged(desk: Desk, *subjects: str, events: int = 1) -> None:
    for subject in subjects:
        desk.publish(subject, range(1, events + 1))
        desk.ping(subject, events)
    desk.serve()


def subjects_out(desk: Desk) -> list[str]:
    return [desk.jobs[name].subject for name in desk.names_out()]


# --- topologies ----------------------------------------------------------------------------------


def test_topology_has_no_more_jobs_out_than_it_may_and_the_others_wait_in_line() -> None:
    desk = Desk(limited("T1", in_flight_max=2), limited("T2"))
    pinged(desk, "A", "B", "C", "D")

    assert [desk.jobs[n].subject for n in desk.names_out("T1")] == ["A", "B"]
    assert len(desk.names_out("T2")) == 4
    desk.report(desk.names_out("T1")[0])
    assert [desk.jobs[n].subject for n in desk.names_out("T1")] == ["B", "C"]


def test_limit_is_shared_among_the_partitions_and_never_less_than_one() -> None:
    plan = Desk(limited("T1", in_flight_max=10)).plan
    limits = [valves_of(plan, BreakerSettings(), n)[0].topology.limit for n in (1, 4, 10, 50)]

    assert limits == [10, 3, 1, 1]


def test_newcomers_stand_behind_those_who_wait() -> None:
    """A subject that reports does not take the place it has just made free."""
    desk = Desk(limited("T1", in_flight_max=2))
    pinged(desk, "hot", events=10)
    pinged(desk, "A", "B")
    for _ in range(6):
        desk.report(desk.names_out()[0])
        desk.serve()

    finished = [desk.jobs[f"J{number}"].subject for number in range(1, 7)]
    assert {"A", "B"} <= set(finished[:5])


def test_hot_subject_takes_no_more_than_half() -> None:
    desk = Desk(limited("T1", in_flight_max=4))
    pinged(desk, "hot", events=10)

    assert subjects_out(desk) == ["hot", "hot"]
    pinged(desk, "A")
    assert subjects_out(desk) == ["hot", "hot", "A"]


def test_rate_allows_a_burst_of_a_second_and_then_so_many_a_second() -> None:
    desk = Desk(limited("T1", per_s=5.0))
    desk.now_ms += 10_000
    pinged(desk, *(f"S{number}" for number in range(20)))
    first = len(desk.names_out())
    desk.tick(1_000)
    desk.tick(0)

    assert 5 <= first <= 6
    assert len(desk.names_out()) - first == 5


def test_rate_lets_the_next_out_when_its_time_has_come_and_not_before() -> None:
    gate = TopologyGate("T1", None, 10.0)
    for _ in range(11):
        assert gate.is_in_rate(5_000)
        gate.on_issue(5_000)

    assert not gate.is_in_rate(5_000)
    assert gate.frees_ms() == 5_100
    assert gate.is_in_rate(5_100)


def test_line_is_served_although_news_of_who_waits_came_when_time_had_opened_it() -> None:
    """Nothing ends then that would have it served: only the clock can."""
    desk = Desk(limited("T1", per_s=1))
    pinged(desk, "A", "B", "C")
    assert subjects_out(desk) == ["A", "B"]

    desk.now_ms += 1_500
    desk.publish("C", [2])
    desk.ping("C", 2)

    due_ms = desk.scheduler.next_ms()
    assert due_ms is not None
    assert due_ms <= desk.now_ms
    desk.tick()
    assert subjects_out(desk) == ["A", "B", "C"]


def test_paused_topology_gets_nothing_and_keeps_nobody_in_memory() -> None:
    desk = Desk(limited("T1"), limited("T2"))
    desk.scheduler.paused.add("T1")
    pinged(desk, "A")
    desk.report(desk.names_out()[0])
    desk.commit()

    assert desk.scheduler.active_subjects == 0
    assert desk.infos["A"].cursors == {"T1": -1, "T2": 1}
    assert desk.infos["A"].latest == 1
    assert not desk.scheduler.takes(0)


def test_reasons_are_told_in_words() -> None:
    desk = Desk(limited("T1", in_flight_max=1))
    valve = desk.scheduler.valves[0]
    assert valve.closed_by(desk.now_ms) is None
    pinged(desk, "A")
    assert valve.closed_by(desk.now_ms) == "topology T1 has its 1 jobs out"


# --- queues --------------------------------------------------------------------------------------


def test_queue_limit_doubles_in_a_round_trip_while_jobs_are_taken_soon() -> None:
    gate = QueueGate("general")
    for _ in range(3):
        for _ in range(gate.limit):
            gate.out = gate.limit - 1
            gate.learn(5, 2_000, 0)

    assert gate.limit == QUEUE_FIRST * 8


def test_queue_limit_does_not_grow_while_it_is_not_used() -> None:
    gate = QueueGate("general")
    gate.out = 10
    for _ in range(1_000):
        gate.learn(5, 2_000, 0)

    assert gate.limit == QUEUE_FIRST


def test_queue_limit_shrinks_once_a_round_trip_when_jobs_are_taken_late() -> None:
    gate = QueueGate("general")
    gate.out = 300
    for _ in range(50):
        gate.learn(8_000, 2_000, 1_000)
    assert (gate.limit, gate.shrinks) == (200, 1)
    for second in range(2, 400):
        gate.out = gate.limit
        gate.learn(8_000, 2_000, 9_000 * second)

    assert gate.limit == QUEUE_LEAST


def test_queue_with_short_timeouts_is_kept_shorter() -> None:
    quick = LambdaSpec(lambda_id="only", timeout_ms=1_000)
    valves = [Desk(topology("T1", each)).scheduler.valves[0] for each in (quick, SINGLE)]

    assert [valve.queued_ms_max for valve in valves] == [250, 2_000]


def test_slow_queue_does_not_hold_up_another() -> None:
    slow = LambdaSpec(lambda_id="only", queue="slow")
    desk = Desk(topology("T1", slow), topology("T2"))
    desk.scheduler.valves[0].queue.limit = 1
    pinged(desk, "A", "B", "C")

    assert len(desk.names_out("T1")) == 1
    assert len(desk.names_out("T2")) == 3


# --- lines that are too long ---------------------------------------------------------------------


def test_subject_that_finds_the_line_full_leaves_memory_and_is_looked_for_later() -> None:
    desk = Desk(limited("T1", in_flight_max=1))
    valve = desk.scheduler.valves[0]
    pinged(desk, *(f"S{number}" for number in range(150)))
    assert len(valve.line) == 149
    full = valve.line
    fillers = [SubjectState(f"F{number}", [-1], -1) for number in range(LINE_MAX)]
    valve.line = OrderedDict.fromkeys([*full, *fillers])
    pinged(desk, "late")
    valve.line = full
    desk.commit()

    assert desk.infos["late"] == CursorInfo("late", 1, {"T1": -1})
    desk.report(desk.names_out()[0])
    assert desk.swept


# --- lanes ---------------------------------------------------------------------------------------


def test_jobs_far_behind_the_head_go_to_the_backlog_lane() -> None:
    desk = Desk(
        topology("T1", LambdaSpec(lambda_id="only", max_batch=10)),
        page_limit=10,
        settings=SchedulerSettings(backlog_after_events=15),
    )
    pinged(desk, "S", events=40)

    lanes = [(job.events[0].sequence, job.lane) for job in desk.jobs.values()]
    assert lanes == [(1, BACKLOG), (11, BACKLOG), (21, LIVE), (31, LIVE)]


# --- the breaker in its place --------------------------------------------------------------------


def test_outage_stops_dispatch_and_spends_no_attempts() -> None:
    desk = Desk(topology("T1", SINGLE, retry=RetrySpec(first_ms=10, max_ms=10, floor_ms=10)))
    pinged(desk, *(f"S{number}" for number in range(100)))
    for name in desk.names_out():
        desk.report(name, failed=[1])
    breaker = desk.scheduler.valves[0].breaker
    assert breaker.state is BreakerState.OPEN
    charged = {
        subject.subject: subject.lambdas[0].parked[1].charged
        for subject in desk.scheduler.subjects()
    }
    assert sum(charged.values()) < 40
    desk.wait(999)
    assert desk.out() == []
    desk.wait(1)
    assert len(desk.out()) == 1
    desk.report(desk.names_out()[0])
    desk.wait(20)
    assert len(desk.out()) > 90
