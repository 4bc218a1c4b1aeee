import asyncio
import socket
from datetime import timedelta

import pytest

from cape_stream.errors import Corrupt, Fatal, Fenced, Reject, Retry
from cape_stream.model.status import FailureClass
from cape_stream.sdk import HandlerMisuseError, Invalid, Permanent, Throttled, Transient
from cape_stream.sdk.failures import classify, error_head, failure_of, to_after_ms


class LocalRetry(Transient):
    pass


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Transient("w"), FailureClass.TRANSIENT),
        (LocalRetry("w"), FailureClass.TRANSIENT),
        (Retry("w"), FailureClass.TRANSIENT),
        (Fenced("a newer attempt wrote"), FailureClass.TRANSIENT),
        (ConnectionResetError(), FailureClass.TRANSIENT),
        (OSError("disk"), FailureClass.TRANSIENT),
        (socket.gaierror(), FailureClass.TRANSIENT),
        (Throttled(), FailureClass.THROTTLED),
        (TimeoutError(), FailureClass.TIMEOUT),
        (Invalid("w"), FailureClass.INVALID),
        (Reject("w"), FailureClass.INVALID),
        (Permanent("w"), FailureClass.PERMANENT),
        (KeyError("tail"), FailureClass.BUG),
        (HandlerMisuseError("w"), FailureClass.BUG),
        (Corrupt("w"), FailureClass.BUG),
        (Fatal("w"), FailureClass.BUG),
        (SystemExit(1), FailureClass.BUG),
        (asyncio.CancelledError(), FailureClass.BUG),
    ],
)
def test_classify_goes_by_what_helps(error: BaseException, expected: FailureClass) -> None:
    assert classify(error) is expected


@pytest.mark.parametrize(
    ("after", "expected_ms"),
    [
        (None, None),
        (0, 0),
        (1.5, 1_500),
        (timedelta(seconds=2), 2_000),
        (timedelta(microseconds=1), 1),
        (0.0001, 1),
    ],
)
def test_after_is_seconds_or_a_timedelta_and_never_shorter_than_said(
    after: timedelta | float | None, expected_ms: int | None
) -> None:
    assert to_after_ms(after) == expected_ms


@pytest.mark.parametrize("after", [-1, timedelta(seconds=-1), float("nan"), float("inf")])
def test_after_refuses_what_is_no_wait(after: timedelta | float) -> None:
    with pytest.raises(ValueError, match="after must be a time >= 0"):
        to_after_ms(after)
    with pytest.raises(ValueError, match="after must be a time >= 0"):
        Throttled(retry_after=after)


def test_failure_carries_the_wait_its_exception_asks_for() -> None:
    failure = failure_of(Throttled(retry_after=timedelta(seconds=3)), 7, "")

    assert (failure.sequence, failure.retry_after_ms) == (7, 3_000)
    assert failure_of(Retry("soon", after_ms=5), 7, "").retry_after_ms == 5
    assert failure_of(Reject("never"), 7, "").retry_after_ms is None


def test_failure_names_the_line_of_the_handlers_file() -> None:
    def fail() -> None:
        raise ValueError("no tail number")

    try:
        fail()
    except ValueError as error:
        failure = failure_of(error, 1, __file__)
        elsewhere = failure_of(error, 1, "/somewhere/else.py")

    line = fail.__code__.co_firstlineno + 1
    assert failure.error == f"ValueError: no tail number (test_failures.py:{line})"
    assert elsewhere.error == "ValueError: no tail number"


def test_error_text_is_short_valid_and_there_whatever_the_exception_does() -> None:
    assert error_head("x" * 301) == "x" * 300
    assert error_head("lone \udcff surrogate") == "lone \\udcff surrogate"
    assert len(error_head("\udcff" * 300)) == 300
    assert failure_of(UnreadableError(), 1, "").error == (
        "UnreadableError: (its text cannot be read)"
    )
