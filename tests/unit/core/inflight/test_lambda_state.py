from cape_stream.core.inflight.lambda_state import HEARTBEAT_CEILING, JobRecord, LambdaState, Parked
from cape_stream.core.inflight.subject import SubjectState

SUBJECT = SubjectState("S", [-1], -1)


def job(*sequences: int) -> JobRecord:
    return JobRecord(f"job-{sequences[0]}", SUBJECT, 0, sequences, 1, 0, 1_000, 500)


def standing(cursor: int, high: int, *jobs: JobRecord, parked: tuple[int, ...] = ()) -> LambdaState:
    state = LambdaState(cursor)
    state.high = high
    for each in jobs:
        state.add_job(each)
    for sequence in parked:
        state.add_parked(sequence, Parked(1, 1, 0))
    return state


def test_cursor_moves_to_the_last_event_when_nothing_older_is_open() -> None:
    state = standing(90, 100)
    state.settle([99, 100])

    assert (state.cursor, state.done) == (100, set())


def test_cursor_stays_below_an_older_job() -> None:
    older = job(91)
    state = standing(90, 100, older)
    state.settle([99, 100])

    assert (state.cursor, state.done) == (90, {99, 100})
    state.remove_job(older)
    state.settle([91])
    assert (state.cursor, state.done) == (100, set())


def test_cursor_stays_below_a_parked_event() -> None:
    state = standing(90, 100, parked=(99,))
    state.settle([91, 100])

    assert (state.cursor, state.done) == (91, {100})
    state.remove_parked(99)
    state.settle([99])
    assert (state.cursor, state.done) == (100, set())


def test_cursor_moves_to_the_newest_done_event_below_a_gap() -> None:
    state = standing(90, 200, job(150))
    state.settle([100, 120, 170])

    assert (state.cursor, state.done) == (120, {170})


def test_cursor_does_not_pass_what_a_restart_left_unsure() -> None:
    state = standing(98, 98)
    state.unsure_to = 100
    state.settle([100])

    assert (state.cursor, state.done) == (98, {100})
    state.high = 100
    state.settle([])
    assert (state.cursor, state.done) == (100, set())


def test_cursor_never_moves_back() -> None:
    state = standing(90, 90)
    state.add_done([80])
    state.unsure_to = 91
    state.settle([])

    assert state.cursor == 90


def test_state_has_done_what_is_at_or_below_the_cursor_or_remembered() -> None:
    state = standing(90, 100, job(95))
    state.add_done([100])

    assert [state.has_done(at) for at in (0, 90, 91, 95, 100)] == [True, True, False, False, True]


def test_jobs_stand_in_the_order_of_their_first_event() -> None:
    first, second, third = job(1), job(2, 9), job(5)
    state = standing(0, 9, second, third, first)

    assert state.jobs == [first, second, third]
    state.shrink_job(second, 2)
    assert list(second.sequences) == [9]
    assert state.jobs == [first, third, second]
    assert state.job_with(9) is second
    assert state.job_with(2) is None


def test_state_accounts_for_done_out_and_parked() -> None:
    state = standing(0, 9, job(1, 2), job(4), parked=(7,))
    state.add_done([9])

    assert state.accounted() == {1, 2, 4, 7, 9}
    assert state.open_events() == 5
    assert not state.is_plain()


def test_state_is_plain_when_nothing_is_open_and_nothing_unsure() -> None:
    state = standing(5, 9)

    assert state.is_plain()
    state.unsure_to = 10
    assert not state.is_plain()
    state.unsure_to = 9
    assert state.is_plain()


def test_outputs_are_kept_until_dropped() -> None:
    state = LambdaState(0)
    state.keep_output(1, b"one")
    state.keep_output(2, b"two")
    state.drop_outputs([1])

    assert state.outputs == {2: b"two"}
    state.drop_outputs([2])
    assert LambdaState(0).outputs == {}


def test_states_do_not_share_their_collections() -> None:
    first = standing(0, 9, job(1), parked=(2,))
    first.add_done([3])
    first.keep_output(3, b"")
    only = first.jobs[0]
    first.remove_job(only)
    first.remove_parked(2)
    first.drop_outputs([3])
    first.add_done([4])
    first.settle([])
    fresh = LambdaState(0)

    assert (fresh.jobs, fresh.parked, fresh.done, fresh.outputs) == ([], {}, set(), {})


def test_adding_nothing_as_done_keeps_the_shared_empty_set() -> None:
    state = LambdaState(0)
    state.add_done([])
    state.add_done([1])

    assert LambdaState(0).done == set()


def test_job_record_knows_its_expiry_and_ceiling() -> None:
    record = job(1)

    assert record.expires_ms == 1_500
    assert record.ceiling_ms() == 1_000 + HEARTBEAT_CEILING * 500
