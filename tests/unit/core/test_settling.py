"""What reports, timeouts and lost jobs mean for the events they are about."""

import pytest

from cape_stream.core.inflight.lambda_state import HEARTBEAT_CEILING
from cape_stream.core.settling import NO_RESULT, TIMED_OUT
from cape_stream.model.status import FailureClass, StatusKind
from cape_stream.model.topology import LambdaSpec, Ordering, RetrySpec
from tests.desk import START_MS, Desk, topology


def issued(
    *sequences: int, ordering: Ordering = "parallel", max_batch: int = 50, window: int = 1_000
) -> Desk:
    """These events of S are out for T1."""
    only = LambdaSpec(lambda_id="only", max_batch=max_batch)
    desk = Desk(topology("T1", only, ordering=ordering, window=window))
    desk.publish("S", sequences)
    desk.ping("S", sequences[-1])
    desk.serve()
    return desk


def until_out(desk: Desk) -> str:
    while not desk.out():
        desk.tick(50)
        desk.serve()
    return desk.names_out()[0]


# --- results -------------------------------------------------------------------------------------


def test_success_moves_the_cursor_and_ends_the_job() -> None:
    desk = issued(1, 2)
    desk.report("J1")

    assert desk.cursor("S", "T1") == 2
    assert (desk.counters.jobs_done, desk.counters.events_done) == (1, 2)
    assert desk.scheduler.open_jobs == 0


def test_success_counts_whatever_sequence_type_lists_it() -> None:
    desk = issued(1, 2)
    desk.status(desk.lie("J1", done=(2, 1)))

    assert desk.cursor("S", "T1") == 2
    assert desk.counters.jobs_done == 1


def test_failure_is_parked_with_its_class_and_first_and_last_error() -> None:
    desk = issued(1)
    desk.report("J1", failed={1: FailureClass.THROTTLED})
    first_ms = desk.now_ms
    desk.report(until_out(desk), failed={1: FailureClass.INVALID})

    parked = desk.lambda_state("S", "T1").parked[1]
    assert (parked.attempts, parked.charged) == (2, 2)
    assert parked.failure_class is FailureClass.INVALID
    assert (parked.first_error, parked.last_error) == ("throttled 1", "invalid 1")
    assert (parked.first_ms, parked.last_ms) == (first_ms, desk.now_ms)
    assert desk.counters.events_failed == 2


def test_failure_waits_longer_each_time_and_goes_on_for_ever() -> None:
    desk = Desk(topology("T1", retry=RetrySpec(first_ms=1_000, max_ms=8_000, floor_ms=100)))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    waits: list[int] = []
    for attempt in range(1, 40):
        name = desk.names_out()[0]
        assert desk.jobs[name].attempt == attempt
        desk.report(name, failed=[1])
        before_ms = desk.now_ms
        until_out(desk)
        waits.append(desk.now_ms - before_ms)

    assert min(waits) >= 100
    assert max(waits) <= 8_050
    assert max(waits[4:]) > 4_000


def test_failure_waits_at_least_as_long_as_the_handler_asked() -> None:
    desk = issued(1)
    desk.report("J1", failed=[1], retry_after_ms=90_000)
    desk.wait(89_999)
    assert desk.out() == []
    desk.wait(1)

    assert desk.out() == [[1]]


def test_failure_waits_by_the_policy_when_the_handler_asked_for_less() -> None:
    desk = Desk(topology("T1", retry=RetrySpec(first_ms=1, max_ms=1, floor_ms=500)))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    desk.report("J1", failed=[1], retry_after_ms=5)
    desk.tick(499)
    assert desk.out() == []
    desk.tick(1)

    assert desk.out() == [[1]]


def test_missing_result_counts_as_a_bug_of_the_handler() -> None:
    desk = issued(1, 2)
    desk.report("J1", done=[1])

    parked = desk.lambda_state("S", "T1").parked[2]
    assert (parked.failure_class, parked.last_error) == (FailureClass.BUG, NO_RESULT)
    assert desk.counters.missing_events == 1
    assert desk.cursor("S", "T1") == 1


def test_missing_results_behind_an_ordered_failure_are_excused() -> None:
    desk = issued(1, 2, 3, ordering="ordered")
    desk.report("J1", done=[1], failed=[2])

    parked = desk.lambda_state("S", "T1").parked
    assert (parked[2].charged, parked[3].charged) == (1, 0)
    assert parked[3].failure_class is None
    assert desk.counters.missing_events == 0


