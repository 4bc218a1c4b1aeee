"""A subject's row fits a record of the changelog, whatever becomes of its events.

A row that does not fit stops every commit of its dispatcher, again after every restart: one subject
would stand in the way of all.
"""

import tomllib

import pytest

from cape_stream.core.inflight.lambda_state import Parked
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import OPEN_EVENTS_MAX
from cape_stream.core.rows import ERROR_BYTES_MAX, active_row
from cape_stream.core.settling import SUBJECT_OUTPUT_BYTES_MAX
from cape_stream.model.job import Job
from cape_stream.model.sequence import SEQUENCE_MAX
from cape_stream.model.status import ERROR_HEAD_CHARS_MAX, EventFailure, FailureClass
from cape_stream.model.topology import LambdaSpec, Ordering
from cape_stream.runtime.active_rows import encode_active_row
from cape_stream.shipped import shipped
from tests.desk import Desk, topology

TOPIC = tomllib.loads((shipped("topics") / "changelog.toml").read_text())
ROW_BYTES_MAX: int = TOPIC["config"]["max.message.bytes"]
EVENTS = 1_500
OUTPUT = bytes(12_000)
HOUR_MS = 3_600_000
SINGLE = LambdaSpec(lambda_id="only", max_batch=500)


def staged(ordering: Ordering = "parallel") -> Desk:
    """Two stages with much to hand over, a topology beside them, and a subject far behind."""
    first = LambdaSpec(lambda_id="first", max_batch=50)
    second = LambdaSpec(lambda_id="second", inputs=("first",), max_batch=50)
    desk = Desk(topology("T1", first, second, ordering=ordering), topology("T2"), page_limit=100)
    desk.publish("S", range(EVENTS))
    desk.ping("S", EVENTS - 1)
    desk.serve()
    return desk


def is_done(job: Job, *, second_works: bool) -> bool:
    return second_works or job.lambda_id != "second"


def work(desk: Desk, *, second_works: bool) -> int:
    """Report on what is out until nothing is; the largest row that was stored on the way."""
    largest = 0
    while names := desk.names_out():
        for name in names:
            job = desk.jobs[name]
            events = [event.sequence for event in job.events]
            failed = () if is_done(job, second_works=second_works) else events
            outputs = dict.fromkeys(events, OUTPUT) if job.lambda_id == "first" else None
            desk.report(name, failed=failed, outputs=outputs, retry_after_ms=HOUR_MS)
            desk.serve()
        largest = max(largest, row_bytes(desk))
    return largest


def work_off(desk: Desk) -> int:
    """Everything works from now on and gets done; the largest row on the way."""
    largest = 0
    for _ in range(200):
        largest = max(largest, work(desk, second_works=True))
        if desk.cursor("S", "T1") == EVENTS - 1:
            return largest
        desk.wait(60_000)
    raise AssertionError(f"T1 stands at {desk.cursor('S', 'T1')}")


def row_bytes(desk: Desk) -> int:
    """What the subject's row has as it is stored now, awake or asleep."""
    desk.commit()
    asleep = [encode_active_row(row) for row in desk.asleep.values()]
    return max(map(len, [*desk.active.values(), *asleep]), default=0)


@pytest.mark.parametrize("ordering", ["parallel", "ordered"])
def test_outputs_that_nobody_takes_stop_their_own_lambda_only(ordering: Ordering) -> None:
    desk = staged(ordering)
    largest = work(desk, second_works=False)

    assert 500_000 < largest < SUBJECT_OUTPUT_BYTES_MAX + 500_000 < ROW_BYTES_MAX
    assert desk.cursor("S", "T1") == -1
    assert desk.cursor("S", "T2") == EVENTS - 1
    first_done = sum(len(job.events) for job in desk.jobs.values() if job.lambda_id == "first")
    assert first_done < EVENTS


@pytest.mark.parametrize("ordering", ["parallel", "ordered"])
def test_outputs_find_room_again_once_they_are_taken(ordering: Ordering) -> None:
    desk = staged(ordering)
    work(desk, second_works=False)
    desk.wait(HOUR_MS)

    assert work_off(desk) < ROW_BYTES_MAX


def test_outputs_still_have_their_bounds_after_a_restart() -> None:
    desk = staged()
    work(desk, second_works=False)
    desk.crash()
    assert work(desk, second_works=False) < ROW_BYTES_MAX
    desk.wait(HOUR_MS)

    assert work_off(desk) < ROW_BYTES_MAX


def test_output_larger_than_all_room_is_kept_when_it_is_the_only_one() -> None:
    desk = staged()
    event = desk.jobs["J1"].events[0].sequence
    desk.report("J1", done=[event], outputs={event: bytes(SUBJECT_OUTPUT_BYTES_MAX)})

    assert desk.lambda_state("S", "T1", "first").outputs.keys() == {event}
    assert desk.counters.crowded_outputs == 0


