"""What the source answers or fails to answer, and what of it is kept in memory."""

from typing import Any

import pytest

from cape_stream.core.scheduler import SOURCE_BEHIND_TRIES, SchedulerSettings
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.event import Event
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.model.sequence import SEQUENCE_MAX
from cape_stream.model.topology import LambdaSpec, RetrySpec
from tests.desk import Desk, event, foreign, topology


def lagging(latest: int, page_limit: int = 10, **cursors: int) -> Desk:
    """Topologies that stand at these cursors."""
    desk = Desk(*(topology(name) for name in cursors), page_limit=page_limit)
    desk.infos["S"] = CursorInfo("S", latest, cursors)
    return desk


def starts(desk: Desk) -> list[int]:
    return [query.start for query in desk.queries]


# --- answers ---------------------------------------------------------------------------------


def test_answer_to_nothing_that_was_asked_is_ignored() -> None:
    desk = Desk(topology("T1"))
    desk.scheduler.on_page(EventPage(EventQuery("S", 0, 10), [event(1)]), desk.now_ms)
    desk.ping("S", 5)
    desk.scheduler.on_page(EventPage(EventQuery("S", 3, 10), [event(4)]), desk.now_ms)

    assert desk.scheduler.open_jobs == 0
    assert desk.state("S").buffer.intervals == []


def test_answer_that_comes_twice_counts_once() -> None:
    desk = Desk(topology("T1"))
    desk.ping("S", 5)
    query = desk.answer("S", [5])
    desk.scheduler.on_page(EventPage(query, [event(5)]), desk.now_ms)

    assert desk.out() == [[5]]


def test_full_answer_asks_for_more_before_its_last_job_ends() -> None:
    desk = Desk(topology("T1"), page_limit=2)
    desk.ping("S", 1)
    desk.answer("S", [0, 1])

    assert desk.out() == [[0, 1]]
    assert starts(desk) == [2]


def test_end_that_is_found_first_hides_nothing_before_it_from_a_restart() -> None:
    """Two topologies far apart, and a ping that names no event: the later question is answered, and
    then the process dies. Nobody pings again."""
    desk = Desk(topology("T1"), topology("T2", start=30))
    desk.publish("S", [1])
    desk.ping("S")
    assert starts(desk) == [0, 30]
    desk.answer("S", [], 30)
    desk.commit()
    desk.crash()
    desk.serve()

    assert desk.out("T1") == [[1]]


def test_backlog_is_served_in_pages_to_its_end() -> None:
    desk = Desk(topology("T1"), page_limit=3)
    desk.publish("S", range(0, 40, 2))
    desk.ping("S")
    desk.serve()

    assert desk.events_out() == list(range(0, 40, 2))
    assert len(desk.asked) == 7


@pytest.mark.parametrize(
    "page",
    [
        [event(2), event(1)],
        [event(1), event(1)],
        [event(0)],
        [event(sequence) for sequence in range(1, 13)],
        [event(SEQUENCE_MAX + 1)],
        [foreign(1.0, b"")],
        [Event(True, b"")],
        [foreign("1", b"")],
        [foreign(1, "text")],
        [foreign(1, b"", {"a": 1})],
        [None],
        [{"sequence": 1}],
        None,
        iter([event(1)]),
    ],
)
def test_answer_that_breaks_the_contract_rests_its_subject_only(page: Any) -> None:
    desk = lagging(0, T1=0)
    desk.infos["B"] = CursorInfo("B", 0, {"T1": 0})
    desk.ping("S", 1)
    desk.ping("B", 1)
    desk.answer_with("S", page)
    desk.answer("B", [1])

    assert desk.counters.bad_pages == desk.counters.query_faults == 1
    assert [job.subject for job in desk.jobs.values()] == ["B"]
    assert desk.queries == []
    desk.publish("S", [1])
    desk.wait(200)
    assert [job.subject for job in desk.jobs.values()] == ["B", "S"]


