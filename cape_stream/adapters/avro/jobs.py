"""Jobs as bytes and back."""

from collections.abc import Callable, Sequence

from cape_stream.adapters.avro.events import add_events, plain_events, quick_events
from cape_stream.adapters.avro.fields import (
    LANE_OF,
    SUBJECT_SIZES,
    checked_attempt,
    checked_bytes,
    checked_count,
    checked_lane,
    checked_partition,
    checked_subject,
    checked_text,
    count_bytes,
    lane_bytes,
    subject_bytes,
    text_bytes,
)
from cape_stream.adapters.avro.framing import (
    HEADER_BYTES,
    STAMP_BYTES,
    Framing,
    read_stamp,
    remember,
)
from cape_stream.adapters.avro.registry import FileRegistry
from cape_stream.adapters.avro.wire import (
    END,
    INT32_MAX,
    NATURAL,
    NULL,
    POSITIVE,
    QUICK_MISSES,
    SOME,
    UnusualError,
    natural_bytes,
    quick_text,
    read_long,
    read_text,
)
from cape_stream.errors import Reject
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.subject import SUBJECT_BYTES_MAX

_VERSION = 1
_FINGERPRINT = "2ceb1dfabe3bd86330536d87743de9451102753eae9524d62b13df18fe5e4724"

_LAST = END + NULL
"""What follows the last event: the end of the array, and no token."""
_SIGNED = END + SOME
"""The same where a token follows."""

JobSigner = Callable[[Job], str]
"""Makes the token that a report on the job has to repeat where it comes by the gateway."""

_SHORT_SUBJECT_CHARS_MAX = SUBJECT_BYTES_MAX // 4
"""A text of so many characters surely is within a subject's bytes."""

_Origin = tuple[str, int, str, str, int, int, str]


class _Prefixes(dict[_Origin, bytes]):
    """The fields of a job that seldom change → header and those fields as bytes."""

    def __init__(self, header: bytes) -> None:
        super().__init__()
        self._header = header

    def __missing__(self, origin: _Origin) -> bytes:
        domain, partition, topology, lambda_id, epoch, timeout_ms, lane = origin
        prefix = b"".join(
            (
                self._header,
                text_bytes(domain, "domain"),
                text_bytes(topology, "topology"),
                text_bytes(lambda_id, "lambda_id"),
                count_bytes(partition, "partition", most=INT32_MAX),
                count_bytes(epoch, "epoch"),
                count_bytes(timeout_ms, "timeout_ms", least=1),
                lane_bytes(lane),
            )
        )
        remember(self, origin, prefix)
        return prefix


def _origin(job: Job) -> _Origin:
    return (
        job.domain,
        job.partition,
        job.topology,
        job.lambda_id,
        job.epoch,
        job.timeout_ms,
        job.lane,
    )


def _is_token(value: bytes, at: int) -> bool:
    """True if nothing but the end of the events and a token follows; the worker needs neither."""
    if value[at : at + len(_SIGNED)] != _SIGNED:
        return False
    token, end = quick_text(value, at + len(_SIGNED))
    return bool(token) and end == len(value)


