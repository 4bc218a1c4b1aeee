"""What happened in a world, written down where it happened; checks read it afterwards.

Three things only: what handlers were given and what they made of it, when events were published,
and what the changelogs hold. Nothing here comes from inside a dispatcher.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cape_stream.adapters.simulated import Broker, Timeline
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.ports.log import TopicPartition


class Place(NamedTuple):
    """One lambda for one subject."""

    domain: str
    subject: str
    topology: str
    lambda_id: str

    @property
    def name(self) -> str:
        """As it stands in traces."""
        return f"{self.domain}/{self.subject} {self.topology}.{self.lambda_id}"


class Moment(NamedTuple):
    """When something happened; moments of one millisecond differ by their order."""

    order: int
    ms: int


@dataclass(slots=True)
class Execution:
    """One event in a handler's hands, once."""

    place: Place
    sequence: int
    job_id: str
    epoch: int
    attempt: int
    worker: str
    began: Moment
    payload: bytes
    inputs: Mapping[str, bytes]
    ended: Moment | None = None
    """None while it runs; also set when its worker dies."""
    succeeded: bool = False
    output: bytes = b""

    @property
    def token(self) -> tuple[int, int]:
        """The fencing token its handler had."""
        return self.epoch, self.attempt


class CommittedRow(NamedTuple):
    """One record of a changelog, in the order of the log."""

    domain: str
    partition: int
    offset: int
    ms: int
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class History:
    """Facts of one world."""

    timeline: Timeline
    executions: list[Execution] = field(default_factory=list)
    published: dict[tuple[str, str, int], Moment] = field(default_factory=dict)
    """(domain, subject, sequence) → when the source had it."""
    delivered: dict[tuple[Place, int], Moment] = field(default_factory=dict)
    """First success of an event in a lambda."""
    rows: list[CommittedRow] = field(default_factory=list)
    last_rows: dict[tuple[str, int], dict[bytes, bytes]] = field(default_factory=dict)
    """(domain, partition) → the changelog, replayed."""
    _read: dict[tuple[str, int], int] = field(default_factory=dict)
    _order: int = 0

    def now(self) -> Moment:
        """The present moment, later than every one before."""
        self._order += 1
        return Moment(self._order, self.timeline.now_ms)

    def begin(self, job: Job, event: Event, worker: str) -> Execution:
        """A handler gets an event."""
        execution = Execution(
            Place(job.domain, job.subject, job.topology, job.lambda_id),
            event.sequence,
            job.job_id,
            job.epoch,
            job.attempt,
            worker,
            self.now(),
            event.payload,
            event.inputs,
        )
        self.executions.append(execution)
        return execution

    def end(self, execution: Execution, output: bytes | None) -> None:
        """It is through with it; without an output it did not succeed."""
        execution.ended = self.now()
        if output is not None:
            execution.succeeded = True
            execution.output = output
            self.delivered.setdefault((execution.place, execution.sequence), execution.ended)

    def start_over(self, domain: str) -> None:
        """The domain's changelog begins at offset 0 again, empty."""
        for at in [at for at in self.last_rows if at[0] == domain]:
            self.last_rows[at] = {}
            self._read[at] = 0

    def read_changelog(self, broker: Broker, domain: str, topic: str, partition: int) -> None:
        """Take in what was committed since the last call; call it before records are dropped."""
        at = domain, partition
        rows = self.last_rows.setdefault(at, {})
        stored = broker.partition(TopicPartition(topic, partition))
        start = max(self._read.get(at, 0), stored.low)
        records, self._read[at] = stored.read(start, stored.high, stored.high)
        for record in records:
            if record.key is None:
                continue
            self.rows.append(
                CommittedRow(
                    domain, partition, record.offset, record.timestamp_ms, record.key, record.value
                )
            )
            if record.value is None:
                rows.pop(record.key, None)
            else:
                rows[record.key] = record.value
