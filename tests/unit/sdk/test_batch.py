from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cape_stream.model.event import Event as StoredEvent
from cape_stream.model.status import EventFailure, FailureClass
from cape_stream.sdk import Batch, HandlerMisuseError
from cape_stream.sdk.batch import Event, FencingToken
from tests.unit.sdk.apps import clock, job


def test_batch_tells_what_it_is() -> None:
    batch = Batch(job([4, 9], attempt=3, epoch=2), clock(), 1_030_000)

    assert (batch.domain, batch.subject, batch.topology) == ("flights", "N1", "delays")
    assert (batch.lambda_id, batch.job_id, batch.attempt) == ("work", "0-1-1", 3)
    assert [event.sequence for event in batch] == [4, 9]
    assert len(batch) == 2
    assert repr(batch) == ("Batch(delays.work, subject='N1', 2 events from 4, attempt=3)")


def test_batch_gives_the_same_events_every_time() -> None:
    batch = Batch(job(), clock(), 0)

    assert list(batch) == list(batch.events)
    assert next(iter(batch)) is batch.events[0]


def test_token_grows_with_the_attempt_and_first_of_all_with_the_owner() -> None:
    tokens = [
        Batch(job(epoch=epoch, attempt=attempt), clock(), 0).token
        for epoch, attempt in [(1, 1), (1, 2), (2, 1), (10, 1)]
    ]

    assert tokens == sorted(tokens)
    assert tokens[0] == FencingToken(epoch=1, attempt=1)


def test_deadline_is_what_is_left_of_the_timeout_by_a_steady_clock() -> None:
    time = clock()
    batch = Batch(job(), time, time.now_ms() + 30_000)

    full_ms = batch.remaining_ms
    time.sleep_ms(29_999)
    rest_ms = batch.remaining_ms
    time.sleep_ms(10)

    assert (full_ms, rest_ms, batch.remaining_ms) == (30_000, 1, 0)
    assert batch.deadline == datetime.fromtimestamp(1_030, UTC)


def test_event_gives_payload_headers_and_json() -> None:
    event = Event(StoredEvent(7, b'{"tail":"N1"}', {"trace": "t"}))

    assert (event.sequence, event.payload, event.headers) == (7, b'{"tail":"N1"}', {"trace": "t"})
    assert event.json() == {"tail": "N1"}
    assert repr(event) == "Event(sequence=7, payload=<13 bytes>)"
    with pytest.raises(ValueError, match="malformed"):
        Event(StoredEvent(7, b"\x00")).json()


def test_event_decodes_its_inputs() -> None:
    stored = StoredEvent(7, b"", inputs={"parse": b'{"late":5}', "raw": b"\x00\x01"})
    event = Event(stored, ("parse", "raw", "silent"))

    assert event.inputs == {"parse": {"late": 5}, "raw": b"\x01", "silent": None}
    assert Event(stored, ("parse",)).input == {"late": 5}
    assert Event(stored, ("silent",)).input is None


@pytest.mark.parametrize("input_ids", [(), ("a", "b")])
def test_event_input_needs_exactly_one(input_ids: tuple[str, ...]) -> None:
    event = Event(StoredEvent(7, b""), input_ids)

    with pytest.raises(HandlerMisuseError, match=f"one input, this one has {len(input_ids)}"):
        _ = event.input


def test_event_answers_done_retry_and_fail() -> None:
    event = Event(StoredEvent(7, b""))

    assert event.done().failure is None
    assert event.done().output is None
    assert event.done(output=None).output is None
    assert event.done(output=[1]).output == b"[1]"
    assert event.retry().failure == EventFailure(7, FailureClass.TRANSIENT)
    assert event.retry(timedelta(seconds=1), "busy").failure == EventFailure(
        7, FailureClass.TRANSIENT, "busy", 1_000
    )
    assert event.fail("invalid", "no tail number").failure == EventFailure(
        7, FailureClass.INVALID, "no tail number"
    )
    assert event.fail(FailureClass.THROTTLED, after=2).failure == EventFailure(
        7, FailureClass.THROTTLED, "", 2_000
    )


def test_event_refuses_an_unknown_class_and_names_the_choices() -> None:
    unknown: Any = "fatal"

    with pytest.raises(ValueError, match="'fatal' is no failure class; choose one of transient, "):
        Event(StoredEvent(7, b"")).fail(unknown)


def test_event_cuts_a_reason_that_is_no_short_text() -> None:
    reason: Any = ["no", "text"]

    failure = Event(StoredEvent(7, b"")).fail("bug", reason).failure
    long = Event(StoredEvent(7, b"")).retry(reason="x" * 999).failure

    assert failure is not None
    assert failure.error == "['no', 'text']"
    assert long is not None
    assert len(long.error) == 300
