"""What a handler gets: a batch of events of one subject, and how it answers for each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from cape_stream.model import event as stored
from cape_stream.model.job import Job
from cape_stream.model.status import EventFailure, FailureClass
from cape_stream.ports.clock import Clock
from cape_stream.sdk.failures import (
    HandlerMisuseError,
    error_head,
    to_after_ms,
    to_failure_class,
)
from cape_stream.sdk.outputs import decode_json, decode_output, encode_output

FailureName = Literal["transient", "throttled", "timeout", "invalid", "permanent", "bug"]


class FencingToken(NamedTuple):
    """Grows with every attempt at these events, over restarts and changes of owner too.

    Store it beside what the handler writes, and refuse a write whose token is smaller than the
    stored one: then an attempt that was given up cannot overwrite a newer one. Compare whole
    tokens: ``batch.token > row.token``.
    """

    epoch: int
    attempt: int


@dataclass(slots=True)
class EventResult:
    """The answer for one event; made by `Event.done`, `Event.retry` or `Event.fail`."""

    event: "Event"
    failure: EventFailure | None = None
    """None: the event is done."""
    output: bytes | None = None


class Event:
    """One event of a batch."""

    __slots__ = ("_input_ids", "_stored")

    def __init__(self, stored_event: stored.Event, input_ids: tuple[str, ...] = ()) -> None:
        self._stored = stored_event
        self._input_ids = input_ids

    def __repr__(self) -> str:
        return f"Event(sequence={self.sequence}, payload=<{len(self.payload)} bytes>)"

    @property
    def sequence(self) -> int:
        """Position within the subject; with the subject it names the event for ever."""
        return self._stored.sequence

    @property
    def payload(self) -> bytes:
        """The source's own bytes."""
        return self._stored.payload

    @property
    def headers(self) -> Mapping[str, str]:
        """Small text attributes from the source."""
        return self._stored.headers

    def json(self) -> Any:
        """The payload as JSON; raises ValueError (class ``bug``) where it is not."""
        return decode_json(self._stored.payload)

    @property
    def input(self) -> Any:
        """Output of the one lambda this handler takes inputs from; None if it gave none.

        Raises:
            HandlerMisuseError: the handler has no inputs, or several: use `inputs`.
        """
        if len(self._input_ids) != 1:
            raise HandlerMisuseError(
                f"event.input needs a handler with one input, this one has"
                f" {len(self._input_ids)}: declare inputs=..., or read event.inputs"
            )
        return decode_output(self._stored.inputs.get(self._input_ids[0]))

    @property
    def inputs(self) -> dict[str, Any]:
        """Output per lambda this handler takes inputs from; None for one that gave none."""
        return {name: decode_output(self._stored.inputs.get(name)) for name in self._input_ids}

    def done(self, output: object = None) -> EventResult:
        """This event is done.

        Args:
            output: what the lambdas that take this one's outputs get: bytes, or anything JSON
                can hold. None, or no lambda that takes it: nothing travels.
        """
        if output is None:
            return EventResult(self)
        return EventResult(self, None, encode_output(output))

    def retry(self, after: timedelta | float | None = None, reason: str = "") -> EventResult:
        """This event is not done: try it again (class ``transient``).

        Args:
            after: the earliest next attempt from now, a timedelta or seconds, >= 0; None
                leaves it to the topology's retry policy.
            reason: for people, first 300 characters.
        """
        return self.fail(FailureClass.TRANSIENT, reason, after=after)

    def fail(
        self,
        failure_class: FailureClass | FailureName,
        reason: str = "",
        *,
        after: timedelta | float | None = None,
    ) -> EventResult:
        """This event has failed, with the class that decides what happens next.

        Args:
            failure_class: ``transient``, ``throttled``, ``timeout``, ``invalid``, ``permanent``
                or ``bug``.
            reason: for people, first 300 characters.
            after: as in `retry`.
        """
        return EventResult(
            self,
            EventFailure(
                self._stored.sequence,
                to_failure_class(failure_class),
                error_head(reason),
                to_after_ms(after),
            ),
        )


class Batch:
    """Events of one subject for one lambda, ascending by sequence id; iterate over it."""

    __slots__ = ("_deadline_ms", "_events", "_input_ids", "_job", "clock")

    def __init__(
        self, job: Job, clock: Clock, deadline_ms: int, input_ids: tuple[str, ...] = ()
    ) -> None:
        """``deadline_ms``: by ``clock``; ``input_ids``: lambdas whose outputs the events carry."""
        self._job = job
        self.clock = clock
        """The steady clock `remaining_ms` is measured by."""
        self._deadline_ms = deadline_ms
        self._input_ids = input_ids
        self._events: tuple[Event, ...] | None = None

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self._job.events)

    def __repr__(self) -> str:
        job = self._job
        return (
            f"Batch({job.topology}.{job.lambda_id}, subject={job.subject!r}, "
            f"{len(job.events)} events from {job.events[0].sequence}, attempt={job.attempt})"
        )

    @property
    def events(self) -> tuple[Event, ...]:
        """The events, never empty."""
        if self._events is None:
            self._events = tuple([Event(each, self._input_ids) for each in self._job.events])
        return self._events

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
    def lambda_id(self) -> str:
        """Name of the lambda."""
        return self._job.lambda_id

    @property
    def job_id(self) -> str:
        """For log lines; another attempt has another one."""
        return self._job.job_id

    @property
    def attempt(self) -> int:
        """1 for the first delivery of these events to this lambda, then growing."""
        return self._job.attempt

    @property
    def token(self) -> FencingToken:
        """Fencing token for the handler's own writes."""
        return FencingToken(self._job.epoch, self._job.attempt)

    @property
    def age_ms(self) -> int:
        """Milliseconds since the dispatcher issued the job, by both processes' clocks; >= 0."""
        return max(0, self.clock.now_ms() - self._job.issued_ms)

    @property
    def deadline(self) -> datetime:
        """When the attempt is given up and retried, in UTC. Heartbeats may extend it."""
        return datetime.fromtimestamp(self._deadline_ms / 1_000, UTC)

    @property
    def remaining_ms(self) -> int:
        """Milliseconds left until `deadline`, by a steady clock; 0 when it is over."""
        return max(0, self._deadline_ms - self.clock.now_ms())
