"""A job in the hands of a test: look at it, answer it as a worker would, or let its handler run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.status import EventFailure, FailureClass, JobStatus, StatusKind
from cape_stream.runtime.worker_handler import JobOutcome
from cape_stream.runtime.worker_status import bare_status, result_status
from cape_stream.sdk.batch import FailureName
from cape_stream.sdk.failures import to_after_ms, to_failure_class
from cape_stream.sdk.outputs import encode_output


class DriverMisuseError(ValueError):
    """A driver was asked for something that is not there; the text names what is."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One execution of a handler."""

    at_ms: int
    """Virtual time, Unix milliseconds."""
    domain: str
    subject: str
    topology: str
    handler: str
    attempt: int
    sequences: tuple[int, ...]
    """Events it was given."""
    done: tuple[int, ...]
    failed: Mapping[int, FailureClass]


@dataclass(slots=True)
class JobDesk:
    """What a driven job needs of its driver."""

    report: Callable[[JobStatus], None]
    """Puts a report into the log and lets the dispatcher read it."""
    is_out: Callable[[str], bool]
    execute: Callable[[DrivenJob], JobOutcome]
    """Runs the App's handler."""


class DrivenJob:
    """One job as a worker gets it. Answer it, or not: what is never answered times out."""

    __slots__ = ("_desk", "_job", "taken")

    def __init__(self, job: Job, desk: JobDesk) -> None:
        self._job = job
        self._desk = desk
        self.taken = False
        """True once it was answered or its handler ran; `CapeDriver.run` leaves it alone then."""

    def __repr__(self) -> str:
        return (
            f"DrivenJob({self.topology}.{self.handler}, subject={self.subject!r},"
            f" sequences={list(self.sequences)}, attempt={self.attempt})"
        )

    @property
    def stored(self) -> Job:
        """The job itself, as it stands on the wire."""
        return self._job

    @property
    def job_id(self) -> str:
        """Another attempt at the same events has another one."""
        return self._job.job_id

    @property
    def domain(self) -> str:
        """Name of the domain."""
        return self._job.domain

    @property
    def subject(self) -> str:
        """Whose events these are."""
        return self._job.subject

    @property
    def topology(self) -> str:
        """Name of the topology."""
        return self._job.topology

    @property
    def handler(self) -> str:
        """Name of the handler it is for."""
        return self._job.lambda_id

    @property
    def attempt(self) -> int:
        """1 for the first delivery of these events, then growing."""
        return self._job.attempt

    @property
    def events(self) -> Sequence[Event]:
        """The events with payloads, ascending, never empty."""
        return self._job.events

    @property
    def sequences(self) -> tuple[int, ...]:
        """Their sequence ids."""
        return tuple(event.sequence for event in self._job.events)

    @property
    def is_out(self) -> bool:
        """True while the dispatcher waits for a report on it."""
        return self._desk.is_out(self.job_id)

    # --- answers -------------------------------------------------------------------------------

    def done(self, outputs: Mapping[int, object] | None = None) -> None:
        """Report that every event is done. Twice is a duplicate; after its timeout it is late.

        Args:
            outputs: sequence id → what the handlers that take this one's outputs get.
        """
        self.answer(done=self.sequences, outputs=outputs)

    def fail(
        self,
        failure_class: FailureClass | FailureName = "transient",
        reason: str = "",
        *,
        after: timedelta | float | None = None,
    ) -> None:
        """Report that every event has failed that way; see `answer` for some of them.

        Args:
            failure_class: decides what happens next, see the handlers' page.
            reason: for people.
            after: the earliest next attempt from now, a timedelta or seconds.
        """
        failed = dict.fromkeys(self.sequences, to_failure_class(failure_class))
        self.answer(failed=failed, reason=reason, after=after)

    def answer(
        self,
        done: Sequence[int] = (),
        failed: Mapping[int, FailureClass | FailureName] | None = None,
        *,
        outputs: Mapping[int, object] | None = None,
        reason: str = "",
        after: timedelta | float | None = None,
    ) -> None:
        """Report event by event; an event in neither was not reached, and is issued again.

        Args:
            done: sequence ids that succeeded.
            failed: sequence id → failure class.
            outputs: as in `done`.
            reason: of all failures.
            after: as in `fail`.

        Raises:
            DriverMisuseError: a sequence id is not of this job.
        """
        failed, outputs = failed or {}, outputs or {}
        own = self.sequences
        strangers = sorted({*done, *failed, *outputs} - set(own))
        if strangers:
            raise DriverMisuseError(
                f"events {strangers} are not of this job, which has {list(own)}"
            )
        after_ms = to_after_ms(after)
        self._report(
            result_status(
                self._job,
                JobOutcome(
                    sorted(done),
                    {each: encode_output(value) for each, value in outputs.items()},
                    [
                        EventFailure(each, to_failure_class(failed[each]), reason, after_ms)
                        for each in sorted(failed)
                    ],
                ),
                0,
            )
        )

    def heartbeat(self) -> None:
        """Report that it is still being worked on: its timeout begins anew."""
        self._desk.report(bare_status(self._job, StatusKind.HEARTBEAT, 0))

    def hand_back(self) -> None:
        """Report that the worker stops before it is done: it is issued anew, at no charge."""
        self._report(bare_status(self._job, StatusKind.HANDED_BACK, 0))

    def run(self) -> JobOutcome:
        """Let the App's handler work on it, and report what came of it."""
        outcome = self._desk.execute(self)
        self._report(result_status(self._job, outcome, 0))
        return outcome

    def _report(self, status: JobStatus) -> None:
        self.taken = True
        self._desk.report(status)
