"""What a scheduler knows after a restart, and what it must not believe."""

from cape_stream.model.active_row import ActiveRow, JobRow, LambdaRow, ParkedRow
from cape_stream.model.topology import LambdaSpec, RetrySpec
from tests.desk import Desk, topology


def test_scheduler_keeps_cursor_below_new_jobs_when_restored_events_are_passed() -> None:
    desk = Desk(topology("T1"), page_limit=100)
    desk.publish("S", [99, 100])
    desk.ping("S", 100)
    desk.serve()
    desk.commit()
    desk.publish("S", range(101, 111))

    desk.crash(statuses=[desk.make_status("J1")])
    desk.ping("S", 110)
    desk.serve()

    assert desk.out("T1") == [list(range(101, 111))]
    assert desk.cursor("S", "T1") == 100


def test_scheduler_goes_on_charging_after_restart() -> None:
    desk = Desk(topology("T1"))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    for _ in range(2):
        desk.report(desk.names_out()[0], failed=[1])
        while not desk.out():
            desk.tick(100)
    desk.commit()

    desk.crash()
    desk.report(desk.names_out()[0], failed=[1])

    parked = desk.lambda_state("S", "T1").parked[1]
    assert (parked.charged, parked.attempts) == (3, 3)


def test_scheduler_refuses_wrong_topology_when_catching_up() -> None:
    desk = Desk(topology("T1"), topology("T2"))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    desk.commit()

    desk.crash(statuses=[desk.lie("J1", topology="T2")])

    assert desk.counters.wrong_subject == 1
    assert desk.out("T1") == [[1]]
    assert desk.out("T2") == [[1]]


def test_scheduler_lets_a_new_lambda_begin_where_its_topology_stands() -> None:
    spec = topology("T1", LambdaSpec(lambda_id="parse"), LambdaSpec(lambda_id="store"))
    desk = Desk(spec)
    desk.publish("S", range(100))
    row = ActiveRow("S", 51, desk.now_ms, [LambdaRow("T1", "parse", 50, jobs=[])])

    desk.scheduler.restore([row], desk.now_ms)

    assert [state.cursor for state in desk.state("S").lambdas] == [50, 50]


def test_scheduler_ignores_rows_of_lambdas_that_are_gone() -> None:
    desk = Desk(topology("T1"))
    gone = LambdaRow("old", "only", 3, jobs=[JobRow("0-1-9", [4], 1, 0, 30_000)])

    desk.scheduler.restore([ActiveRow("S", 4, desk.now_ms, [gone])], desk.now_ms)
    desk.scheduler.resume(desk.now_ms)

    assert desk.scheduler.open_jobs == 0
    assert desk.state("S").lambdas[0].cursor == -1


def test_scheduler_takes_back_everything_it_stored() -> None:
    desk = Desk(topology("T1", LambdaSpec(lambda_id="only", max_batch=1)))
    desk.publish("S", [1, 2, 3])
    desk.ping("S", 3)
    desk.serve()
    desk.report("J1", failed=[1])
    desk.report("J2")
    before = desk.lambda_state("S", "T1")
    told = (before.cursor, before.done, list(before.parked), [job.job_id for job in before.jobs])
    desk.commit()

    desk.crash(adopting=[])

    after = desk.lambda_state("S", "T1")
    assert (after.cursor, after.done, list(after.parked)) == told[:3]
    assert [job.job_id for job in after.jobs] == told[3]
    assert after.parked[1].first_error == after.parked[1].last_error == "transient 1"


def parked_row(due_ms: int) -> ParkedRow:
    return ParkedRow(1, 1, 1, due_ms, "transient", "e", "e", 1, 1)


def restored_due_ms(desk: Desk, due_ms: int, saved_ms: int) -> int:
    row = ActiveRow("S", 1, saved_ms, [LambdaRow("T1", "only", 0, parked=[parked_row(due_ms)])])
    desk.scheduler.restore([row], desk.now_ms)
    return desk.lambda_state("S", "T1").parked[1].due_ms


def test_restore_keeps_a_due_time_that_is_ahead() -> None:
    desk = Desk(topology("T1"))
    now_ms = desk.now_ms

    assert restored_due_ms(desk, now_ms + 3_000, now_ms - 2_000) == now_ms + 3_000


def test_restore_is_due_at_once_when_the_time_has_passed() -> None:
    desk = Desk(topology("T1"))
    now_ms = desk.now_ms

    assert restored_due_ms(desk, now_ms - 1, now_ms - 60_000) == now_ms


