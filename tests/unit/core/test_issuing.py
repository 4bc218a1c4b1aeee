"""Which jobs a lambda gets: batches, bounds, orders, gates, inputs."""

import pytest

from cape_stream.core.contents import EVENT_OVERHEAD_BYTES
from cape_stream.core.issuing import GONE
from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.active_row import ActiveRow, JobRow, LambdaRow, ParkedRow
from cape_stream.model.event import Event
from cape_stream.model.status import FailureClass, StatusKind
from cape_stream.model.topology import LambdaSpec, TopologySpec
from tests.desk import Desk, topology


def batches_of(size: int) -> LambdaSpec:
    return LambdaSpec(lambda_id="only", max_batch=size)


def served(*topologies: TopologySpec, events: int, page_limit: int = 100) -> Desk:
    """Events 1 to ``events`` of S have been pinged and fetched."""
    desk = Desk(*topologies, page_limit=page_limit)
    desk.publish("S", range(1, events + 1))
    desk.ping("S", events)
    desk.serve()
    return desk


# --- batches and bounds ------------------------------------------------------------------------


def test_jobs_hold_at_most_a_batch() -> None:
    desk = served(topology("T1", batches_of(2)), events=5)

    assert desk.out() == [[1, 2], [3, 4], [5]]


def test_jobs_are_split_by_bytes() -> None:
    """B16: ten events of 120 KB must not become one record of 1.2 MB."""
    desk = Desk(topology("T1"))
    desk.ping("S", 10)
    big = b"x" * 120_000
    desk.answer_with("S", [Event(sequence, big) for sequence in range(1, 11)])

    assert desk.out() == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]


def test_jobs_fill_their_bytes_exactly() -> None:
    size = 100 + EVENT_OVERHEAD_BYTES
    desk = Desk(topology("T1"), settings=SchedulerSettings(job_bytes_max=2 * size))
    desk.ping("S", 3)
    desk.answer_with("S", [Event(sequence, b"x" * 100) for sequence in (1, 2, 3)])

    assert desk.out() == [[1, 2], [3]]


def test_headers_count_into_the_bytes_of_a_job() -> None:
    settings = SchedulerSettings(job_bytes_max=300)
    desk = Desk(topology("T1"), settings=settings)
    desk.ping("S", 3)
    headers = {"trace": "é" * 20}
    desk.answer_with("S", [Event(sequence, b"", headers) for sequence in (1, 2, 3)])

    assert desk.out() == [[1], [2], [3]]


def test_event_that_fits_no_job_is_told_once_and_parked() -> None:
    """B16: one event of 1.5 MB."""
    desk = Desk(topology("T1"), topology("T2"))
    desk.ping("S", 3)
    events = [Event(1, b"a"), Event(2, b"x" * 1_500_000), Event(3, b"c")]
    desk.answer_with("S", events)

    assert desk.out("T1") == [[1], [3]]
    told = [(each.subject, each.lambda_index, each.sequence) for each in desk.oversized]
    assert told == [("S", 0, 2), ("S", 1, 2)]
    assert desk.oversized[0].size == 1_500_000 + EVENT_OVERHEAD_BYTES
    parked = desk.lambda_state("S", "T1").parked[2]
    assert (parked.failure_class, parked.charged) == (FailureClass.INVALID, 1)
    size = 1_500_000 + EVENT_OVERHEAD_BYTES
    assert parked.first_error == f"event of {size} bytes is over the job limit"


def test_event_that_fits_no_job_is_tried_again_and_goes_out_once_it_is_smaller() -> None:
    desk = Desk(topology("T1", ordering="ordered"))
    desk.source["S"] = [Event(1, b"x" * 1_500_000), Event(2, b"")]
    desk.ping("S", 2)
    desk.serve()
    while desk.lambda_state("S", "T1").parked[1].charged < 3:
        desk.tick(100)
        desk.serve()
    assert len(desk.oversized) == desk.counters.oversized_events == 1
    assert desk.out() == []

    desk.source["S"][0] = Event(1, b"small")
    desk.state("S").buffer.drop_through(1)
    while not desk.out():
        desk.tick(1_000)
        desk.serve()
    assert desk.out() == [[1]]
    assert desk.newest().attempt == 1


def test_window_bounds_what_is_open_beyond_the_cursor() -> None:
    desk = served(topology("T1", batches_of(2), window=5), events=20)

    assert desk.out() == [[1, 2], [3, 4], [5]]
    desk.report("J2")
    assert desk.out() == [[1, 2], [5]]
    desk.report("J1")
    assert desk.events_out() == [5, 6, 7, 8, 9]


