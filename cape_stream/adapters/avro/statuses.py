"""Job statuses as bytes and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from cape_stream.adapters.avro.fields import (
    SUBJECT_SIZES,
    checked_attempt,
    checked_count,
    checked_key,
    checked_partition,
    checked_sequence,
    checked_subject,
    checked_text,
    count_bytes,
    subject_bytes,
    text_bytes,
)
from cape_stream.adapters.avro.framing import Framing, remember
from cape_stream.adapters.avro.registry import FileRegistry
from cape_stream.adapters.avro.results import (
    LAST,
    NO_FAILURES,
    ONE,
    add_failures,
    add_outputs,
    add_sequences,
    plain_failure,
    plain_outputs,
    quick_results,
)
from cape_stream.adapters.avro.wire import (
    END,
    INT32_MAX,
    NATURAL,
    NULL,
    POSITIVE,
    QUICK_MISSES,
    SIGNS,
    UnusualError,
    read_long,
    read_natural,
)
from cape_stream.errors import Reject
from cape_stream.model.status import (
    NO_OUTPUTS,
    JobStatus,
    StatusKind,
)

_VERSION = 1
_FINGERPRINT = "5a41c76c997606b3ee209a2f80ac8488814ccaa5182ffdc5e4000458401b0b5a"

_KINDS = tuple(StatusKind)
"""In the order of the schema's symbols."""
_KIND_BYTES = {kind: NATURAL[index] for index, kind in enumerate(_KINDS)}

_DONE_LAST = END + LAST
"""The end of a list of done events, and nothing else."""

_Origin = tuple[str, str, str, int, int, StatusKind]


class _Prefixes(dict[_Origin, bytes]):
    """The fields of a status that seldom change → header and those fields as bytes."""

    def __init__(self, header: bytes) -> None:
        super().__init__()
        self._header = header

    def __missing__(self, origin: _Origin) -> bytes:
        domain, topology, lambda_id, partition, epoch, kind = origin
        if kind not in _KIND_BYTES:
            raise Reject(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
        prefix = b"".join(
            (
                self._header,
                text_bytes(domain, "domain"),
                text_bytes(topology, "topology"),
                text_bytes(lambda_id, "lambda_id"),
                count_bytes(partition, "partition", most=INT32_MAX),
                count_bytes(epoch, "epoch"),
                _KIND_BYTES[kind],
            )
        )
        remember(self, origin, prefix)
        return prefix


class StatusCodec:
    """The part of the codec for job statuses."""

    def __init__(self, registry: FileRegistry) -> None:
        self._status_framing = Framing(registry, "job_status", _VERSION, _FINGERPRINT)
        self._status_prefixes = _Prefixes(self._status_framing.header)
        self._status_origins: dict[bytes, _Origin] = {}
        """The same the other way round."""

    def encode_status(self, status: JobStatus) -> bytes:
        """Return a status as a record value. Raises Reject naming field and value."""
        try:
            subject = status.subject.encode()
            job_id = status.job_id.encode()
            parts = [
                self._status_prefixes[
                    status.domain,
                    status.topology,
                    status.lambda_id,
                    status.partition,
                    status.epoch,
                    status.kind,
                ],
                SUBJECT_SIZES[len(subject)],
                subject,
                POSITIVE[len(job_id)],
                job_id,
                POSITIVE[status.attempt],
                POSITIVE.get(status.queued_ms) or count_bytes(status.queued_ms, "queued_ms"),
            ]
        except (AttributeError, TypeError, KeyError, UnicodeEncodeError):
            parts = self._plain_status_parts(status)
        if status.done:
            add_sequences(parts, status.done)
        if status.outputs or status.failures:
            parts.append(END)
            add_outputs(parts, status.outputs)
            add_failures(parts, status.failures)
            parts.append(NULL)
        else:
            parts.append(_DONE_LAST)
        return b"".join(parts)

    def _plain_status_parts(self, status: JobStatus) -> list[bytes]:
        """Write what the quick path has no table for, or say which field is wrong."""
        return [
            self._status_prefixes[
                status.domain,
                status.topology,
                status.lambda_id,
                status.partition,
                status.epoch,
                status.kind,
            ],
            subject_bytes(status.subject),
            text_bytes(status.job_id, "job_id"),
            count_bytes(status.attempt, "attempt", least=1, most=INT32_MAX),
            count_bytes(status.queued_ms, "queued_ms"),
        ]

    def decode_status(self, key: bytes | None, value: bytes | None) -> JobStatus:
        """Return the status of a record. Raises Reject with a short stable reason."""
        if key and value:
            try:
                # With the key we know the subject's bytes, so we know where they are; and bytes
                # that stood before a subject once mean the same whenever they stand there again.
                head = SUBJECT_SIZES[len(key)] + key
                at = value.index(head)
                domain, topology, lambda_id, partition, epoch, kind = self._status_origins[
                    value[:at]
                ]
                at += len(head)
                size = value[at]
                end = at + 1 + (size >> 1)
                attempt = value[end]
                if (size | attempt) & SIGNS or not (size and attempt):
                    raise UnusualError
                job_id = value[at + 1 : end].decode()
                queued_ms = value[end + 1]
                if queued_ms & SIGNS:
                    queued_ms, at = read_natural(value, end + 1)
                else:
                    queued_ms, at = queued_ms >> 1, end + 2
                done: Sequence[int]
                # Most statuses are of one event that is done: no lists to go through.
                sequence, end = read_long(value, at + 1)
                if value[at] == ONE and value[end:] == _DONE_LAST and sequence >= 0:
                    done, outputs, failures = (sequence,), NO_OUTPUTS, NO_FAILURES
                else:
                    done, outputs, failures = quick_results(value, at)
                return JobStatus(
                    job_id,
                    domain,
                    partition,
                    key.decode(),
                    topology,
                    lambda_id,
                    epoch,
                    attempt >> 1,
                    kind,
                    done,
                    outputs,
                    failures,
                    queued_ms,
                )
            except (KeyError, ValueError, *QUICK_MISSES):
                pass  # the plain path reads it, or says what is wrong
        return self._plain_status(key, value)

    def decode_signed_status(self, value: bytes) -> tuple[JobStatus, str | None]:
        """Return a status and the token of its job. Raises Reject with a short stable reason."""
        fields = self._status_framing.fields(value)
        return self._status_of(fields), fields["token"]

    def _plain_status(self, key: bytes | None, value: bytes | None) -> JobStatus:
        status = self._status_of(self._status_framing.fields(value))
        checked_key(key, status.subject)
        return status

    def _status_of(self, fields: Mapping[str, Any]) -> JobStatus:
        status = JobStatus(
            checked_text(fields["job_id"], "job_id"),
            checked_text(fields["domain"], "domain"),
            checked_partition(fields["partition"]),
            checked_subject(fields["subject"]),
            checked_text(fields["topology"], "topology"),
            checked_text(fields["lambda_id"], "lambda_id"),
            checked_count(fields["epoch"], "epoch"),
            checked_attempt(fields["attempt"]),
            StatusKind(fields["kind"]),
            tuple(checked_sequence(each, "done") for each in fields["done"]),
            plain_outputs(fields["outputs"]),
            tuple(plain_failure(each) for each in fields["failures"]),
            checked_count(fields["queued_ms"], "queued_ms"),
        )
        origin = _origin(status)
        remember(self._status_origins, self._status_prefixes[origin], origin)
        return status


def _origin(status: JobStatus) -> _Origin:
    return (
        status.domain,
        status.topology,
        status.lambda_id,
        status.partition,
        status.epoch,
        status.kind,
    )