def test_fault_is_asked_again_later_and_later() -> None:
    desk = Desk(
        topology("T1"),
        settings=SchedulerSettings(
            source_retry=RetrySpec(first_ms=100, max_ms=30_000, floor_ms=20)
        ),
    )
    desk.ping("S", 1)
    waits: list[int] = []
    for _ in range(20):
        desk.fault("S")
        before_ms = desk.now_ms
        while not desk.queries:
            desk.tick(10)
        waits.append(desk.now_ms - before_ms)

    assert min(waits) >= 20
    assert max(waits) <= 30_010
    assert sum(waits[:5]) < sum(waits[5:10]) < sum(waits[10:])
    desk.answer("S", [1])
    assert desk.out() == [[1]]


def test_fault_keeps_pings_that_come_meanwhile_from_the_source() -> None:
    desk = Desk(topology("T1"))
    desk.ping("S", 1)
    desk.fault("S")
    desk.ping("S", 2)
    desk.ping("S")

    assert desk.queries == []
    desk.publish("S", [1, 2])
    desk.wait(200)
    assert desk.events_out() == [1, 2]


def test_fault_of_one_query_leaves_the_other_topologies_alone() -> None:
    desk = lagging(99, T1=10, T2=99)
    desk.ping("S", 100)
    desk.fault("S", start=11)
    desk.answer("S", [100], start=100)

    assert (desk.out("T1"), desk.out("T2")) == ([], [[100]])


def test_fault_for_nothing_that_was_asked_is_ignored() -> None:
    desk = Desk(topology("T1"))
    desk.ping("S", 1)
    query = desk.queries[0]
    desk.fault("S")
    desk.queries.append(query)
    desk.fault("S")

    assert desk.counters.query_faults == 1


def test_source_behind_a_ping_is_asked_again_a_few_times() -> None:
    desk = Desk(topology("T1"))
    desk.ping("S", 5)
    for tries in range(1, SOURCE_BEHIND_TRIES + 1):
        desk.answer("S", [])
        assert desk.counters.source_behind == tries
        assert desk.scheduler.active_subjects == 1
        while not desk.queries:
            desk.tick(100)
    desk.answer("S", [])

    assert desk.counters.source_behind == SOURCE_BEHIND_TRIES
    assert desk.scheduler.active_subjects == 0


def test_source_behind_a_ping_delivers_when_it_has_caught_up() -> None:
    desk = Desk(topology("T1"))
    desk.ping("S", 5)
    desk.answer("S", [3])
    assert desk.out() == [[3]]
    desk.publish("S", [3, 5])
    desk.wait(200)

    assert desk.out() == [[3], [5]]


def test_ping_that_the_source_never_kept_may_be_repeated() -> None:
    desk = Desk(topology("T1"))
    desk.ping("S", 5)
    for _ in range(SOURCE_BEHIND_TRIES + 1):
        while not desk.queries:
            desk.tick(100)
        desk.answer("S", [])
    desk.publish("S", [5])
    desk.ping("S", 5)
    desk.serve()

    assert desk.out() == [[5]]


def test_source_copy_that_lags_behind_what_was_seen_hides_nothing() -> None:
    """One topology has seen 100; the next answer comes from a copy that ends at 92."""
    desk = lagging(100, T1=90, T2=100)
    desk.ping("S", 101)
    desk.answer("S", [91, 92], start=91)
    desk.answer("S", [101], start=101)
    assert desk.counters.source_behind == 1
    desk.publish("S", [91, 92, 99, 100, 101])
    desk.wait(200)

    assert desk.events_out("T1") == [91, 92, 99, 100, 101]
    assert desk.events_out("T2") == [101]


def test_source_copy_that_lags_is_not_believed_because_the_source_had_failed_before() -> None:
    desk = lagging(100, T1=90, T2=100)
    desk.ping("S", 101)
    for _ in range(2 * SOURCE_BEHIND_TRIES):
        desk.fault("S", start=91)
        while all(query.start != 91 for query in desk.queries):
            desk.tick(100)
    desk.answer("S", [91, 92], start=91)
    desk.answer("S", [101], start=101)
    desk.publish("S", [91, 92, 99, 100, 101])
    desk.wait(60_000)

    assert desk.events_out("T1") == [91, 92, 99, 100, 101]