def test_report_without_any_result_charges_every_event() -> None:
    desk = issued(1, 2)
    desk.report("J1", done=[])

    assert desk.counters.missing_events == 2
    assert sorted(desk.lambda_state("S", "T1").parked) == [1, 2]


def test_event_reported_done_and_failed_is_done() -> None:
    desk = issued(1)
    desk.report("J1", done=[1], failed=[1])

    assert desk.cursor("S", "T1") == 1
    assert desk.scheduler.active_subjects == 0


def test_cursor_moves_only_as_far_as_nothing_older_is_open() -> None:
    desk = issued(1, 2, 3, max_batch=1)
    desk.report("J3")
    assert desk.cursor("S", "T1") == -1
    desk.report("J1")
    assert desk.cursor("S", "T1") == 1
    desk.report("J2")

    assert desk.cursor("S", "T1") == 3


# --- handed back, heartbeats, timeouts ------------------------------------------------------------


def test_handed_back_goes_out_at_once_and_is_not_charged() -> None:
    desk = issued(1, 2, 3)
    desk.report("J1", done=[1], kind=StatusKind.HANDED_BACK)

    assert desk.out() == [[2, 3]]
    assert desk.newest().attempt == 2
    assert desk.counters.handed_back == 1
    assert desk.counters.events_failed == 0
    desk.report("J2", failed=[2])
    assert desk.lambda_state("S", "T1").parked[2].charged == 1


def test_handed_back_failure_is_charged_all_the_same() -> None:
    desk = issued(1, 2)
    desk.report("J1", failed=[1], kind=StatusKind.HANDED_BACK)

    assert desk.out() == [[2]]
    assert desk.lambda_state("S", "T1").parked[1].charged == 1


def test_handed_back_when_all_was_done_is_done() -> None:
    desk = issued(1, 2)
    desk.report("J1", done=[1, 2], kind=StatusKind.HANDED_BACK)

    assert desk.cursor("S", "T1") == 2
    assert desk.scheduler.active_subjects == 0


def test_heartbeat_extends_the_expiry_by_the_timeout() -> None:
    desk = issued(1)
    desk.tick(29_000)
    desk.report("J1", kind=StatusKind.HEARTBEAT)
    desk.tick(29_999)
    assert desk.counters.timeouts == 0
    desk.tick(1)

    assert desk.counters.timeouts == 1
    assert desk.counters.heartbeats == 1


def test_heartbeats_extend_no_further_than_the_ceiling() -> None:
    desk = issued(1)
    for _ in range(2 * HEARTBEAT_CEILING):
        desk.tick(20_000)
        if desk.counters.timeouts:
            break
        desk.report("J1", kind=StatusKind.HEARTBEAT)

    assert desk.now_ms == START_MS + HEARTBEAT_CEILING * 30_000
    assert desk.counters.timeouts == 1


def test_heartbeat_of_an_old_report_never_shortens() -> None:
    desk = issued(1)
    desk.tick(10_000)
    desk.report("J1", kind=StatusKind.HEARTBEAT)
    expires_ms = desk.lambda_state("S", "T1").jobs[0].expires_ms
    desk.now_ms -= 5_000
    desk.report("J1", kind=StatusKind.HEARTBEAT)

    assert desk.lambda_state("S", "T1").jobs[0].expires_ms == expires_ms


def test_heartbeat_changes_nothing_that_is_stored() -> None:
    desk = issued(1)
    desk.commit()
    desk.report("J1", kind=StatusKind.HEARTBEAT)
    changes = desk.scheduler.take_changes(desk.now_ms)

    assert (changes.active, changes.finished) == ([], [])


def test_timeout_parks_the_events_and_leaves_the_cursor() -> None:
    desk = issued(99, 100)
    desk.tick(29_999)
    assert desk.out() == [[99, 100]]
    desk.tick(1)

    assert desk.out() == []
    assert desk.cursor("S", "T1") == -1
    parked = desk.lambda_state("S", "T1").parked
    assert {each.failure_class for each in parked.values()} == {FailureClass.TIMEOUT}
    assert {each.last_error for each in parked.values()} == {TIMED_OUT}
    until_out(desk)
    assert desk.out() == [[99, 100]]
    assert desk.newest().attempt == 2


