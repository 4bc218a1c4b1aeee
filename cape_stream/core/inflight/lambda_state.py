"""What one lambda has done, has out, and has put aside, for one subject.

Invariant: every event up to ``high`` is done, in a job, or parked. So the cursor may move to the
newest done event below the oldest open one, whatever gaps the sequence ids have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cape_stream.core.job_ids import NO_JOB
from cape_stream.model.active_row import NEVER_MS
from cape_stream.model.sequence import NO_CURSOR, SEQUENCE_MAX

if TYPE_CHECKING:
    from cape_stream.core.inflight.subject import SubjectState
    from cape_stream.model.status import FailureClass


class JobRecord:
    """A job that is out."""

    __slots__ = (
        "attempt",
        "carried",
        "charged",
        "epoch",
        "expires_ms",
        "issued_ms",
        "job_id",
        "lambda_index",
        "sequences",
        "subject",
        "timeout_ms",
    )

    def __init__(
        self,
        job_id: str,
        subject: SubjectState,
        lambda_index: int,
        sequences: Sequence[int],
        attempt: int,
        charged: int,
        issued_ms: int,
        timeout_ms: int,
        carried: dict[int, Parked] | None = None,
        epoch: int = 0,
    ) -> None:
        self.job_id = job_id
        self.subject = subject
        self.lambda_index = lambda_index
        self.sequences = sequences
        """Events still open in it, ascending."""
        self.attempt = attempt
        self.charged = charged
        """Failures these events were charged with before this attempt."""
        self.carried = carried
        """What is remembered of the earlier attempts of these events; None on the first."""
        self.epoch = epoch
        """Of the owner that issued it; with ``attempt`` the fencing token of its handler."""
        self.timeout_ms = timeout_ms
        self.expires_ms = issued_ms + timeout_ms
        self.issued_ms = issued_ms

    def ceiling_ms(self) -> int:
        """Heartbeats never extend the expiry beyond this."""
        return self.issued_ms + self.timeout_ms * HEARTBEAT_CEILING


LAMBDA_OUTPUT_BYTES_MAX = 1_000_000
"""A lambda whose outputs take up so much gets nothing new for the subject before those it feeds
have done some of what they have: they are kept in the subject's row, which has to fit a record."""
OUTPUT_OVERHEAD_BYTES = 16
"""What an output takes up in a row beside itself."""

HEARTBEAT_CEILING = 20
"""A job may live this many timeouts by heartbeats, then it is given up all the same."""


class Parked:
    """An event put aside until a due time. It costs no in-flight slot."""

    __slots__ = (
        "attempts",
        "charged",
        "due_ms",
        "epoch",
        "failure_class",
        "first_error",
        "first_ms",
        "last_error",
        "last_ms",
    )

    def __init__(self, attempts: int, charged: int, due_ms: int) -> None:
        self.attempts = attempts
        """Attempts issued so far; the next job carries one more."""
        self.charged = charged
        """Of those, how many failed by the event's or handler's own fault."""
        self.epoch = 0
        """Of the owner that issued the last attempt; 0 before the first."""
        self.due_ms = due_ms
        self.failure_class: FailureClass | None = None
        """None: it did not fail, it was handed back or not reached."""
        self.first_error = ""
        self.last_error = ""
        self.first_ms = 0
        """When it first failed; 0 before."""
        self.last_ms = 0


_NO_JOBS: list[JobRecord] = []
_NO_DONE: set[int] = set()
_NO_PARKED: dict[int, Parked] = {}
_NO_OUTPUTS: dict[int, bytes] = {}