def test_window_counts_parked_events() -> None:
    desk = served(topology("T1", batches_of(1), window=3), events=20)
    desk.report("J1", failed=[1])
    desk.report("J2")
    desk.report("J3")

    assert desk.out() == []
    while not desk.out():
        desk.tick(50)
    desk.report(desk.names_out()[0])
    assert desk.events_out() == [4, 5, 6]


def test_gap_is_closed_though_what_is_done_beyond_it_fills_the_window() -> None:
    """All the table knew is lost; the tail of the job topic still has the newest three jobs."""
    desk = served(topology("T1", batches_of(1), window=3), events=3)
    desk.publish("S", range(4, 9))
    desk.ping("S", 8)
    for name in ("J1", "J2", "J3"):
        desk.report(name)
    desk.serve()
    desk.crash(adopting=["J4", "J5", "J6"])
    for name in ("J4", "J5", "J6"):
        desk.report(name)
    desk.serve()

    assert desk.out() == [[1], [2], [3]]
    for name in desk.names_out():
        desk.report(name)
    assert desk.cursor("S", "T1") == 6
    assert desk.out() == [[7], [8]]


def test_topologies_at_the_same_place_get_jobs_of_their_own() -> None:
    desk = served(topology("T1"), topology("T2"), topology("T3", batches_of(1)), events=2)

    assert (desk.out("T1"), desk.out("T2")) == ([[1, 2]], [[1, 2]])
    assert desk.out("T3") == [[1], [2]]
    assert len({job.job_id for job in desk.jobs.values()}) == 4
    desk.report("J1", failed=[1])
    assert desk.out("T2") == [[1, 2]]


# --- ordered -----------------------------------------------------------------------------------


def test_ordered_has_one_job_at_a_time() -> None:
    desk = served(topology("T1", batches_of(2), ordering="ordered"), events=5)

    for expected in ([[1, 2]], [[3, 4]], [[5]]):
        assert desk.out() == expected
        desk.report(desk.names_out()[0])
    assert desk.cursor("S", "T1") == 5


def test_ordered_stops_at_the_first_failure() -> None:
    desk = served(topology("T1", batches_of(3), ordering="ordered"), events=6)
    desk.report("J1", done=[1], failed=[2])

    parked = desk.lambda_state("S", "T1").parked
    assert sorted(parked) == [2, 3]
    assert (parked[2].charged, parked[3].charged) == (1, 0)
    assert desk.out() == []
    assert desk.cursor("S", "T1") == 1
    while not desk.out():
        desk.tick(50)
    assert desk.out() == [[2, 3]]
    assert desk.newest().attempt == 2
    desk.report("J2")
    assert desk.out() == [[4, 5, 6]]


def test_ordered_waits_for_the_oldest_even_if_a_younger_one_is_due() -> None:
    desk = served(topology("T1", batches_of(2), ordering="ordered"), events=2)
    desk.report("J1", failed=[1], done=[], retry_after_ms=60_000)
    desk.tick(1_000)

    assert desk.out() == []
    assert desk.lambda_state("S", "T1").parked[2].due_ms < desk.now_ms
    desk.tick(58_000)
    assert desk.out() == []
    desk.tick(2_000)
    assert desk.out() == [[1, 2]]


def test_ordered_looks_ahead_while_its_job_runs() -> None:
    desk = Desk(topology("T1", batches_of(10), ordering="ordered"), page_limit=10)
    desk.ping("S", 30)
    desk.answer("S", range(1, 11))

    assert desk.out() == [list(range(1, 11))]
    assert [query.start for query in desk.queries] == [11]
    desk.answer("S", range(11, 21))
    assert desk.queries == []
    desk.report("J1")
    assert desk.out() == [list(range(11, 21))]


# --- put aside and tried again -----------------------------------------------------------------


def test_parked_events_of_one_attempt_go_out_together() -> None:
    desk = served(topology("T1", batches_of(10)), events=4)
    desk.report("J1", failed=[1, 3, 4])
    desk.tick(1_001)

    assert desk.out() == [[1, 3, 4]]
    assert desk.newest().attempt == 2


