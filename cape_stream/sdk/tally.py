"""Counts up what a handler says about the events of one job, and judges what it left out."""

import logging
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cape_stream.model.job import Job
from cape_stream.model.status import EventFailure, FailureClass
from cape_stream.runtime.worker_handler import JobOutcome
from cape_stream.sdk.batch import Batch, Event, EventResult
from cape_stream.sdk.failures import HandlerMisuseError, classify, failure_of

LOG_INTERVAL_MS = 1_000
"""At most one log line per lambda and this long: a lambda may fail for a million subjects."""

NO_RESULT = "the handler ended without a result for this event"

_log = logging.getLogger("cape_stream.worker")
_logged_ms: dict[tuple[str, str], int] = {}


@dataclass(slots=True, frozen=True, kw_only=True)
class TallyRules:
    """What the declaration of a handler says about its results."""

    stops_at_failure: bool = False
    """Nothing may run after the first failing event: the topology is ordered."""
    keeps_outputs: bool = False
    """Another lambda takes this one's outputs; else they do not travel."""
    place: str = ""
    """File of the function, for error texts."""


class Tally:
    """Results of one job as they come in."""

    __slots__ = ("_batch", "_error", "_ignored", "_job", "_own", "_results", "_rules", "_stopped")

    def __init__(self, job: Job, batch: Batch, rules: TallyRules) -> None:
        self._job = job
        self._batch = batch
        self._rules = rules
        self._own: dict[int, Event] | None = None
        self._results: dict[int, EventResult] = {}
        self._ignored = 0
        self._stopped = False
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """The boundary of user code: whatever it raises, but for interrupts, is an outcome."""
        if not isinstance(error, Exception | SystemExit):
            return False
        self.crash(error)
        return True

    def add(self, result: object) -> bool:
        """Take one result; False means: run nothing more of this batch.

        Raises:
            HandlerMisuseError: it is no result.
        """
        if not isinstance(result, EventResult):
            raise HandlerMisuseError(
                f"the handler yielded {shorten(result)}: yield event.done(), event.retry() or"
                " event.fail() for each event"
            )
        if self._own is None:
            self._own = {event.sequence: event for event in self._batch.events}
        sequence = result.event.sequence
        if self._own.get(sequence) is not result.event:
            self._ignore(f"a result for event {sequence}, which is not of this batch, is ignored")
        elif sequence in self._results:
            self._ignore(f"a second result for event {sequence} is ignored, the first one counts")
        else:
            self._results[sequence] = result
            self._stopped = self._rules.stops_at_failure and result.failure is not None
        return not self._stopped

    def crash(self, error: BaseException) -> None:
        """The handler ended by ``error``: what has no result yet has failed that way.

        After a stop it was only its clean-up that raised, so there is nobody left to fail.
        """
        self._error = error
        if classify(error) is FailureClass.BUG:
            self.warn("the handler raised", error)

    def outcome(self) -> JobOutcome:
        """The sum; call it once, at the end."""
        done: list[int] = []
        outputs: dict[int, bytes] = {}
        failures: list[EventFailure] = []
        left: list[int] = []
        for event in self._job.events:
            result = self._results.get(event.sequence)
            if result is None:
                left.append(event.sequence)
            elif result.failure is not None:
                failures.append(result.failure)
            else:
                done.append(event.sequence)
                if result.output is not None and self._rules.keeps_outputs:
                    outputs[event.sequence] = result.output
        failures += self._failures_of(left)
        failures.sort(key=lambda failure: failure.sequence)
        return JobOutcome(done, outputs, failures, self._ignored)

    def _failures_of(self, left: list[int]) -> list[EventFailure]:
        """Failures of events without a result: none if the handler was stopped before them."""
        if not left or self._stopped:
            return []
        if self._error is None:
            return [EventFailure(sequence, FailureClass.BUG, NO_RESULT) for sequence in left]
        first = failure_of(self._error, left[0], self._rules.place)
        return [
            EventFailure(sequence, first.failure_class, first.error, first.retry_after_ms)
            for sequence in left
        ]

    def _ignore(self, what: str) -> None:
        self._ignored += 1
        self.warn(what)

    def warn(self, what: str, error: BaseException | None = None) -> None:
        """Tell people that the handler misbehaved, now and then."""
        job, now_ms = self._job, self._batch.clock.now_ms()
        key = (job.topology, job.lambda_id)
        if now_ms - _logged_ms.get(key, now_ms - LOG_INTERVAL_MS) < LOG_INTERVAL_MS:
            return
        _logged_ms[key] = now_ms
        _log.warning(
            "%s.%s, subject %r, job %s, attempt %d: %s",
            *(job.topology, job.lambda_id, job.subject, job.job_id, job.attempt, what),
            exc_info=error,
        )


def shorten(value: object) -> str:
    """Name a value in an error text, whatever it is."""
    return f"{type(value).__name__} {value!r}"[:120]