class LambdaState:
    """State of one lambda for one subject.

    Most of them come and go with nothing but a cursor and one job, so the collections are shared
    empty ones until they are needed; change them only through the methods here.
    """

    __slots__ = (
        "cursor",
        "done",
        "fence",
        "floor",
        "high",
        "jobs",
        "output_bytes",
        "outputs",
        "parked",
        "unsure_to",
    )

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        """Everything up to here is done."""
        self.high = cursor
        """Everything up to here is done, in `jobs`, or in `parked`."""
        self.unsure_to = NO_CURSOR
        """Events in (high, unsure_to] may be in `done`, `jobs` or `parked` already: set where
        the state was put together from a restart or from a stranger's report."""
        self.done = _NO_DONE
        """Done events beyond the cursor."""
        self.jobs = _NO_JOBS
        """Jobs that are out, ascending by first sequence id."""
        self.parked = _NO_PARKED
        self.fence = NO_JOB
        """Age of the newest job of before a rewind: what it and older ones report is void."""
        self.floor = 0
        """Attempts that a rewind has given up: those of what is issued anew are greater."""
        self.outputs = _NO_OUTPUTS
        """Outputs of done events that a later lambda still needs."""
        self.output_bytes = 0
        """What they take up in a row."""

    def is_due(self, now_ms: int) -> bool:
        """True if some parked event is due."""
        return any(parked.due_ms <= now_ms for parked in self.parked.values())

    def next_failed_due_ms(self, now_ms: int) -> int | None:
        """When the next of the events that have failed is tried again; None if none will be."""
        dues = (
            p.due_ms for p in self.parked.values() if p.charged and now_ms < p.due_ms < NEVER_MS
        )
        return min(dues, default=None)

    def is_plain(self) -> bool:
        """True if nothing is open: all up to ``high`` is done, nothing is known beyond, and there
        is room for outputs."""
        is_open = self.jobs or self.parked or self.done or self.unsure_to > self.high
        return not is_open and self.output_bytes < LAMBDA_OUTPUT_BYTES_MAX

    @property
    def is_full(self) -> bool:
        """True if there is no room for outputs of further events."""
        return self.output_bytes >= LAMBDA_OUTPUT_BYTES_MAX

    def outgrows_cursor(self) -> bool:
        """True if the cursor alone would lose something: done events beyond it, outputs, or what a
        rewind has given up."""
        return bool(self.done or self.outputs or self.floor or self.fence != NO_JOB)

    def has_done(self, sequence: int) -> bool:
        """True if this lambda has done the event."""
        return sequence <= self.cursor or sequence in self.done

    def add_job(self, record: JobRecord) -> None:
        """Register a job that is now out."""
        if not self.jobs:
            self.jobs = [record]
            return
        self.jobs.append(record)
        if self.jobs[-2].sequences[0] > record.sequences[0]:
            self.jobs.sort(key=_first_sequence)

    def remove_job(self, record: JobRecord) -> None:
        """A job is no longer out."""
        if len(self.jobs) == 1:
            self.jobs = _NO_JOBS
        else:
            self.jobs.remove(record)

    def shrink_job(self, record: JobRecord, sequence: int) -> None:
        """One of several events of a job is done by other means."""
        record.sequences = [other for other in record.sequences if other != sequence]
        self.jobs.sort(key=_first_sequence)

    def add_parked(self, sequence: int, parked: Parked) -> None:
        """Put an event aside."""
        if self.parked:
            self.parked[sequence] = parked
        else:
            self.parked = {sequence: parked}

    def remove_parked(self, sequence: int) -> Parked:
        """Take a parked event back."""
        parked = self.parked.pop(sequence)
        if not self.parked:
            self.parked = _NO_PARKED
        return parked

    def add_done(self, sequences: Iterable[int]) -> None:
        """Remember events beyond the cursor as done."""
        if self.done:
            self.done.update(sequences)
        else:
            self.done = set(sequences) or _NO_DONE

    def forget_done(self) -> None:
        """Nothing beyond the cursor is done."""
        self.done = _NO_DONE

    def keep_output(self, sequence: int, output: bytes) -> None:
        """Keep an output for the lambdas that take it."""
        self.output_bytes += output_bytes(output) - output_bytes(self.outputs.get(sequence))
        if self.outputs:
            self.outputs[sequence] = output
        else:
            self.outputs = {sequence: output}

    def drop_outputs(self, sequences: Iterable[int]) -> None:
        """Forget outputs that nobody needs any more."""
        for sequence in sequences:
            self.output_bytes -= output_bytes(self.outputs.pop(sequence))
        if not self.outputs:
            self.outputs = _NO_OUTPUTS

    def open_events(self) -> int:
        """Events beyond the cursor that this state has to remember, as a window counts them: more
        than any window has where there is no room for outputs."""
        if self.is_full:
            return SEQUENCE_MAX
        count = len(self.done) + len(self.parked)
        for job in self.jobs:
            count += len(job.sequences)
        return count

    def accounted(self) -> set[int]:
        """Every event beyond the cursor that is done, out, or parked."""
        seen = set(self.done)
        seen.update(self.parked)
        for job in self.jobs:
            seen.update(job.sequences)
        return seen

    def job_with(self, sequence: int) -> JobRecord | None:
        """The job that has the event, if one is out."""
        for job in self.jobs:
            if sequence in job.sequences:
                return job
        return None

    def settle(self, sequences: Iterable[int]) -> None:
        """Take ``sequences`` as done and move the cursor as far as nothing older is open."""
        if not self.jobs and not self.parked:
            if self.unsure_to <= self.high:
                self.cursor = self.high
                self.done = _NO_DONE
                return
            self.add_done(sequences)
            self._move_to(self.high)
            return
        self.add_done(sequences)
        oldest = self.high + 1
        if self.jobs:
            oldest = min(oldest, self.jobs[0].sequences[0])
        if self.parked:
            oldest = min(oldest, min(self.parked))
        self._move_to(oldest - 1)

    def _move_to(self, limit: int) -> None:
        """Move the cursor to the newest done event at or below ``limit``."""
        moved = [sequence for sequence in self.done if sequence <= limit]
        if moved:
            self.cursor = max(self.cursor, max(moved))
            self.done.difference_update(moved)
            if not self.done:
                self.done = _NO_DONE


def output_bytes(output: bytes | None) -> int:
    """What an output takes up in a row; 0 for none."""
    return 0 if output is None else len(output) + OUTPUT_OVERHEAD_BYTES


def _first_sequence(record: JobRecord) -> int:
    return record.sequences[0]
