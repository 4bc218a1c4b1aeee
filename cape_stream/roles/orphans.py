"""Jobs that a killed process had begun: given back at once instead of after their timeout.

For the embedded log only, which one process holds: whoever opens it knows that nobody else is at
work, so a job that was taken and never reported has no worker any more. (With Kafka a worker may
be alive and out of sight, and only the timeout may decide.) A handler that was killed in the
middle is run again, as after every crash; its effects must be idempotent or fenced anyway.
"""

from collections.abc import Iterator, Sequence

from cape_stream.errors import Reject
from cape_stream.model.job import Job
from cape_stream.model.status import StatusKind
from cape_stream.ports.log import Reader, Record, TopicPartition, Watermarks
from cape_stream.roles.backends import Backend
from cape_stream.runtime.worker_status import bare_status
from cape_stream.sdk.app import App

TAIL_RECORDS_MAX = 2_000
"""So far back, per partition, jobs and reports are looked at; an older job waits for its timeout.
A process has as many jobs begun as it has slots, and those it took last."""
POLLS_MAX = 10
FLUSH_MS = 10_000


class Positions:
    """Learns where a group stands, as a member that takes nothing. A `MemberListener`."""

    def __init__(self) -> None:
        self.partitions: list[TopicPartition] = []

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""
        self.partitions += partitions

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        """See `MemberListener`."""


def hand_back_orphans(app: App, backend: Backend) -> int:
    """Report every job that was taken and not reported as handed back; how many.

    Call it before anybody works on the log.
    """
    names, codec = app.topic_names, backend.codec
    reader, producer = backend.log.reader(), backend.log.producer()
    try:
        jobs = _taken(app, backend, reader)
        reported = _reported(app, backend, reader) if jobs else set()
        orphans = [job for job in jobs if job.job_id not in reported]
        for job in orphans:
            status = bare_status(job, StatusKind.HANDED_BACK, 0)
            key, topic = job.subject.encode(), names.statuses(job.domain)
            producer.send(topic, job.partition, key, codec.encode_status(status))
        producer.flush(FLUSH_MS)
        return len(orphans)
    finally:
        producer.close()
        reader.close()


def _taken(app: App, backend: Backend, reader: Reader) -> list[Job]:
    """Jobs below the workers' committed offsets, the newest of each partition."""
    names = app.topic_names
    listener = Positions()
    member = backend.log.member(names.worker_group, names.job_topics(app.queues), listener)
    try:
        for _ in range(POLLS_MAX):
            member.poll(1, 0)
        ends = {each: member.position(each) or 0 for each in listener.partitions}
    finally:
        member.close()
    jobs = []
    for partition, end in ends.items():
        for record in _tail(reader, partition, end):
            try:
                jobs.append(backend.codec.decode_job(record.value, names.queue_of(record.topic)))
            except Reject:
                continue
    return [job for job in jobs if job.domain in app.domains]


def _reported(app: App, backend: Backend, reader: Reader) -> set[str]:
    """Ids of the jobs that ended according to the newest reports of each partition."""
    found = set()
    for domain in app.domains:
        for number in range(app.partitions):
            partition = TopicPartition(app.topic_names.statuses(domain), number)
            for record in _tail(reader, partition, reader.watermarks(partition).high):
                try:
                    status = backend.codec.decode_status(record.key, record.value)
                except Reject:
                    continue
                if status.kind is not StatusKind.HEARTBEAT:
                    found.add(status.job_id)
    return found


def _tail(reader: Reader, partition: TopicPartition, end: int) -> Iterator[Record]:
    start = max(reader.watermarks(partition).low, end - TAIL_RECORDS_MAX)
    for records in reader.read(partition, start, end):
        yield from records