def test_event_whose_output_had_no_room_goes_out_again_as_soon_as_there_is() -> None:
    desk = staged()
    for name in ("J1", "J2"):
        events = [event.sequence for event in desk.jobs[name].events]
        desk.report(name, outputs=dict.fromkeys(events, bytes(50_000)))
    state = desk.lambda_state("S", "T1", "first")
    crowded = list(state.parked)
    assert desk.counters.crowded_outputs == len(crowded) == 41
    assert {each.charged for each in state.parked.values()} == {0}
    for name in desk.names_out("T1"):
        if desk.jobs[name].lambda_id == "second":
            desk.report(name)

    again = [desk.jobs[name] for name in desk.names_out() if desk.jobs[name].attempt == 2]
    assert [event.sequence for job in again for event in job.events] == crowded


def test_ordered_lambda_stops_at_the_first_event_whose_output_has_no_room() -> None:
    desk = staged("ordered")
    events = [event.sequence for event in desk.jobs["J1"].events]
    desk.report("J1", outputs=dict.fromkeys(events, bytes(100_000)))

    state = desk.lambda_state("S", "T1", "first")
    assert (state.cursor, list(state.parked)) == (28, events[29:])
    assert desk.counters.missing_events == 0


def test_success_of_a_given_up_job_counts_only_where_its_output_has_room() -> None:
    desk = staged()
    events = [event.sequence for event in desk.jobs["J2"].events]
    late = desk.make_status("J2", outputs=dict.fromkeys(events, bytes(50_000)))
    event = desk.jobs["J1"].events[0].sequence
    desk.report("J1", done=[event], outputs={event: bytes(SUBJECT_OUTPUT_BYTES_MAX - 500_000)})
    desk.tick(40_000)
    desk.status(late)

    outputs = desk.lambda_state("S", "T1", "first").outputs
    assert outputs.keys() == {event, *events[:9]}
    assert desk.counters.late_successes == 9
    assert desk.counters.ignored_successes == len(events) - 9


@pytest.mark.parametrize("letter", ["x", "漢"])
def test_errors_of_many_events_are_shortened_in_the_row(letter: str) -> None:
    desk = Desk(*(topology(f"T{n}", SINGLE) for n in range(10)), page_limit=100)
    desk.publish("S", range(1_000))
    desk.ping("S", 999)
    desk.serve()
    text = letter * ERROR_HEAD_CHARS_MAX
    for name in desk.names_out():
        failures = [
            EventFailure(event.sequence, FailureClass.TRANSIENT, text, HOUR_MS)
            for event in desk.jobs[name].events
        ]
        desk.status(desk.lie(name, done=(), failures=failures))
        desk.serve()
    found = desk.look("S")
    assert found is not None
    assert {each.last_error for each in found.lambdas[0].parked.values()} == {text}

    assert row_bytes(desk) < ROW_BYTES_MAX // 2
    desk.crash()
    found = desk.look("S")
    assert found is not None
    (kept,) = {each.last_error for each in found.lambdas[0].parked.values()}
    assert 10 < len(kept) < ERROR_HEAD_CHARS_MAX
    assert text.startswith(kept)


def test_row_of_as_many_events_as_may_be_open_fits_beside_everything_else() -> None:
    parked = Parked(2**32 - 1, 2**32 - 1, 2**53)
    parked.failure_class, parked.epoch = FailureClass.TRANSIENT, 2**32 - 1
    parked.first_ms = parked.last_ms = 2**53
    subject = SubjectState("S" * 1_024, [0], 0)
    subject.lambdas[0].parked = dict.fromkeys(
        range(SEQUENCE_MAX - OPEN_EVENTS_MAX, SEQUENCE_MAX), parked
    )
    subject.parked = OPEN_EVENTS_MAX
    plan = Desk(topology("T1")).plan
    row = len(encode_active_row(active_row(plan, subject, 0)))

    assert row + SUBJECT_OUTPUT_BYTES_MAX + ERROR_BYTES_MAX < ROW_BYTES_MAX


def test_errors_of_a_few_events_stay_whole_in_the_row() -> None:
    desk = Desk(topology("T1"))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    text = "漢" * ERROR_HEAD_CHARS_MAX
    failure = EventFailure(1, FailureClass.TRANSIENT, text, HOUR_MS)
    desk.status(desk.lie("J1", done=(), failures=[failure]))
    desk.commit()
    desk.crash()

    found = desk.look("S")
    assert found is not None
    assert found.lambdas[0].parked[1].last_error == text