def test_restore_bounds_due_times_when_the_clock_went_back() -> None:
    """B21: an hour between two clocks must not park anything for an hour."""
    desk = Desk(topology("T1"))
    now_ms = desk.now_ms
    hour_ms = 3_600_000

    assert restored_due_ms(desk, now_ms + hour_ms + 5_000, now_ms + hour_ms) == now_ms + 5_000


def test_restored_job_expires_one_timeout_later_whatever_the_clock_did() -> None:
    """B21: the remaining time is bounded by the configured timeout."""
    desk = Desk(topology("T1", LambdaSpec(lambda_id="only", timeout_ms=60_000)))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    desk.commit()

    desk.crash(clock_step_ms=-3_600_000)
    desk.tick(59_999)
    assert desk.counters.timeouts == 0
    desk.tick(1)

    assert desk.counters.timeouts == 1


# --- adoption -------------------------------------------------------------------------------


def crowd(*sequences: int, ordering: str = "parallel") -> Desk:
    """One subject with these events issued as J1, and nothing stored of that."""
    desk = Desk(topology("T1", ordering="ordered" if ordering == "ordered" else "parallel"))
    desk.publish("S", sequences)
    desk.ping("S", sequences[-1])
    desk.serve()
    return desk


def test_adopt_takes_a_job_that_the_table_does_not_know() -> None:
    desk = crowd(1, 2)

    desk.crash()
    desk.serve()

    assert desk.names_out() == ["J1"]
    assert desk.counters.adopted == 1
    desk.report("J1")
    assert desk.cursor("S", "T1") == 2


def test_adopt_skips_what_is_done() -> None:
    desk = crowd(1, 2)
    desk.report("J1")
    desk.commit()

    desk.crash()

    assert desk.counters.adopted == 0
    assert desk.scheduler.open_jobs == 0


def test_adopt_skips_what_is_in_flight() -> None:
    desk = crowd(1, 2)
    desk.commit()

    desk.crash()

    assert desk.counters.adopted == 0
    assert desk.out() == [[1, 2]]


def test_adopt_skips_what_is_parked_at_that_attempt() -> None:
    desk = crowd(1)
    desk.report("J1", failed=[1])
    desk.commit()

    desk.crash()

    assert desk.counters.adopted == 0
    assert list(desk.lambda_state("S", "T1").parked) == [1]


def test_adopt_takes_what_is_parked_at_an_older_attempt() -> None:
    desk = crowd(1)
    desk.report("J1", failed=[1])
    desk.commit()
    while not desk.out():
        desk.tick(100)

    desk.crash(adopting=["J1", "J2"])

    assert desk.names_out() == ["J2"]
    assert desk.lambda_state("S", "T1").parked == {}
    assert desk.lambda_state("S", "T1").jobs[0].charged == 1


def test_adopt_takes_the_unknown_part_of_a_job() -> None:
    desk = crowd(1, 2, 3)
    desk.report("J1", done=[1, 3], failed=[2])
    desk.commit()
    row = desk.lambda_state("S", "T1")
    assert (row.cursor, row.done) == (1, {3})
    while not desk.out():
        desk.tick(100)

    desk.crash(adopting=["J2"])

    assert desk.out() == [[2]]


def test_adopt_skips_jobs_of_lambdas_that_are_gone() -> None:
    desk = crowd(1)
    gone = desk.jobs["J1"]
    gone.topology = "old"

    desk.crash()

    assert desk.counters.adopted == 0


def test_restart_finds_the_gap_below_a_job_that_got_out() -> None:
    desk = Desk(topology("T1", LambdaSpec(lambda_id="only", max_batch=1)))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()

    desk.crash(adopting=["J2"])
    desk.report("J2")
    desk.serve()

    assert desk.cursor("S", "T1") == -1
    assert desk.out() == [[1]]
    desk.report(desk.names_out()[0])
    assert desk.cursor("S", "T1") == 2


def test_restart_executes_nothing_again_when_the_report_came_meanwhile() -> None:
    """B10: the job is known from the log, counts once, and its repeat is a no-op."""
    desk = crowd(99, 100)
    report = desk.make_status("J1")

    desk.crash(statuses=[report, report])
    desk.serve()
    desk.status(report)

    assert desk.cursor("S", "T1") == 100
    assert list(desk.jobs) == ["J1"]
    assert desk.counters.repeated_events == 4


def test_restart_asks_again_for_what_was_pinged() -> None:
    desk = Desk(topology("T1", retry=RetrySpec()))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.commit()

    desk.crash()
    desk.serve()

    assert desk.out() == [[1, 2]]