def test_events_that_failed_go_out_together_under_a_number_that_is_newer_for_each() -> None:
    """A subject backs off as a whole: what fails beside others joins them, in one job."""
    desk = served(topology("T1", batches_of(3)), events=6)
    desk.report("J1", failed=[1, 2, 3])
    desk.tick(1_001)
    desk.report("J3", failed=[2])
    older = desk.lambda_state("S", "T1").parked[2]
    desk.report("J2", failed=[5])

    assert desk.lambda_state("S", "T1").parked[5].due_ms >= older.due_ms
    desk.tick(5_000)
    assert desk.out() == [[2, 5]]
    assert [job.attempt for job in desk.jobs.values()] == [1, 1, 2, 3]
    carried = desk.record("J4").carried
    assert carried is not None
    assert [parked.charged for parked in carried.values()] == [2, 1]


def test_events_that_did_not_fail_go_out_apart_from_those_that_did() -> None:
    desk = served(topology("T1", batches_of(1)), events=2)
    desk.report("J1", failed=[1])
    desk.report("J2", done=[], kind=StatusKind.HANDED_BACK)
    desk.tick(1_001)

    assert sorted(desk.out()) == [[1], [2]]


def test_parked_events_are_split_by_batch_and_bytes() -> None:
    desk = Desk(topology("T1", batches_of(2)), settings=SchedulerSettings(job_bytes_max=1_000))
    desk.ping("S", 4)
    sizes = {1: 10, 2: 10, 3: 900, 4: 900}
    desk.answer_with("S", [Event(sequence, b"x" * size) for sequence, size in sizes.items()])
    assert desk.out() == [[1, 2], [3], [4]]
    for name in desk.names_out():
        desk.report(name, failed=[e.sequence for e in desk.jobs[name].events])
    desk.tick(1_001)

    assert desk.out() == [[1, 2], [3], [4]]


def test_parked_event_that_left_memory_is_fetched_again() -> None:
    desk = served(topology("T1", batches_of(1)), events=3)
    desk.report("J1", failed=[1])
    desk.state("S").buffer.drop_through(3)
    desk.tick(1_001)

    assert [query.start for query in desk.queries] == [1]
    desk.serve()
    assert [1] in desk.out()


def test_event_that_vanished_from_the_source_waits_visibly() -> None:
    desk = served(topology("T1", batches_of(1)), events=3)
    desk.report("J1", failed=[1])
    desk.state("S").buffer.drop_through(3)
    del desk.source["S"][0]
    desk.tick(1_001)
    desk.serve()

    parked = desk.lambda_state("S", "T1").parked[1]
    assert desk.counters.vanished_events == 1
    assert (parked.failure_class, parked.last_error) == (FailureClass.PERMANENT, GONE)
    assert parked.first_error == "transient 1"
    assert parked.due_ms > desk.now_ms
    assert desk.out() == [[2], [3]]
    desk.wait(100_000)
    assert desk.counters.vanished_events > 3
    desk.publish("S", [])
    desk.source["S"].insert(0, Event(1, b"back"))
    desk.wait(300_001)
    assert any(job.events[0].payload == b"back" for job in desk.jobs.values())


def test_event_that_vanished_below_the_first_page_loses_nobody_elses_events() -> None:
    desk = served(topology("T1", batches_of(1)), topology("T2", ordering="ordered"), events=3)
    desk.report("J1", failed=[1])
    desk.report(desk.names_out("T2")[0], failed=[1])
    desk.state("S").buffer.drop_through(3)
    del desk.source["S"][0]
    desk.publish("S", [4])
    desk.ping("S", 4)
    desk.wait(5_000)

    assert 4 in desk.events_out("T1")
    assert desk.out("T2") == []


# --- gates -------------------------------------------------------------------------------------


def test_after_holds_an_event_back_until_it_is_done_before() -> None:
    desk = served(topology("T1", batches_of(1)), topology("T2", after=("T1",)), events=3)

    assert (desk.out("T1"), desk.out("T2")) == ([[1], [2], [3]], [])
    desk.report("J2")
    assert desk.out("T2") == []
    desk.report("J1")
    assert desk.out("T2") == [[1, 2]]
    desk.report("J3")
    assert desk.out("T2") == [[1, 2], [3]]


def test_after_holds_back_behind_a_failed_event() -> None:
    first = topology("T1", batches_of(3), ordering="ordered")
    desk = served(first, topology("T2", ordering="ordered", after=("T1",)), events=3)
    desk.report("J1", done=[1], failed=[2])

    assert desk.out("T2") == [[1]]
    desk.tick(1_001)
    desk.report("J3")
    assert desk.out("T2") == [[1]]
    desk.report("J2")
    assert desk.out("T2") == [[2, 3]]


