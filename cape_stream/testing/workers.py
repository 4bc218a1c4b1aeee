"""Workers of a simulated world: they take jobs, run handlers that misbehave, and report.

Like the real one, a worker stores the offset of a job when it takes it, so a job is read twice only
if the worker dies in between; who retries a lost job is the dispatcher.
"""

from collections import deque
from collections.abc import Sequence

from cape_stream.adapters.simulated import SimLog, SimProcess
from cape_stream.errors import Reject, Retry
from cape_stream.model.status import JobStatus
from cape_stream.ports.log import Member, Producer, Record, TopicPartition, Watermarks
from cape_stream.testing.job_runs import JobRun
from cape_stream.testing.seat import Seat
from cape_stream.testing.stage import Stage

POLL_MS = 20
POLL_RECORDS = 20
GRACE_MS = 100
"""How long a worker that leaves lets its jobs run before it hands them back."""


class WorkerSeat(Seat):
    """A machine that runs a worker.

    Args:
        stage: the world's shared part.
        number: of the machine.
    """

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage, f"w{number}")

    def run(self, process: SimProcess) -> None:
        """See `Seat.run`."""
        worker = Worker(self.stage, process)
        while not self.leaving:
            worker.turn()
        worker.close()

    def bury(self) -> None:
        """See `Seat.bury`."""


class Worker:
    """One worker process. Also the listener of its member.

    Args:
        stage: the world's shared part.
        process: what it dies with.
    """

    def __init__(self, stage: Stage, process: SimProcess) -> None:
        self._stage = stage
        self._process = process
        log = SimLog(stage.broker, process)
        topics = stage.names.job_topics(stage.queues)
        self._member: Member = log.member(stage.names.worker_group, topics, self)
        self._producer: Producer = log.producer()
        self._waiting: deque[Record] = deque()
        self._unsent: deque[JobStatus] = deque()
        self._taken: dict[TopicPartition, int] = {}
        self._arrived: list[TopicPartition] = []
        self._runs: dict[JobRun, None] = {}

    def turn(self) -> None:
        """Get records, begin with what there is room for, store what was taken, send reports."""
        try:
            self._waiting.extend(self._member.poll(POLL_RECORDS, POLL_MS))
        except Retry:
            self._stage.timeline.sleep(POLL_MS)
        if self._arrived:
            self._member.resume(self._arrived)
            self._arrived = []
        while self._waiting and len(self._runs) < self._stage.scenario.behaviour.concurrency:
            self._take(self._waiting.popleft())
        if self._taken:
            self._member.commit(self._taken)
            self._taken = {}
        self._send()

    def close(self) -> None:
        """Leave at once, let jobs run for a while, hand back what is left, send all reports."""
        timeline = self._stage.timeline
        self._member.close()
        deadline_ms = timeline.now_ms + GRACE_MS
        while self._runs or self._unsent:
            timeline.sleep(POLL_MS)
            for run in self._runs:
                run.handing_back |= timeline.now_ms >= deadline_ms
            self._send()
        self._producer.close()

    # --- the listener of the member ------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""
        self._arrived += partitions

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""
        taken = {p: self._taken[p] for p in partitions if p in self._taken}
        if taken:
            self._member.commit(taken)
        self.lost(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener`."""
        gone = set(partitions)
        self._waiting = deque(r for r in self._waiting if TopicPartition(r[0], r[1]) not in gone)
        self._taken = {p: offset for p, offset in self._taken.items() if p not in gone}
        self._arrived = [p for p in self._arrived if p not in gone]

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        """See `MemberListener`; what is gone will time out."""

    # --- jobs ----------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        self._taken[TopicPartition(record.topic, record.partition)] = record.offset + 1
        try:
            queue = self._stage.names.queue_of(record.topic)
            job = self._stage.codec.decode_job(record.value, queue)
        except Reject:
            return
        run = JobRun(self._stage, self._process, job)
        if self._stage.timeline.now_ms - record.timestamp_ms > job.timeout_ms:
            # Given up by its dispatcher already: running it would only make others late, too.
            run.handing_back = True
            self._unsent.append(run.run())
            return
        self._runs[run] = None
        self._process.start(lambda: self._serve(run))

    def _serve(self, run: JobRun) -> None:
        status = run.run()
        del self._runs[run]
        stage, job = self._stage, run.job
        behaviour, random = stage.scenario.behaviour, stage.dice.random
        self._unsent.extend(run.beats)
        if stage.happens(behaviour.lagging):
            stage.timeline.sleep(random.randint(0, 2 * job.timeout_ms))
        self._unsent.append(status)
        if stage.happens(behaviour.repeating):
            stage.timeline.sleep(random.randint(0, 2 * job.timeout_ms))
            self._unsent.append(status)

    def _send(self) -> None:
        """Hand all reports to the producer, those it gave up once more."""
        for run in self._runs:
            self._unsent.extend(run.beats)
            run.beats.clear()
        self._producer.poll(0)
        for failed in self._producer.take_failed():
            self._producer.send(failed.topic, failed.partition, failed.key, failed.value)
        stage = self._stage
        while self._unsent:
            status = self._unsent[0]
            topic = stage.names.statuses(status.domain)
            value = stage.codec.encode_status(status)
            if not self._producer.send(topic, status.partition, status.subject.encode(), value):
                return
            self._unsent.popleft()
            stage.note(
                self._process.name,
                "reports",
                f"{status.kind} of {status.job_id}: {len(status.done)} done,"
                f" {len(status.failures)} failed",
            )
