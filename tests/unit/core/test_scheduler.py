"""What enters the scheduler from outside: pings, answers, requests, time. Reports have a file of
their own, `test_settling.py`."""

from dataclasses import replace
from typing import Any

import pytest

from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.event import Event
from cape_stream.model.request import EventQuery, SchedulingRequest
from cape_stream.model.topology import LambdaSpec
from tests.desk import Desk, event, topology


def lagging(latest: int, page_limit: int = 10, **cursors: int) -> Desk:
    """Topologies that stand at these cursors."""
    desk = Desk(*(topology(name) for name in cursors), page_limit=page_limit)
    desk.infos["S"] = CursorInfo("S", latest, cursors)
    return desk


def starts(desk: Desk) -> list[int]:
    return [query.start for query in desk.queries]


# --- the worked example of the article -------------------------------------------------------


def worked_example() -> Desk:
    """T1 stands at 90 and has 91 in flight, T2 stands at 99; then [91, 100] arrives."""
    desk = lagging(99, T1=90, T2=99)
    desk.ping("S", 91)
    desk.answer("S", [91])
    assert desk.out("T1") == [[91]]
    assert desk.out("T2") == []
    events = [event(91), event(99), event(100)]
    desk.request(SchedulingRequest("S", 100, 91, 100, events))
    return desk


def test_worked_example_gives_each_topology_what_it_has_not_covered() -> None:
    desk = worked_example()

    assert desk.out("T1") == [[91], [99, 100]]
    assert desk.out("T2") == [[100]]


def test_worked_example_moves_t2_to_100_when_its_job_completes() -> None:
    desk = worked_example()
    desk.report(desk.names_out("T2")[0])

    assert desk.cursor("S", "T2") == 100
    assert desk.cursor("S", "T1") == 90


def test_worked_example_leaves_the_cursor_when_the_job_times_out() -> None:
    desk = worked_example()
    desk.report("J1")
    desk.tick(30_000)

    assert desk.cursor("S", "T1") == 91
    assert sorted(desk.lambda_state("S", "T1").parked) == [99, 100]
    assert desk.out("T1") == []


# --- pings -----------------------------------------------------------------------------------


def test_ping_of_a_lagging_subject_makes_the_fewest_queries() -> None:
    desk = lagging(99, T1=10, T2=90, T3=99, T4=99)
    desk.ping("S", 100)

    assert desk.queries == [EventQuery("S", 11, 10), EventQuery("S", 91, 10)]


def test_ping_that_tells_nothing_new_costs_nothing() -> None:
    desk = lagging(100, T1=100, T2=100)
    for latest in (0, 99, 100):
        desk.ping("S", latest)

    assert (desk.queries, desk.scheduler.active_subjects) == ([], 0)
    assert desk.counters.stale_pings == 3
    desk.commit()
    assert desk.active == {}


def test_ping_repeated_while_a_query_is_out_asks_nothing_more() -> None:
    desk = lagging(100, T1=100)
    for _ in range(3):
        desk.ping("S", 101)
    desk.ping("S", 100)

    assert starts(desk) == [101]
    desk.answer("S", [101])
    assert desk.queries == []


def test_ping_of_newer_news_while_a_query_is_out_asks_once_more_after_it() -> None:
    desk = lagging(100, T1=100)
    desk.ping("S", 101)
    desk.ping("S", 102)
    desk.ping("S", 103)

    assert starts(desk) == [101]
    desk.answer("S", [101])
    assert starts(desk) == [102]
    desk.answer("S", [102, 103])
    assert desk.queries == []
    assert desk.out() == [[101], [102, 103]]


def test_ping_without_a_latest_asks_past_all_that_is_known() -> None:
    desk = lagging(100, T1=100)
    desk.ping("S")

    assert starts(desk) == [101]
    desk.answer("S", [])
    assert desk.scheduler.active_subjects == 0


def test_ping_without_a_latest_while_a_query_is_out_asks_once_more() -> None:
    desk = lagging(100, T1=100)
    desk.ping("S")
    desk.ping("S")
    desk.answer("S", [101])

    assert starts(desk) == [102]
    desk.answer("S", [])
    assert desk.queries == []


def test_ping_without_a_latest_asks_for_every_topology_that_begins_later() -> None:
    desk = Desk(topology("T1", ordering="ordered"), topology("T2", start=500))
    desk.ping("S")

    assert starts(desk) == [0, 500]