def test_after_waits_for_every_topology_before() -> None:
    desk = served(
        topology("A"), topology("B"), topology("C", after=("A", "B")), topology("D"), events=1
    )

    assert desk.out("C") == []
    desk.report("J1")
    assert desk.out("C") == []
    desk.report("J2")
    assert desk.out("C") == [[1]]


def test_after_opens_along_a_chain() -> None:
    desk = served(topology("A"), topology("B", after=("A",)), topology("C", after=("B",)), events=2)

    for name in ("A", "B", "C"):
        assert desk.out() == [[1, 2]]
        assert desk.newest().topology == name
        desk.report(desk.names_out()[0])
    assert desk.scheduler.active_subjects == 0


def test_after_does_not_wait_for_events_before_the_start_of_the_other() -> None:
    desk = served(topology("A", start=3), topology("B", after=("A",)), events=4)

    assert (desk.out("A"), desk.out("B")) == ([[3, 4]], [[1, 2]])


def test_after_asks_for_what_it_may_have_when_a_gate_opens() -> None:
    desk = Desk(topology("A"), topology("B", after=("A",)), page_limit=100)
    desk.publish("S", range(1, 6))
    desk.ping("S", 5)
    desk.serve()
    desk.state("S").buffer.drop_through(5)
    desk.report("J1")

    assert [query.start for query in desk.queries] == [0]
    desk.serve()
    assert desk.out("B") == [[1, 2, 3, 4, 5]]


def test_after_asks_nothing_while_the_gate_is_shut() -> None:
    desk = Desk(topology("A", ordering="ordered"), topology("B", after=("A",)), page_limit=100)
    desk.ping("S", 5)
    desk.fault("S")
    desk.tick(200)

    assert [query.start for query in desk.queries] == [0]
    desk.answer("S", range(1, 6))
    assert desk.queries == []


# --- whose ids these are -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job_id", "possible"),
    [
        ("0-2-1", True),
        ("0-2-2", False),
        ("0-1-ff", True),
        ("0-3-1", True),
        ("1-2-1", False),
        ("does-not-exist", False),
        ("", False),
        ("0", False),
        ("0-2", False),
        ("0-2-", False),
        ("0--1", False),
        ("0-2-1-1", False),
        ("0-2-0x1", False),
        ("0-2- 1", False),
        ("0-2-1_0", False),
    ],
)
def test_issuer_knows_which_ids_its_task_may_have_given_out(job_id: str, possible: bool) -> None:
    desk = Desk(topology("T1"), epoch=2)
    desk.publish("S", [1, 2])
    desk.ping("S", 1)
    desk.serve()
    desk.publish("A", [98])
    lie = desk.lie("J1", job_id=job_id, subject="A", done=[98])
    desk.report("J1")
    desk.status(lie)

    assert (desk.counters.late_successes == 1) is possible
    assert desk.counters.unknown_statuses == 1


def test_ordered_sends_only_the_first_of_several_jobs_when_events_have_grown() -> None:
    desk = Desk(topology("T1", ordering="ordered"), settings=SchedulerSettings(job_bytes_max=1_000))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.report("J1", done=[], failed=[1])
    desk.state("S").buffer.drop_through(2)
    desk.source["S"] = [Event(1, b"x" * 900), Event(2, b"y" * 900)]
    desk.tick(1_001)
    desk.serve()

    assert desk.out() == [[1]]
    desk.report("J2")
    assert desk.out() == [[2]]


def test_ordered_with_a_job_and_a_parked_event_waits_for_the_job() -> None:
    """So it may stand after a restart, when an adopted job is younger than what was stored."""
    desk = Desk(topology("T1", ordering="ordered"))
    desk.publish("S", [1, 2])
    parked = ParkedRow(1, 1, 1, 0, "transient", "e", "e", 1, 1)
    out = JobRow("0-0-1", [2], 1, 0, 30_000)
    row = ActiveRow("S", 2, desk.now_ms, [LambdaRow("T1", "only", 0, jobs=[out], parked=[parked])])
    desk.scheduler.restore([row], desk.now_ms)
    desk.scheduler.resume(desk.now_ms)
    desk.tick()

    assert desk.jobs == {}
    assert desk.scheduler.open_jobs == 1
