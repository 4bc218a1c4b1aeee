from cape_stream.core.inflight.deadlines import BUCKET_MS, Deadlines
from cape_stream.core.inflight.lambda_state import JobRecord
from cape_stream.core.inflight.subject import SubjectState

SUBJECT = SubjectState("S", [-1], -1)


def record(expires_ms: int) -> JobRecord:
    return JobRecord(f"job-{expires_ms}", SUBJECT, 0, [1], 1, 0, expires_ms - 100, 100)


def watching(*expiries_ms: int) -> tuple[Deadlines, list[JobRecord]]:
    deadlines, records = Deadlines(), [record(expires_ms) for expires_ms in expiries_ms]
    for each in records:
        deadlines.add(each)
    return deadlines, records


def expired(deadlines: Deadlines, now_ms: int) -> list[int]:
    return [each.expires_ms for each in deadlines.take_expired(now_ms)]


def test_deadlines_expire_to_the_millisecond() -> None:
    deadlines, _ = watching(1_000)

    assert expired(deadlines, 999) == []
    assert expired(deadlines, 1_000) == [1_000]
    assert expired(deadlines, 1_000_000) == []


def test_deadlines_keep_the_rest_of_a_bucket() -> None:
    first = 10 * BUCKET_MS
    deadlines, _ = watching(first, first + 1, first + BUCKET_MS - 1, first + BUCKET_MS)

    assert expired(deadlines, first) == [first]
    assert expired(deadlines, first + BUCKET_MS - 2) == [first + 1]
    assert expired(deadlines, first + BUCKET_MS) == [first + BUCKET_MS - 1, first + BUCKET_MS]


def test_deadlines_expire_oldest_bucket_first() -> None:
    deadlines, _ = watching(9_000, 1_000, 5_000)

    assert expired(deadlines, 10_000) == [1_000, 5_000, 9_000]


def test_deadlines_forget_what_was_removed() -> None:
    deadlines, (first, second) = watching(1_000, 1_001)
    deadlines.remove(first)
    deadlines.remove(first)

    assert expired(deadlines, 2_000) == [1_001]
    deadlines.remove(second)


def test_deadlines_take_new_jobs_into_a_bucket_that_had_emptied() -> None:
    deadlines, (first,) = watching(1_000)
    deadlines.remove(first)
    deadlines.add(record(1_010))

    assert expired(deadlines, 1_005) == []
    deadlines.add(record(1_009))
    assert sorted(expired(deadlines, 1_010)) == [1_009, 1_010]


def test_deadlines_move_a_job() -> None:
    deadlines, (only,) = watching(1_000)
    deadlines.move(only, 5_000)

    assert only.expires_ms == 5_000
    assert expired(deadlines, 4_999) == []
    assert expired(deadlines, 5_000) == [5_000]


def test_deadlines_say_when_to_look_again() -> None:
    deadlines, _ = watching(1_000, 9_000)

    due_ms = deadlines.next_ms()
    assert due_ms is not None
    assert 1_000 <= due_ms < 1_000 + BUCKET_MS
    assert expired(deadlines, due_ms) == [1_000]
    due_ms = deadlines.next_ms()
    assert due_ms is not None
    assert 9_000 <= due_ms < 9_000 + BUCKET_MS


def test_deadlines_say_nothing_when_nothing_is_watched() -> None:
    deadlines, (only,) = watching(1_000)
    deadlines.remove(only)

    assert deadlines.next_ms() is None
    assert Deadlines().next_ms() is None
