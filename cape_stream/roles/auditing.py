"""`cape audit`: what a dispatcher has, held against where it comes from and where it goes.

The in-flight table and the rows are held against themselves by the engine's own thread
(`cape_stream.runtime.inspecting`). What stands here reads the changelog, the job topics and the
source beside it, so it takes its time without holding a job up. Everything it reads moves: what it
finds once may be a change on its way, what it finds twice alike is none.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple
from zlib import crc32

from cape_stream.core.auditing import Finding, Standing, audit_standing, furthest_cursor
from cape_stream.core.plan import DomainPlan
from cape_stream.core.rows import stored_cursors
from cape_stream.errors import CapeError, Corrupt, Reject, Retry
from cape_stream.model.subject import partition_of
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import Reader, TopicPartition
from cape_stream.ports.source import EventSource
from cape_stream.ports.table import Table
from cape_stream.roles.source_walk import subjects_of
from cape_stream.runtime.active_rows import decode_active_row
from cape_stream.runtime.dispatching import ACTIVE_PREFIX, ASLEEP_PREFIX, CURSOR_PREFIX

JOBS_MAX = 1_000
"""Most jobs told of in one job topic partition; where more wait in vain, the rest looks alike."""


class Ledger(NamedTuple):
    """The rows of one task, to read."""

    partition: int
    name: str
    table: Table


def against_changelog(
    reader: Reader, changelog: TopicPartition, ledger: Ledger
) -> Iterator[Finding]:
    """Rows that the next owner would not have, or would have otherwise."""
    kept: dict[bytes, tuple[int, int]] = {}
    low, high = reader.watermarks(changelog)
    for batch in reader.read(changelog, low, high):
        for _, _, offset, _, key, value in batch:
            if key is None:
                continue
            if value is None:
                kept.pop(key, None)
            else:
                kept[key] = offset, crc32(value)
    for key, value in ledger.table.scan(ledger.name, b""):
        told, here = kept.pop(key, None), crc32(value)
        if told is None:
            text = f"row {key!r} (crc {here:08x}) is in the table and not in the changelog"
        elif told[1] != here:
            text = (
                f"row {key!r} has crc {here:08x} in the table and {told[1]:08x} in the changelog,"
                f" offset {told[0]}"
            )
        else:
            continue
        yield Finding("impossible", _subject_of(key), text)
    for key, (offset, _) in kept.items():
        text = f"row {key!r} is in the changelog, offset {offset}, and not in the table"
        yield Finding("impossible", _subject_of(key), text)


def against_source(
    source: EventSource,
    standings: Mapping[str, Standing],
    owns: Callable[[str], bool],
) -> Iterator[Finding]:
    """Subjects that are not where their source is.

    Raises:
        Retry: the source does not answer.
    """
    newest: dict[str, int] = {}
    try:
        for subject, sequence in subjects_of(source):
            if owns(subject):
                newest[subject] = max(sequence, newest.get(subject, sequence))
    except CapeError:
        raise
    except Exception as error:
        raise Retry(f"the source does not tell its subjects: {error!r}") from error
    for subject, sequence in newest.items():
        finding = audit_standing(subject, standings.get(subject), sequence)
        if finding is not None:
            yield finding


def waiting_jobs(
    reader: Reader, codec: Codec, names: TopicNames, place: TopicPartition, domain: str
) -> Iterator[tuple[int, int, str, str]]:
    """(task's partition, offset, job id, subject) of the domain's jobs that nobody has taken; the
    queue may be that of other domains, too, whose tasks give out the same ids."""
    low, high = reader.watermarks(place)
    groups = (names.worker_group, names.publisher_group)
    taken = [reader.committed(group, place) for group in groups]
    start = max([low, *(offset for offset in taken if offset is not None)])
    for batch in reader.read(place, start, high) if start < high else ():
        for record in batch:
            try:
                job = codec.decode_job(record.value, names.queue_of(place.topic))
            except Reject:
                continue
            if job.domain == domain:
                yield job.partition, record.offset, job.job_id, job.subject


def standings_of(plan: DomainPlan, codec: Codec, ledger: Ledger) -> Iterator[tuple[str, Standing]]:
    """Where the rows of a task say that each subject stands."""
    for _, value in ledger.table.scan(ledger.name, CURSOR_PREFIX):
        try:
            info = codec.decode_cursors(value)
        except Reject as error:
            raise Corrupt(f"cursor row does not decode: {error.reason}") from error
        furthest = furthest_cursor(plan, info.cursors)
        yield info.subject, Standing(info.latest, furthest, is_active=False)
    for prefix in (ASLEEP_PREFIX, ACTIVE_PREFIX):
        for key, value in ledger.table.scan(ledger.name, prefix):
            if key == ACTIVE_PREFIX:
                continue
            row = decode_active_row(value)
            places = zip(plan.lambdas, stored_cursors(plan, row), strict=True)
            furthest = furthest_cursor(plan, {e.topology: cursor for e, cursor in places})
            yield row.subject, Standing(row.head, furthest, is_active=prefix == ACTIVE_PREFIX)


def _subject_of(key: bytes) -> str:
    """The subject in a row's key, as far as the key shows one."""
    known = (ACTIVE_PREFIX, ASLEEP_PREFIX, CURSOR_PREFIX)
    return key[1:].decode(errors="replace") if key[:1] in known else ""


class Auditor:
    """Audits the partitions of one domain that are with this process.

    Args:
        plan: of the domain.
        source: its source.
        codec: of all records.
        names: of all topics.
        partitions: of every topic.
    """

    def __init__(
        self,
        plan: DomainPlan,
        source: EventSource,
        codec: Codec,
        names: TopicNames,
        partitions: int,
    ) -> None:
        self._plan = plan
        self._source = source
        self._codec = codec
        self._names = names
        self._partitions = partitions

    def findings(
        self,
        reader: Reader,
        ledgers: list[Ledger],
        jobs_out: Callable[[], Mapping[int, set[str]]],
    ) -> Iterator[dict[str, Any]]:
        """Everything that is wrong, as fields.

        Args:
            reader: of the log.
            ledgers: the tasks that are here.
            jobs_out: tells, when called, the ids of all jobs that are out, by task.
        """
        owned = {ledger.partition for ledger in ledgers}
        if not owned:
            return
        standings: dict[str, Standing] = {}
        for ledger in ledgers:
            place = TopicPartition(self._names.changelog(self._plan.name), ledger.partition)
            for finding in against_changelog(reader, place, ledger):
                yield self._fields(ledger.partition, finding)
            standings |= dict(standings_of(self._plan, self._codec, ledger))

        def owns(subject: str) -> bool:
            return partition_of(subject.encode(), self._partitions) in owned

        for finding in against_source(self._source, standings, owns):
            partition = partition_of(finding.subject.encode(), self._partitions)
            yield self._fields(partition, finding)
        yield from self._queues(reader, owned, jobs_out)

    def _queues(
        self, reader: Reader, owned: set[int], jobs_out: Callable[[], Mapping[int, set[str]]]
    ) -> Iterator[dict[str, Any]]:
        """Jobs that wait in vain: read before it is asked what is out, for each was issued before
        it was written."""
        queues = sorted({entry.queue for entry in self._plan.lambdas})
        waiting: list[tuple[TopicPartition, int, int, str, str]] = []
        for topic in self._names.job_topics(queues):
            for number in range(self._partitions):
                place = TopicPartition(topic, number)
                found = waiting_jobs(reader, self._codec, self._names, place, self._plan.name)
                ours = (each for each in found if each[0] in owned)
                waiting += [(place, *each) for each in islice(ours, JOBS_MAX)]
        known = jobs_out()
        for place, partition, offset, job_id, subject in waiting:
            if job_id not in known.get(partition, {job_id}):
                text = (
                    f"job {job_id} waits in {place.topic}[{place.partition}], offset {offset}, and"
                    " nothing waits for it: it was given up"
                )
                yield self._fields(partition, Finding("leaked", subject, text))

    def _fields(self, partition: int, finding: Finding) -> dict[str, Any]:
        return {"domain": self._plan.name, "partition": partition, **finding._asdict()}