def test_ping_of_an_unknown_subject_begins_at_each_topologys_start() -> None:
    desk = Desk(topology("T1"), topology("T2", start=5), topology("T3", start=500))
    desk.ping("S", 100)

    assert starts(desk) == [0]
    desk.publish("S", [3, 5, 100])
    desk.serve()
    assert (desk.out("T1"), desk.out("T2"), desk.out("T3")) == ([[3, 5, 100]], [[5, 100]], [])


def test_subject_leaves_memory_when_nothing_runs_and_nothing_is_left() -> None:
    desk = Desk(topology("T1"))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    assert desk.scheduler.active_subjects == 1
    desk.report("J1")

    assert desk.scheduler.active_subjects == 0
    assert desk.scheduler.open_jobs == 0
    assert desk.scheduler.next_ms() is None
    assert desk.cursor("S", "T1") == 2
    assert desk.infos["S"] == CursorInfo("S", 2, {"T1": 2})


def test_subject_that_ended_and_is_not_stored_yet_is_still_known() -> None:
    desk = Desk(topology("T1"))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    desk.report("J1")

    assert desk.scheduler.holds("S")
    desk.ping("S", 1)
    desk.publish("S", [2])
    desk.ping("S", 2)
    desk.serve()
    assert desk.out() == [[2]]


def test_subject_that_begins_and_ends_within_one_commit_has_no_active_row() -> None:
    desk = Desk(topology("T1"))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    desk.report("J1")
    changes = desk.scheduler.take_changes(desk.now_ms)

    assert (changes.active, changes.had_row) == ([], set())
    assert [info.subject for info in changes.finished] == ["S"]


def test_subject_whose_row_was_stored_has_it_removed_when_it_ends() -> None:
    desk = Desk(topology("T1"))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    desk.commit()
    assert list(desk.active) == ["S"]
    desk.report("J1")
    desk.publish("S", [2])
    desk.ping("S", 2)
    desk.serve()
    desk.report(desk.names_out()[0])
    changes = desk.scheduler.take_changes(desk.now_ms)

    assert changes.had_row == {"S"}
    assert desk.scheduler.take_changes(desk.now_ms).finished == []


# --- a topology that begins later than the first event ----------------------------------------


