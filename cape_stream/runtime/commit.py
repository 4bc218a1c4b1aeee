"""State on its way out: one transaction at a time for all tasks of this member.

   IDLE → take → PREPARED → all recorded outputs acknowledged → COMMITTING → landed or failed → IDLE

A commit is of one moment: it is taken between two polls and holds the rows and exactly the offsets
that made them. It waits (without holding the loop up) until the log has every output its rows
record, then runs in the background. If it fails, what it held goes into the next one; a newer
value of a row replaces the older.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cape_stream.errors import CapeError, Fenced, Retry
from cape_stream.ports.background import Background, Pending
from cape_stream.ports.clock import Clock
from cape_stream.ports.log import Committer, Member, Ownership, Producer, TopicPartition, Write
from cape_stream.runtime.recovery import META_KEY, TaskMeta
from cape_stream.runtime.task import Task


@dataclass(slots=True)
class Commit:
    """What goes out together."""

    taken_ms: int
    tasks: list[Task]
    ownership: Ownership
    """The membership as of this moment: what is stored later is refused if it has ended since."""
    renewal: bool
    """True if it carries no state: outputs are still waiting to be sent, so the present moment
    cannot be stored yet, but the proof of ownership is needed to send them."""
    awaited: dict[TopicPartition, int] = field(default_factory=dict)
    """Producer count per partition that must be settled before it may run."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    task_offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    extra: dict[str, list[Write]] = field(default_factory=dict)
    """Task name → records that go out with its rows."""
    meta: dict[str, bytes] = field(default_factory=dict)

    def writes(self) -> list[Write]:
        """Everything to append."""
        result: list[Write] = []
        for task in self.tasks:
            if task.name in self.meta:
                topic, partition = task.changelog
                result.append(Write(topic, partition, META_KEY, self.meta[task.name]))
                rows = task.unlanded.items()
                result.extend(Write(topic, partition, key, value) for key, value in rows)
                result.extend(self.extra[task.name])
        return result


@dataclass(slots=True)
class CommitCounters:
    """For metrics; each grows only."""

    landed: int = 0
    failed: int = 0
    fenced: int = 0
    rows: int = 0
    duration_ms: int = 0
    """Sum over landed commits, from taken to landed."""


class CommitPipeline:
    """Takes, runs and finishes commits for one member."""

    def __init__(
        self, committer: Committer, producer: Producer, background: Background, clock: Clock
    ) -> None:
        self._committer = committer
        self._producer = producer
        self._background = background
        self._clock = clock
        self._commit: Commit | None = None
        self._pending: Pending[None] | None = None
        self.last_taken_ms = 0
        self.counters = CommitCounters()

    @property
    def idle(self) -> bool:
        """True if a commit may be taken."""
        return self._commit is None

    def holds(self, name: str) -> bool:
        """True if a task of that name, perhaps one that has left, is in the commit under way."""
        return self._commit is not None and any(t.name == name for t in self._commit.tasks)

    def take(self, tasks: Iterable[Task], member: Member, now_ms: int, *, renewal: bool) -> bool:
        """Take the present moment of ``tasks``; `turn` carries it out.

        False while there is no membership to prove ownership by, as between two of them: nothing
        was taken, nothing changed, and there is nothing to hurry for.
        """
        assert self._commit is None, "one commit at a time"
        self.last_taken_ms = now_ms
        try:
            ownership = member.ownership()
        except Fenced:
            self.counters.fenced += 1
            return False
        commit = Commit(now_ms, list(tasks), ownership, renewal)
        for task in commit.tasks:
            offsets = dict(task.committed if renewal else task.offsets)
            commit.task_offsets[task.name] = offsets
            commit.offsets.update(offsets)
            if not renewal:
                self._take_rows(commit, task, now_ms)
        if not renewal:
            commit.awaited = dict(self._producer.sent)
        self._commit = commit
        return True

    def _take_rows(self, commit: Commit, task: Task, now_ms: int) -> None:
        assert task.processor is not None, "a restored task has a processor"
        assert not task.outbox, "an output that was not sent cannot be recorded as issued"
        task.unlanded.update(task.processor.changes(now_ms))
        commit.extra[task.name] = task.unlanded_writes
        task.unlanded_writes = []
        for topic in task.group.outputs:
            acked = self._producer.acked_offset.get(TopicPartition(topic, task.id.partition))
            if acked is not None:
                task.bounds[topic] = max(task.bounds.get(topic, 0), acked + 1)
        if task.unlanded or commit.extra[task.name] or not task.claimed:
            commit.meta[task.name] = _meta_of(task, now_ms)
            task.claimed = True

    def turn(self) -> Commit | None:
        """Move on if possible; the commit, if it landed just now."""
        commit = self._commit
        if commit is None:
            return None
        if self._pending is None:
            if self._settled(commit.awaited):
                self._pending = self._background.submit(lambda: self._run(commit))
            return None
        if not self._pending.done():
            return None
        return self._finish(commit, self._pending)

    def finish(self, timeout_ms: int) -> Commit | None:
        """Carry the commit under way to its end, waiting for it; the commit, if it landed."""
        commit = self._commit
        if commit is None:
            return None
        if self._pending is None:
            if not self._producer.flush(timeout_ms):
                self._fail(commit)
                return None
            self._pending = self._background.submit(lambda: self._run(commit))
        return self._finish(commit, self._pending)

    def _settled(self, awaited: Mapping[TopicPartition, int]) -> bool:
        settled = self._producer.settled
        return all(settled.get(partition, 0) >= count for partition, count in awaited.items())

    def _run(self, commit: Commit) -> None:
        """In the background: the transaction, then the table."""
        last = self._committer.commit(commit.writes(), commit.offsets, commit.ownership)
        for task in commit.tasks:
            if task.name in commit.meta and task.open:
                rows = {**task.unlanded, META_KEY: commit.meta[task.name]}
                task.table.write(task.name, rows, last[task.changelog] + 1)

    def _finish(self, commit: Commit, pending: Pending[None]) -> Commit | None:
        try:
            pending.result()
        except (Retry, Fenced) as error:
            self._fail(commit, error)
            return None
        self._commit = self._pending = None
        for task in commit.tasks:
            task.proof_ms = commit.taken_ms
            task.committed = commit.task_offsets[task.name]
            if not commit.renewal:
                self.counters.rows += len(task.unlanded)
                task.unlanded = {}
                task.due_from_ms = min(task.due_from_ms, task.landed_ms)
                task.landed_ms = commit.taken_ms
        self.counters.landed += 1
        self.counters.duration_ms += self._clock.now_ms() - commit.taken_ms
        return commit

    def _fail(self, commit: Commit, error: CapeError | None = None) -> None:
        """Nothing was stored: put back what has to go out with the next commit."""
        self._commit = self._pending = None
        self.counters.failed += 1
        self.counters.fenced += isinstance(error, Fenced)
        for task in commit.tasks:
            if task.name in commit.extra:
                task.unlanded_writes = commit.extra[task.name] + task.unlanded_writes
            if task.proof_ms is None:
                task.claimed = False


def _meta_of(task: Task, now_ms: int) -> bytes:
    return TaskMeta(task.epoch, dict(task.bounds), now_ms).encode()
