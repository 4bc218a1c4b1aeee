"""What a worker reports: the statuses of a job, built from what its handler did."""

from collections.abc import Sequence
from dataclasses import replace

from cape_stream.model.job import Job
from cape_stream.model.status import (
    ERROR_HEAD_CHARS_MAX,
    EventFailure,
    FailureClass,
    JobStatus,
    StatusKind,
)
from cape_stream.runtime.worker_handler import JobOutcome

ERROR_CHARS_PER_STATUS = 65_536
"""All error texts of one status together stay about below this, so that 10,000 failures still
fit one record."""


def result_status(job: Job, outcome: JobOutcome, queued_ms: int) -> JobStatus:
    """The job has ended with ``outcome``."""
    return JobStatus(
        job.job_id,
        job.domain,
        job.partition,
        job.subject,
        job.topology,
        job.lambda_id,
        job.epoch,
        job.attempt,
        StatusKind.RESULTS,
        outcome.done,
        outcome.outputs,
        bound_texts(outcome.failures),
        queued_ms,
    )


def bare_status(job: Job, kind: StatusKind, queued_ms: int) -> JobStatus:
    """A heartbeat, or the job handed back."""
    return JobStatus(
        job.job_id,
        job.domain,
        job.partition,
        job.subject,
        job.topology,
        job.lambda_id,
        job.epoch,
        job.attempt,
        kind,
        queued_ms=queued_ms,
    )


def failed_outcome(sequences: Sequence[int], failure_class: FailureClass, text: str) -> JobOutcome:
    """Every event has failed the same way."""
    error = text[:ERROR_HEAD_CHARS_MAX]
    return JobOutcome(
        (), failures=[EventFailure(sequence, failure_class, error) for sequence in sequences]
    )


def without_outputs(status: JobStatus, reason: str) -> JobStatus:
    """The report that takes the place of one the log refuses: what was done counts as failed."""
    error = f"the outputs of this job make its status too large, use a smaller max_batch: {reason}"
    refused = failed_outcome(status.done, FailureClass.PERMANENT, error)
    failures = sorted([*status.failures, *refused.failures], key=lambda each: each.sequence)
    return replace(status, done=(), outputs={}, failures=bound_texts(failures))


def bound_texts(failures: Sequence[EventFailure]) -> Sequence[EventFailure]:
    """Cut all texts but the first, if together they would be too long for a record."""
    if not failures:
        return failures
    chars_max = ERROR_CHARS_PER_STATUS // len(failures)
    if chars_max >= ERROR_HEAD_CHARS_MAX:
        return failures
    return [failures[0], *(replace(each, error=each.error[:chars_max]) for each in failures[1:])]