class JobCodec:
    """The part of the codec for jobs."""

    def __init__(self, registry: FileRegistry, sign: JobSigner | None = None) -> None:
        self._job_sign = sign
        self._job_framing = Framing(registry, "job", _VERSION, _FINGERPRINT)
        self._job_prefixes = _Prefixes(self._job_framing.header)
        self._job_names: dict[bytes, tuple[str, str, str]] = {}
        """Header, domain, topology and lambda id as bytes → those three."""
        self._job_stamps: dict[bytes, int] = {}
        """Bytes of ``issued_ms`` seen → the number."""
        self._job_issued = (0, NATURAL[0])
        """The newest ``issued_ms`` and its bytes: all jobs of one step have the same."""
        self._job_batch: tuple[Sequence[Event], bytes] = ((), b"")
        """The newest events and their bytes: topologies that stand at one position share them."""

    def encode_job(self, job: Job) -> bytes:
        """Return a job as a record value. Raises Reject naming field and value."""
        try:
            issued_ms, issued = self._job_issued
            if job.issued_ms != issued_ms:
                issued = count_bytes(job.issued_ms, "issued_ms")
                self._job_issued = (job.issued_ms, issued)
            events, batch = self._job_batch
            subject = job.subject.encode()
            job_id = job.job_id.encode()
            parts = [
                self._job_prefixes[
                    job.domain,
                    job.partition,
                    job.topology,
                    job.lambda_id,
                    job.epoch,
                    job.timeout_ms,
                    job.lane,
                ],
                SUBJECT_SIZES[len(subject)],
                subject,
                POSITIVE[len(job_id)],
                job_id,
                POSITIVE[job.attempt],
                issued,
                batch if events is job.events else self._batch_bytes(job.events),
            ]
            if self._job_sign is not None:
                self._add_token(parts, job, self._job_sign)
            return b"".join(parts)
        except (AttributeError, TypeError, KeyError, UnicodeEncodeError):
            return self._plain_job_bytes(job)

    def _batch_bytes(self, events: Sequence[Event]) -> bytes:
        """What stands behind the fields of a job itself: its events, and no token."""
        parts = [POSITIVE[len(events)]]
        add_events(parts, events)
        parts.append(_LAST)
        batch = b"".join(parts)
        self._job_batch = events, batch
        return batch

    def _add_token(self, parts: list[bytes], job: Job, sign: JobSigner) -> None:
        """Put the job's token in the place of none, which the newest part ends with."""
        parts[-1] = parts[-1].removesuffix(NULL) + SOME
        parts.append(text_bytes(sign(job), "token"))

    def _plain_job_bytes(self, job: Job) -> bytes:
        """Write what the quick path has no table for, or say which field is wrong."""
        if not job.events:
            raise Reject("events is empty")
        for event in job.events:
            checked_bytes(event.payload, "payload")
        parts = [
            self._job_prefixes[_origin(job)],
            subject_bytes(job.subject),
            text_bytes(job.job_id, "job_id"),
            count_bytes(job.attempt, "attempt", least=1, most=INT32_MAX),
            count_bytes(job.issued_ms, "issued_ms"),
            natural_bytes(len(job.events)),
        ]
        add_events(parts, job.events)
        parts.append(_LAST)
        if self._job_sign is not None:
            self._add_token(parts, job, self._job_sign)
        return b"".join(parts)

    def decode_job(self, value: bytes | None, queue: str) -> Job:
        """Return the job of a record; ``queue`` is the one its topic names.

        Raises Reject with a short stable reason.
        """
        if value and value.startswith(self._job_framing.header):
            try:
                return self._quick_job(value, queue)
            except (KeyError, *QUICK_MISSES):
                pass  # the plain path reads it, or says what is wrong
        return self._plain_job(value, queue)

    def _quick_job(self, value: bytes, queue: str) -> Job:
        # Three hops over three names. Bytes that were read as these names before are these names,
        # so a length that needs two bytes merely leads to a miss.
        at = HEADER_BYTES + 1 + (value[HEADER_BYTES] >> 1)
        at += 1 + (value[at] >> 1)
        at += 1 + (value[at] >> 1)
        names = self._job_names.get(value[:at])
        if names is None:
            names, at = self._new_job_names(value)
        domain, topology, lambda_id = names
        partition, at = read_long(value, at)
        epoch, at = read_long(value, at)
        timeout_ms, at = read_long(value, at)
        lane = LANE_OF[value[at]]
        subject, at = quick_text(value, at + 1)
        job_id, at = quick_text(value, at)
        attempt, at = read_long(value, at)
        issued_ms = self._job_stamps.get(value[at : at + STAMP_BYTES])
        if issued_ms is None:
            issued_ms, at = read_stamp(self._job_stamps, value, at)
        else:
            at += STAMP_BYTES
        events, at = quick_events(value, at)
        if (
            (value[at:] != _LAST and not _is_token(value, at))
            or (partition | epoch | timeout_ms | attempt) < 0  # one of them is
            or not (timeout_ms and subject and job_id and attempt)
            or attempt > INT32_MAX
            or partition > INT32_MAX
            or len(subject) > _SHORT_SUBJECT_CHARS_MAX
        ):
            raise UnusualError
        return Job(
            job_id,
            domain,
            partition,
            subject,
            topology,
            lambda_id,
            queue,
            epoch,
            attempt,
            issued_ms,
            timeout_ms,
            events,
            lane,
        )

    def _new_job_names(self, value: bytes) -> tuple[tuple[str, str, str], int]:
        domain, at = read_text(value, HEADER_BYTES)
        topology, at = read_text(value, at)
        lambda_id, at = read_text(value, at)
        if not (domain and topology and lambda_id):
            raise UnusualError
        names = (domain, topology, lambda_id)
        remember(self._job_names, value[:at], names)
        return names, at

    def _plain_job(self, value: bytes | None, queue: str) -> Job:
        fields = self._job_framing.fields(value)
        return Job(
            checked_text(fields["job_id"], "job_id"),
            checked_text(fields["domain"], "domain"),
            checked_partition(fields["partition"]),
            checked_subject(fields["subject"]),
            checked_text(fields["topology"], "topology"),
            checked_text(fields["lambda_id"], "lambda_id"),
            queue,
            checked_count(fields["epoch"], "epoch"),
            checked_attempt(fields["attempt"]),
            checked_count(fields["issued_ms"], "issued_ms"),
            checked_count(fields["timeout_ms"], "timeout_ms", least=1),
            plain_events(fields["events"]),
            checked_lane(fields["lane"]),
        )