def test_timeouts_do_not_follow_from_the_steps_of_other_clocks() -> None:
    """B21: three jobs of 60 s expire 60 s after they were issued, in any order of issue."""
    only = LambdaSpec(lambda_id="only", timeout_ms=60_000)
    desk = Desk(topology("T1", only))
    for number in range(3):
        subject = f"S{number}"
        desk.publish(subject, [1])
        desk.ping(subject, 1)
        desk.serve()
        desk.tick(1_000)
    for expected in (0, 1, 2, 3):
        assert desk.counters.timeouts == expected
        desk.now_ms = START_MS + 60_000 + expected * 1_000 - 1
        desk.tick()
        assert desk.counters.timeouts == expected
        desk.tick(1)


# --- jobs the client gave up ----------------------------------------------------------------------


def test_undelivered_job_goes_out_again_as_a_new_attempt_not_charged() -> None:
    desk = issued(1, 2)
    desk.undelivered("J1")
    desk.tick()

    assert desk.out() == [[1, 2]]
    assert desk.newest().attempt == 2
    assert desk.newest().job_id != desk.jobs["J1"].job_id
    assert desk.counters.undelivered == 1
    assert desk.counters.events_failed == 0
    desk.report("J2", failed=[1])
    assert desk.lambda_state("S", "T1").parked[1].charged == 1


def test_job_that_the_log_will_never_take_waits_like_a_failure() -> None:
    """Issued again at once it would be refused at once, for ever and as fast as the log answers."""
    desk = issued(1)
    desk.undelivered("J1", "MSG_SIZE_TOO_LARGE")
    desk.tick()

    assert desk.out() == []
    parked = desk.lambda_state("S", "T1").parked[1]
    assert parked.due_ms > desk.now_ms
    assert (parked.charged, parked.failure_class) == (1, FailureClass.INVALID)
    assert parked.last_error == "MSG_SIZE_TOO_LARGE"


def test_undelivered_retry_keeps_its_charge() -> None:
    desk = issued(1)
    desk.report("J1", failed=[1])
    name = until_out(desk)
    desk.undelivered(name)
    desk.tick()

    assert desk.newest().attempt == 3
    desk.report(desk.names_out()[0], failed=[1])
    parked = desk.lambda_state("S", "T1").parked[1]
    assert (parked.attempts, parked.charged, parked.first_error) == (3, 2, "transient 1")


def test_undelivered_restored_retry_keeps_its_charge() -> None:
    desk = issued(1)
    desk.report("J1", failed=[1])
    name = until_out(desk)
    desk.commit()
    desk.crash(adopting=[])
    desk.undelivered(name)

    parked = desk.lambda_state("S", "T1").parked[1]
    assert (parked.attempts, parked.charged) == (2, 1)


def test_undelivered_ordered_job_goes_out_before_anything_younger() -> None:
    desk = issued(1, 2, ordering="ordered", max_batch=1)
    desk.undelivered("J1")
    desk.publish("S", [3])
    desk.ping("S", 3)
    desk.tick()
    desk.serve()

    assert desk.out() == [[1]]


def test_undelivered_job_that_is_not_out_is_ignored() -> None:
    desk = issued(1)
    desk.report("J1")
    desk.undelivered("J1")

    assert desk.counters.undelivered == 0
    assert desk.scheduler.active_subjects == 0


# --- strangers: repeated, late, foreign, wrong ---------------------------------------------------


def test_repeat_counts_nothing_twice() -> None:
    desk = issued(1, 2)
    report = desk.make_status("J1")
    for _ in range(3):
        desk.status(report)

    assert desk.cursor("S", "T1") == 2
    assert (desk.counters.events_done, desk.counters.repeated_events) == (2, 4)
    assert desk.counters.unknown_statuses == 2
    assert list(desk.jobs) == ["J1"]


def test_late_success_ends_the_second_attempt_of_a_parallel_topology() -> None:
    desk = issued(1, 2)
    desk.tick(30_000)
    second = until_out(desk)
    desk.report("J1")

    assert desk.cursor("S", "T1") == 2
    assert desk.scheduler.open_jobs == 0
    assert desk.counters.late_successes == 2
    desk.report(second)
    assert desk.cursor("S", "T1") == 2
    assert desk.counters.repeated_events == 2


def test_late_success_takes_a_parked_event_back() -> None:
    desk = issued(1)
    desk.tick(30_000)
    desk.report("J1")

    assert desk.cursor("S", "T1") == 1
    assert desk.scheduler.active_subjects == 0
    desk.tick(600_000)
    assert list(desk.jobs) == ["J1"]