def test_later_start_of_a_topology_hides_no_ping_from_the_others() -> None:
    desk = Desk(topology("T1"), topology("T2", start=91))
    desk.publish("S", [0, 1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.publish("S", [3])
    desk.ping("S", 3)
    desk.serve()

    assert desk.out("T1") == [[0, 1, 2], [3]]


def test_later_start_of_a_topology_loses_no_event_of_the_others() -> None:
    desk = Desk(topology("T1"), topology("T2", start=91))
    desk.publish("S", [0, 1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.publish("S", [3, 4, 91])
    desk.ping("S", 91)
    desk.serve()

    assert desk.out("T1") == [[0, 1, 2], [3, 4, 91]]
    assert desk.out("T2") == [[91]]


def test_later_start_of_a_topology_is_no_event_that_was_seen() -> None:
    desk = Desk(topology("T1"), topology("T2", start=91))
    desk.publish("S", [0])
    desk.ping("S", 0)
    desk.serve()
    desk.report("J1")
    desk.commit()

    assert desk.infos["S"] == CursorInfo("S", 0, {"T1": 0, "T2": 90})


def test_answer_older_than_what_was_seen_since_hides_nothing() -> None:
    """Two queries are out; the source answered the first before events appeared that the second
    shows, and the first answer arrives last."""
    desk = lagging(90, T1=10, T2=90)
    desk.ping("S", 92)
    assert starts(desk) == [11, 91]
    desk.answer("S", [91, 92], start=91)
    desk.answer("S", [50, 90], start=11)
    desk.publish("S", [50, 90, 91, 92, 93])
    desk.ping("S", 93)
    desk.wait(200)

    assert desk.events_out("T1") == [50, 90, 91, 92, 93]
    assert desk.events_out("T2") == [91, 92, 93]


def test_answer_older_than_what_was_seen_since_does_not_end_a_backlog() -> None:
    desk = lagging(90, T1=10, T2=90, page_limit=2)
    desk.publish("S", [50, 90, 91, 92, 93])
    desk.ping("S")
    assert starts(desk) == [11, 91]
    desk.answer("S", [91, 92], start=91)
    desk.answer("S", [50], start=11)
    desk.serve()

    assert desk.events_out("T2") == [91, 92, 93]


# --- requests from a tracker elsewhere -----------------------------------------------------------


def request(desk: Desk, latest: int, start: int, end: int, *sequences: int) -> None:
    desk.request(SchedulingRequest("S", latest, start, end, [event(each) for each in sequences]))


def test_request_gives_jobs_only_where_it_holds_the_next_event() -> None:
    desk = lagging(100, T1=10, T2=90)
    request(desk, 100, 50, 60, 50, 60)

    assert desk.out() == []
    assert starts(desk) == [11, 91]


def test_request_that_is_stale_gives_nothing_twice() -> None:
    desk = lagging(99, T1=98)
    request(desk, 99, 90, 99, 90, 98, 99)
    desk.report("J1")
    request(desk, 99, 90, 99, 90, 98, 99)

    assert [[e.sequence for e in job.events] for job in desk.jobs.values()] == [[99]]
    assert desk.cursor("S", "T1") == 99
    assert desk.scheduler.active_subjects == 0


def test_request_without_events_ends_the_life_of_its_subject() -> None:
    desk = lagging(99, T1=99)
    request(desk, 105, 100, 105)

    assert (desk.out(), desk.scheduler.active_subjects) == ([], 0)


# --- many subjects ----------------------------------------------------------------------------


def test_subject_whose_source_fails_for_ever_delays_nobody() -> None:
    """B24, as the scheduler sees it."""
    desk = Desk(topology("T1"))
    desk.ping("bad-1", 1)
    desk.fault("bad-1")
    for number in range(50):
        subject = f"good-{number}"
        desk.publish(subject, [1])
        desk.ping(subject, 1)
        desk.answer(subject, [1])
        while any(query.subject == "bad-1" for query in desk.queries):
            desk.fault("bad-1")
        desk.tick(100)

    assert len(desk.out()) == 50
    assert desk.state("bad-1").faults > 5


def test_parked_events_are_counted_over_all_subjects() -> None:
    desk = Desk(topology("T1"))
    for subject in ("A", "B"):
        desk.publish(subject, [1, 2])
        desk.ping(subject, 2)
        desk.serve()
    desk.report("J1", failed=[1, 2])
    desk.report("J2", failed=[1])
    assert desk.scheduler.parked_events == 3
    desk.tick(1_001)

    assert desk.scheduler.parked_events == 0


def test_jobs_carry_all_that_a_worker_needs() -> None:
    desk = Desk(topology("T1", LambdaSpec(lambda_id="x", queue="bulk", timeout_ms=7)), epoch=10)
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()

    job = desk.jobs["J1"]
    assert replace(job, events=[]) == replace(
        job,
        job_id="0-a-1",
        domain="flights",
        partition=0,
        subject="S",
        topology="T1",
        lambda_id="x",
        queue="bulk",
        epoch=10,
        attempt=1,
        issued_ms=desk.now_ms,
        timeout_ms=7,
        events=[],
    )
    assert job.events == [Event(1, b"e1")]


def test_scheduler_gives_the_same_jobs_for_the_same_inputs() -> None:
    def play() -> list[str]:
        desk = Desk(topology("T1"), topology("T2", after=("T1",)))
        for subject in ("A", "B"):
            desk.publish(subject, range(30))
            desk.ping(subject, 29)
        desk.serve()
        for name in desk.names_out():
            desk.report(name, failed=[3])
        desk.wait(5_000)
        return [str(job) for job in desk.jobs.values()]

    assert play() == play()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"job_bytes_max": 0}, "job_bytes_max must be >= 1 and <= 1000000, not 0"),
        ({"job_bytes_max": 1_000_001}, "not 1000001"),
        ({"buffered_events_max": 0}, "buffered_events_max must be >= 1, not 0"),
        ({"sleep_after_ms": -1}, "sleep_after_ms must be >= 0, not -1"),
        ({"breaker_share": 0.0}, "breaker_share must be > 0, not 0.0"),
        ({"breaker_cooldown_max_ms": 10}, "breaker_cooldown_max_ms must be >= 1000, not 10"),
    ],
)
def test_settings_with_which_nothing_would_be_done_are_refused(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        SchedulerSettings(**wrong)
