"""Outputs that are too large for a record: they wait in a claim store and only a claim travels.

The first byte of an output says what it is: NUL that a user's bytes follow, `CLAIM` that the name
of a claim follows, anything else that it is JSON text, which begins with neither. The name is the
SHA-256 of the whole output, first byte included, so equal outputs share one claim, and what comes
back is held against it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from cape_stream.errors import Retry
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.status import ERROR_HEAD_CHARS_MAX, EventFailure, FailureClass
from cape_stream.ports.claims import ClaimStore
from cape_stream.runtime.worker_counters import WorkerCounters
from cape_stream.runtime.worker_handler import JobOutcome

CLAIM = b"\x01"

STATUS_OUTPUT_BYTES_MAX = 786_432
"""All outputs of one status together: three quarters of the log's 1 MiB, the rest is for errors and
ids. Where there is a store, the largest go there until the others fit."""

_NAME = re.compile(rb"[0-9a-f]{64}\Z")


class ClaimDesk:
    """What a worker does about claims; its slots share it.

    Args:
        store: where they are, None if there is none.
        output_bytes_max: most bytes of an output that travels itself.
    """

    def __init__(self, store: ClaimStore | None, output_bytes_max: int) -> None:
        self._store = store
        self._output_bytes_max = output_bytes_max

    def redeem(
        self, job: Job, stops_at_failure: bool, counters: WorkerCounters
    ) -> tuple[Job, list[EventFailure]]:
        """The job with what its claims stand for, without the events of which one cannot be had,
        and the failures of those (class ``transient``). Its events may be none.

        Args:
            job: as it came.
            stops_at_failure: nothing behind the first such event may run either.
            counters: of the slot.
        """
        if not any(event.inputs and _has_claim(event) for event in job.events):
            return job, []
        ready: list[Event] = []
        failures: list[EventFailure] = []
        away: Retry | None = None
        for event in job.events:
            try:
                if away is not None and _has_claim(event):
                    raise away
                ready.append(self._with_inputs(event, counters))
            except Retry as error:
                if not isinstance(error, _LostClaimError):
                    away = error
                counters.claims_missed += 1
                failures.append(_failure(event.sequence, error))
                if stops_at_failure:
                    break
        return replace(job, events=ready), failures

    def deposit(
        self, outcome: JobOutcome, stops_at_failure: bool, counters: WorkerCounters
    ) -> JobOutcome:
        """The outcome with claims for what is too large; an event of which the output has no place
        is not done: class ``invalid`` without a store, ``transient`` while the store is away."""
        large = self._too_large(outcome) if outcome.outputs else []
        if not large:
            return outcome
        outputs = dict(outcome.outputs)
        failures: dict[int, EventFailure] = {}
        away: Retry | None = None
        for sequence in large:
            output = outputs.pop(sequence)
            try:
                if away is not None:
                    raise away
                claim = self._keep(output)
            except Retry as error:
                away = error
                failures[sequence] = _failure(sequence, error)
            else:
                if claim is None:
                    failures[sequence] = self._refusal(sequence, len(output))
                else:
                    outputs[sequence] = claim
                    counters.claims_made += 1
        kept = replace(outcome, outputs=outputs)
        return _with_failures(kept, failures, stops_at_failure) if failures else kept

    def _too_large(self, outcome: JobOutcome) -> list[int]:
        """Events whose outputs cannot travel, ascending."""
        sizes = {sequence: len(output) for sequence, output in outcome.outputs.items()}
        large = [sequence for sequence, size in sizes.items() if size > self._output_bytes_max]
        if self._store is not None:
            small = sorted(sizes.keys() - set(large), key=lambda sequence: sizes[sequence])
            left = sum(sizes[sequence] for sequence in small)
            while left > STATUS_OUTPUT_BYTES_MAX:
                large.append(small.pop())
                left -= sizes[large[-1]]
        return sorted(large)

    def _keep(self, output: bytes) -> bytes | None:
        """The claim for an output; None if there is no store."""
        if self._store is None:
            return None
        name = sha256(output).hexdigest()
        self._store.put(name, output)
        return CLAIM + name.encode()

    def _refusal(self, sequence: int, size: int) -> EventFailure:
        reason = (
            f"an output of {size:,} bytes is over worker.output_bytes_max ="
            f" {self._output_bytes_max:,}: return less, or set worker.claims to a place for larger"
            " ones"
        )
        return EventFailure(sequence, FailureClass.INVALID, reason)

    def _with_inputs(self, event: Event, counters: WorkerCounters) -> Event:
        if not _has_claim(event):
            return event
        inputs = dict(event.inputs)
        for lambda_id, value in inputs.items():
            if value[:1] == CLAIM:
                inputs[lambda_id] = self._fetch(lambda_id, value[1:])
                counters.claims_redeemed += 1
        return replace(event, inputs=inputs)

    def _fetch(self, lambda_id: str, name: bytes) -> bytes:
        store, what = self._store, f"the output of {lambda_id!r}"
        if not _NAME.match(name):
            raise _LostClaimError(f"{what} is a claim without a name: {name[:80]!r}")
        if store is None:
            raise _LostClaimError(
                f"{what} is a claim and this worker has no place to look for it: set"
                " worker.claims as it is set where that lambda runs"
            )
        value = store.get(name.decode())
        if value is None:
            raise _LostClaimError(
                f"{what} is lost: claim {name[:16].decode()} is not in {store.place}; it was"
                " deleted too early, or worker.claims differs from where that lambda runs."
                " Rewinding the topology makes it again"
            )
        if sha256(value).hexdigest() != name.decode():
            raise _LostClaimError(
                f"{what} is damaged: claim {name[:16].decode()} in {store.place} is something else."
                " Delete it and rewind the topology, which makes it again"
            )
        return value


class _LostClaimError(Retry):
    """This claim cannot be had, which says nothing of the others."""


def _has_claim(event: Event) -> bool:
    return any(value[:1] == CLAIM for value in event.inputs.values())


def _failure(sequence: int, error: Retry) -> EventFailure:
    text = error.reason[:ERROR_HEAD_CHARS_MAX]
    return EventFailure(sequence, FailureClass.TRANSIENT, text, error.after_ms)


def with_missed(
    outcome: JobOutcome, job: Job, missed: Sequence[EventFailure], stops_at_failure: bool
) -> JobOutcome:
    """What became of the events that ran and of those that could not.

    Args:
        outcome: of the events that ran.
        job: those events.
        missed: failures of the others, from `ClaimDesk.redeem`.
        stops_at_failure: the others count as not reached if one before them was not done.
    """
    if not missed or (stops_at_failure and len(outcome.done) < len(job.events)):
        return outcome
    failures = sorted([*outcome.failures, *missed], key=lambda failure: failure.sequence)
    return replace(outcome, failures=failures)


def _with_failures(
    outcome: JobOutcome, failures: dict[int, EventFailure], stops_at_failure: bool
) -> JobOutcome:
    """The outcome where these events, which were done, have failed after all. What was done behind
    the first of them counts as not reached where the order matters: it has to be done again."""
    done = [sequence for sequence in outcome.done if sequence not in failures]
    merged = sorted([*outcome.failures, *failures.values()], key=lambda each: each.sequence)
    if stops_at_failure:
        first = min(failures)
        done = [sequence for sequence in done if sequence < first]
        merged = [failure for failure in merged if failure.sequence <= first]
    kept = set(done)
    outputs = {key: value for key, value in outcome.outputs.items() if key in kept}
    return replace(outcome, done=done, outputs=outputs, failures=merged)
