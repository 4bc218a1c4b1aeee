"""How a handler says what went wrong, and what an exception it did not plan for means.

    exception raised by a handler                       failure class
    Transient, cape_stream.Retry, OSError, Fenced       transient
    Throttled                                           throttled
    TimeoutError                                        timeout
    Invalid, cape_stream.Reject                         invalid
    Permanent                                           permanent
    anything else                                       bug

A topology's retry policy decides by class what happens next; the default retries every class
for ever, with exponential backoff.
"""

from datetime import timedelta
from types import TracebackType

from cape_stream.errors import Fenced, Reject, Retry
from cape_stream.model.status import ERROR_HEAD_CHARS_MAX, EventFailure, FailureClass


class Transient(Retry):
    """It will work later without anybody's help, such as a database that restarts.

    Args:
        reason: what to wait for.
        retry_after: the earliest time of the next attempt, from now, as a timedelta or in
            seconds; None leaves it to the topology's retry policy.
    """

    def __init__(self, reason: str, *, retry_after: timedelta | float | None = None) -> None:
        super().__init__(reason, to_after_ms(retry_after))


class Throttled(Transient):
    """Somebody asked for fewer calls; give ``retry_after`` if they said how long."""

    def __init__(
        self, reason: str = "throttled", *, retry_after: timedelta | float | None = None
    ) -> None:
        super().__init__(reason, retry_after=retry_after)


class Invalid(Reject):
    """The event's own content is at fault: every attempt will give the same answer."""


class Permanent(Reject):
    """The event is fine, yet it can never be done, such as an account that was closed."""


class HandlerMisuseError(TypeError):
    """A handler did something the contract does not know; the text names the way out."""


def to_after_ms(after: timedelta | float | None) -> int | None:
    """Milliseconds of a wait given as a timedelta or in seconds, rounded up.

    Raises:
        ValueError: it is negative, or not a number.
    """
    if after is None:
        return None
    seconds = after.total_seconds() if isinstance(after, timedelta) else float(after)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"after must be a time >= 0, not {after!r}")
    return -int(-seconds * 1_000 // 1)


def to_failure_class(value: object) -> FailureClass:
    """The failure class that ``value`` names, else ValueError with the choices."""
    for choice in FailureClass:
        if value == choice:
            return choice
    raise ValueError(f"{value!r} is no failure class; choose one of {', '.join(FailureClass)}")


def classify(error: BaseException) -> FailureClass:
    """The failure class of an exception, by the table above."""
    match error:
        case Throttled():
            return FailureClass.THROTTLED
        case Permanent():
            return FailureClass.PERMANENT
        case TimeoutError():
            return FailureClass.TIMEOUT
        case Retry() | OSError() | Fenced():
            return FailureClass.TRANSIENT
        case Reject():
            return FailureClass.INVALID
    return FailureClass.BUG


def failure_of(error: BaseException, sequence: int, place: str) -> EventFailure:
    """The failure of one event that ``error`` ended.

    Args:
        error: what the handler raised.
        sequence: the event.
        place: file of the handler; the text names the line in it, unless it is empty.
    """
    text = f"{type(error).__name__}: {_text(error)}" + _where(error.__traceback__, place)
    after_ms = error.after_ms if isinstance(error, Retry) else None
    return EventFailure(sequence, classify(error), error_head(text), after_ms)


def error_head(text: object, chars_max: int = ERROR_HEAD_CHARS_MAX) -> str:
    """The part of an error text that travels: short, and valid UTF-8 whatever it was made of."""
    head = str(text)[:chars_max]
    return head.encode("utf-8", "backslashreplace").decode()[:chars_max]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a user's __str__ may fail as well as the handler did
        return "(its text cannot be read)"


def _where(trace: TracebackType | None, place: str) -> str:
    """Name the innermost line of the handler's own file, where the reader will look first."""
    line = 0
    while trace is not None and place:
        if trace.tb_frame.f_code.co_filename == place:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" ({place.rpartition('/')[2]}:{line})" if line else ""