def test_source_that_lost_its_newest_events_is_believed_in_the_end() -> None:
    desk = lagging(100, T1=90, T2=100)
    desk.publish("S", [91])
    desk.ping("S")
    desk.serve()
    desk.wait(20_000)

    assert desk.counters.source_behind >= SOURCE_BEHIND_TRIES
    assert desk.queries == []
    assert desk.state("S").head == 100
    desk.report("J1")
    assert desk.scheduler.active_subjects == 0
    assert desk.cursor("S", "T1") == 91


def test_answers_older_than_a_ping_tell_nothing_about_the_end() -> None:
    """Both queries were out when the ping came: only after the last is the end asked for again."""
    desk = lagging(100, T1=10, T2=100)
    desk.ping("S")
    desk.ping("S", 102)
    assert starts(desk) == [11, 101]
    desk.answer("S", [], start=101)
    assert starts(desk) == [11, 101]
    desk.answer("S", range(11, 21), start=11)
    assert starts(desk) == [101, 21]

    desk.publish("S", range(11, 103))
    desk.serve()
    assert desk.events_out("T2") == [101, 102]


def test_wake_for_a_parked_event_does_not_end_the_rest_of_the_source() -> None:
    slow = SchedulerSettings(source_retry=RetrySpec(first_ms=60_000, floor_ms=50_000))
    desk = Desk(topology("T1"), settings=slow)
    desk.ping("S", 1)
    desk.answer("S", [1])
    desk.ping("S", 2)
    desk.fault("S")
    rest_ms = desk.state("S").source_due_ms
    desk.report("J1", failed=[1])
    desk.tick(1_001)

    assert desk.out() == [[1]]
    assert desk.state("S").source_due_ms == rest_ms
    assert desk.queries == []


# --- memory ----------------------------------------------------------------------------------


def test_buffer_is_cut_to_what_comes_next_for_each_lambda() -> None:
    desk = Desk(
        topology("T1", ordering="ordered"),
        page_limit=10,
        settings=SchedulerSettings(buffered_events_max=15),
    )
    desk.publish("S", range(200))
    desk.ping("S", 199)
    for start in (0, 10, 20):
        desk.answer("S", range(start, start + 10), start)
        while desk.queries == [] and desk.names_out():
            desk.report(desk.names_out()[0])

    assert len(desk.state("S").buffer.events) <= 20
    while desk.names_out():
        desk.serve()
        desk.report(desk.names_out()[0])
    assert desk.cursor("S", "T1") == 199


def test_buffer_keeps_what_was_asked_for_a_parked_event() -> None:
    """A page larger than the buffer's bound must not push out what it was asked for."""
    desk = Desk(topology("T1", LambdaSpec(lambda_id="only", max_batch=50)), page_limit=1_000)
    desk.publish("S", range(3_000))
    desk.ping("S", 2_999)
    desk.serve()
    for name in desk.names_out():
        desk.report(name, failed=[120] if name == "J3" else [])
    desk.serve()
    desk.wait(2_000)

    assert [120] in desk.out()


def test_buffer_keeps_one_page_for_each_lambda_that_stands_elsewhere() -> None:
    specs = [topology(name, ordering="ordered") for name in ("T1", "T2")]
    desk = Desk(*specs, page_limit=4, settings=SchedulerSettings(buffered_events_max=6))
    desk.infos["S"] = CursorInfo("S", 50, {"T1": 0, "T2": 50})
    desk.publish("S", range(1, 61))
    desk.ping("S", 60)
    while desk.names_out() or desk.queries:
        desk.serve()
        assert len(desk.state("S").buffer.events) <= 12
        desk.report(desk.names_out()[0])

    assert (desk.cursor("S", "T1"), desk.cursor("S", "T2")) == (60, 60)