def test_late_success_shrinks_the_second_attempt() -> None:
    desk = issued(1, 2, 3)
    desk.tick(30_000)
    second = until_out(desk)
    desk.report("J1", done=[2])

    assert desk.out() == [[1, 3]]
    desk.report(second, done=[1, 3])
    assert desk.cursor("S", "T1") == 3
    assert desk.counters.extra_events == 0


def test_late_success_of_an_older_attempt_is_ignored_by_an_ordered_topology() -> None:
    """Its rival may still be at work and must not run beside the next event."""
    desk = issued(1, 2, ordering="ordered", max_batch=1)
    desk.tick(30_000)
    second = until_out(desk)
    desk.report("J1")

    assert desk.out() == [[1]]
    assert desk.counters.ignored_successes == 1
    desk.report(second)
    assert desk.out() == [[2]]


def test_late_success_of_an_older_attempt_is_ignored_while_its_rival_rests_too() -> None:
    desk = issued(1, 2, ordering="ordered", max_batch=1)
    desk.tick(30_000)
    second = until_out(desk)
    desk.tick(30_000)
    desk.report("J1")

    assert list(desk.lambda_state("S", "T1").parked) == [1]
    assert desk.counters.ignored_successes == 1
    desk.report(second)
    assert desk.out() == [[2]]


def test_late_success_of_a_lost_owner_is_ignored_beside_our_own_attempt_of_that_number() -> None:
    """The owner before us issued a second attempt and died before it stored that; so did we."""
    desk = issued(1, 2, ordering="ordered", max_batch=1)
    desk.report("J1", failed=[1])
    desk.commit()
    forgotten = until_out(desk)
    desk.crash()
    ours = until_out(desk)
    desk.report(forgotten)

    assert desk.names_out() == [ours]
    desk.report(ours, failed=[1])
    desk.report(forgotten)
    assert list(desk.lambda_state("S", "T1").parked) == [1]
    assert desk.counters.ignored_successes == 2


def test_late_success_of_the_newest_attempt_is_taken_by_an_ordered_topology() -> None:
    desk = issued(1, 2, ordering="ordered", max_batch=1)
    desk.tick(30_000)
    desk.report("J1")

    assert desk.out() == [[2]]
    assert desk.counters.late_successes == 1


def test_late_failure_changes_nothing() -> None:
    desk = issued(1)
    desk.tick(30_000)
    second = until_out(desk)
    desk.report("J1", failed=[1])

    assert desk.names_out() == [second]
    assert desk.counters.events_failed == 1


def test_late_success_beyond_the_window_is_ignored() -> None:
    desk = issued(1, max_batch=1, window=2)
    for sequence in (10, 11, 12):
        desk.status(desk.lie("J1", job_id="0-0-1", done=[sequence]))

    assert desk.counters.late_successes == 2
    assert desk.counters.ignored_successes == 1


def test_success_of_a_lost_owner_for_an_unknown_subject_brings_it_back() -> None:
    desk = issued(1)
    desk.publish("A", [5, 6])
    desk.status(desk.lie("J1", job_id="0-0-7", subject="A", done=[5]))
    desk.serve()

    assert desk.out() == [[1], [6]]
    desk.report(desk.names_out()[1])
    assert desk.cursor("A", "T1") == 6


@pytest.mark.parametrize(
    "wrong", [{"subject": "other"}, {"topology": "T2"}, {"lambda_id": "other"}]
)
def test_report_about_something_else_than_its_job_is_refused(wrong: dict[str, str]) -> None:
    desk = issued(1)
    desk.status(desk.lie("J1", **wrong))
    desk.status(desk.lie("J1", kind=StatusKind.HEARTBEAT, **wrong))

    assert desk.counters.wrong_subject == 2
    assert desk.out() == [[1]]
    assert desk.cursor("S", "T1") == -1


def test_report_of_an_unknown_job_for_a_lambda_that_is_gone_is_counted() -> None:
    desk = issued(1)
    desk.status(desk.lie("J1", job_id="0-0-1", topology="old"))

    assert desk.counters.unknown_statuses == 1
    assert desk.out() == [[1]]


def test_heartbeat_of_an_unknown_job_is_counted() -> None:
    desk = issued(1)
    desk.status(desk.lie("J1", job_id="0-0-1", kind=StatusKind.HEARTBEAT, done=[]))

    assert desk.counters.unknown_statuses == 1
    assert desk.counters.heartbeats == 0
