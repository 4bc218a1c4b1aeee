"""The loop: poll → step → carry out → commit, for all tasks of one member, in one thread.

`Engine.turn` is one iteration. It never waits for anything but records, and for those only as
long as nothing else is due.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cape_stream.errors import Fatal, Reject, Retry
from cape_stream.model.request import EventPage, QueryFault
from cape_stream.ports.background import Background
from cape_stream.ports.clock import Clock
from cape_stream.ports.log import FailedSend, Log, Record, TopicPartition, Write
from cape_stream.ports.table import Table
from cape_stream.runtime.assignment import Assignment
from cape_stream.runtime.commit import Commit, CommitPipeline
from cape_stream.runtime.due_index import due_key, names_due
from cape_stream.runtime.lease import Lease
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.processor import Effects, Processor, TaskGroup
from cape_stream.runtime.questions import Questions
from cape_stream.runtime.recovery import Recovery
from cape_stream.runtime.restoring import Restorer
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.task import Task

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True, kw_only=True)
class Backgrounds:
    """Where slow work runs; apart, so that none waits for another kind."""

    commits: Background
    restores: Background
    sources: Background


@dataclass(slots=True)
class EngineCounters:
    """For metrics; each grows only."""

    turns: int = 0
    records: int = 0
    outputs: int = 0
    failed_sends: int = 0
    log_absences: int = 0
    """Polls that found the log away."""
    throttled_turns: int = 0
    """Turns in which no pings were taken because enough is in memory."""
    answers: int = 0
    by_state: dict[str, int] = field(default_factory=dict)


class Engine:
    """One member of the dispatcher group (or of any group that runs a `Processor`)."""

    def __init__(
        self,
        *,
        log: Log,
        table: Table,
        clock: Clock,
        groups: Sequence[TaskGroup],
        group_id: str,
        member_name: str,
        backgrounds: Backgrounds,
        settings: EngineSettings | None = None,
    ) -> None:
        """Joins the group. Raises Fatal when the topics do not fit together."""
        self._settings = settings or EngineSettings()
        self._log = log
        self._clock = clock
        self._groups = groups
        check_partitions(log, groups)
        self._producer = log.producer()
        self._committer = log.committer(member_name)
        self._pipeline = CommitPipeline(self._committer, self._producer, backgrounds.commits, clock)
        self._restorer = Restorer(
            Recovery(log, table, clock), table, backgrounds.restores, self._settings.restores_max
        )
        self._lease = Lease(log.session_timeout_ms)
        self._questions = {
            group.name: Questions(group.source, backgrounds.sources, self._settings, group.name)
            for group in groups
            if group.source is not None
        }
        self.assignment = Assignment(groups, table, self._commit_before_leaving)
        topics = [topic for group in groups for topic in group.inputs]
        self._member = log.member(group_id, topics, self.assignment)
        self._changed = False
        self._refused: list[FailedSend] = []
        """Outputs that can never be sent, on their way back."""
        self._closed_inputs: frozenset[str] = frozenset()
        """Input topics that are paused on purpose on every running task."""
        self.counters = EngineCounters()

    @property
    def sources(self) -> Mapping[str, Questions]:
        """Group → who asks its source, to look at."""
        return self._questions

    # --- running -------------------------------------------------------------------------------

    def run(self, stopping: Callable[[], bool]) -> None:
        """Turn until ``stopping()``, then `close`."""
        try:
            while not stopping():
                self.turn()
        finally:
            self.close()

    def turn(self) -> int:
        """One iteration; how many records it took."""
        now_ms = self._clock.now_ms()
        self.counters.turns += 1
        self.assignment.check_together(now_ms)
        self._producer.poll(0)
        self._withdraw_failed(now_ms)
        tasks = list(self.assignment.tasks.values())
        for task in self._restorer.turn(tasks, self._pipeline, now_ms):
            self._prepare_claim(task)
        self._on_landed(self._pipeline.turn(), now_ms)
        self._take_answers(now_ms)
        for task in tasks:
            self._tick(task, now_ms)
        clear = self._drain(tasks, now_ms)
        self._throttle(tasks, clear)
        self._commit_if_due(tasks, clear, now_ms)
        return self._poll(tasks, now_ms)

    def close(self) -> None:
        """Store the last state, leave the group and free all."""
        self._member.close()
        self._producer.close()
        self._committer.close()

    # --- the parts of a turn -------------------------------------------------------------------

    def _poll(self, tasks: Sequence[Task], now_ms: int) -> int:
        try:
            records = self._member.poll(
                self._settings.poll_records_max, self._patience(tasks, now_ms)
            )
        except Retry as error:
            self.counters.log_absences += 1
            self._clock.sleep_ms(error.after_ms or self._settings.idle_poll_ms)
            return 0
        if records:
            self._step_all(records, self._clock.now_ms())
        return len(records)

    def _step_all(self, records: list[Record], now_ms: int) -> None:
        """Hand records to their tasks, in one batch per task."""
        by_partition = self.assignment.by_partition
        batches: dict[int, tuple[Task, list[Record]]] = {}
        for record in records:
            task = by_partition.get(TopicPartition(record[0], record[1]))
            if task is None:
                continue
            batch = batches.get(id(task))
            if batch is None:
                batches[id(task)] = (task, [record])
            else:
                batch[1].append(record)
        for task, batch_records in batches.values():
            self._step(task, batch_records, now_ms)
        self.counters.records += len(records)
        self._changed = True

    def _step(self, task: Task, records: list[Record], now_ms: int) -> None:
        processor = _processor(task)
        if task.state is TaskState.RUNNING:
            effects = processor.step(records, task.read_rows, now_ms)
        else:
            effects = processor.catch_up(records, task.read_rows, now_ms)
        offsets = task.offsets
        for record in records:
            offsets[TopicPartition(record[0], record[1])] = record[2] + 1
        self._carry_out(task, effects, now_ms)
        if task.state is TaskState.CATCHING_UP:
            self._start_if_caught_up(task, now_ms)

    def _carry_out(self, task: Task, effects: Effects, now_ms: int) -> None:
        """In the order the `Effects` type states."""
        if effects.outputs:
            if task.outbox:
                task.outbox.extend(effects.outputs)
            else:
                self._send(task, effects.outputs)
        if effects.committed:
            task.unlanded_writes.extend(effects.committed)
        if effects.sweep:
            task.sweep, task.sweep_due_ms = None, 0
        if effects.queries:
            self._questions[task.group.name].ask(task, effects.queries)

    def _send(self, task: Task, outputs: Sequence[Write]) -> None:
        """Hand outputs to the producer while the proof is young; what is left has to wait.

        The clock is read for each: the process may be stopped between any two of them, and the
        time at which this turn began says nothing about that.
        """
        send = self._producer.send
        now_ms = self._clock.now_ms
        ends_ms = self._lease.ends_ms(task)
        for index, (topic, partition, key, value) in enumerate(outputs):
            try:
                if now_ms() < ends_ms and send(topic, partition, key, value):
                    continue
            except Reject as error:
                refused = FailedSend(topic, partition, key, value, error.reason, lasting=True)
                self._refused.append(refused)
                continue
            task.outbox.extend(outputs[index:])
            self.counters.outputs += index
            return
        self.counters.outputs += len(outputs)

    def _drain(self, tasks: Sequence[Task], now_ms: int) -> bool:
        """Send what had to wait; True if nothing has to wait any more."""
        clear = True
        for task in tasks:
            if task.outbox and self._lease.holds(task, now_ms):
                waiting = list(task.outbox)
                task.outbox.clear()
                self._send(task, waiting)
            clear = clear and not task.outbox
        return clear

    def _withdraw_failed(self, now_ms: int) -> None:
        """Outputs the client gave up or refused go back to the processors that made them."""
        failed = self._producer.take_failed()
        if self._refused:
            failed += self._refused
            self._refused = []
        if not failed:
            return
        self.counters.failed_sends += len(failed)
        for task in list(self.assignment.tasks.values()):
            if task.processor is not None:
                self._carry_out(task, task.processor.undelivered(failed, now_ms), now_ms)
        self._changed = True

    def _take_answers(self, now_ms: int) -> None:
        for questions in self._questions.values():
            if not questions.busy:
                continue
            for task, answers in questions.turn(now_ms):
                self._answer(task, answers, now_ms)

    def _answer(self, task: Task, answers: list[EventPage | QueryFault], now_ms: int) -> None:
        self.counters.answers += len(answers)
        self._carry_out(task, _processor(task).answer(answers, now_ms), now_ms)
        self._changed = True

    def _tick(self, task: Task, now_ms: int) -> None:
        """Tell a task that time has passed, unless what it wants to send has to wait anyway: while
        the log is away no status can come, so no job must be taken for late."""
        if task.state is TaskState.CATCHING_UP:
            # Positions also move over what is no record, such as the end of a transaction.
            self._start_if_caught_up(task, now_ms)
        if task.state is not TaskState.RUNNING or task.outbox:
            return
        if not self._lease.holds(task, now_ms):
            return
        processor = _processor(task)
        due_ms = processor.next_ms()
        if due_ms is not None and due_ms <= now_ms:
            self._carry_out(task, processor.tick(now_ms), now_ms)
            self._changed = True
        self._wake(task, processor, now_ms)
        self._sweep(task, processor, now_ms)

    def _wake(self, task: Task, processor: Processor, now_ms: int) -> None:
        """Find what is due in the table, a slice at a time."""
        if task.due_scan is None:
            if task.due_scan_ms > now_ms or self._closed_inputs:
                return
            prefix = task.group.due_prefix
            start = due_key(prefix, task.due_from_ms, b"")
            keys = (key for key, _ in task.table.scan(task.name, prefix, start))
            # Whatever lands behind it while the scan goes on moves this back.
            task.due_from_ms = now_ms + task.due_ahead_ms
            task.due_scan = names_due(keys, prefix, task.due_from_ms)
        names = list(islice(task.due_scan, self._settings.wakes_max))
        if len(names) < self._settings.wakes_max:
            task.due_scan = None
            task.due_ahead_ms = 0
            task.due_scan_ms = now_ms + self._settings.due_scan_interval_ms
        if names:
            self._carry_out(task, processor.wake(names, task.read_rows, now_ms), now_ms)
            self._changed = True

    def _sweep(self, task: Task, processor: Processor, now_ms: int) -> None:
        """Look through the task's own table, a slice at a time, for forgotten work."""
        interval_ms = self._settings.sweep_interval_ms
        is_wanted = task.sweep_due_ms == 0
        if not (interval_ms or is_wanted) or self._closed_inputs:
            return
        if (task.sweep_due_ms or now_ms) > now_ms:
            return
        if task.sweep is None:
            task.sweep = task.table.scan(task.name, task.group.swept_prefix)
        rows = list(islice(task.sweep, self._settings.sweep_rows))
        if len(rows) < self._settings.sweep_rows:
            task.sweep = None
            task.sweep_due_ms = now_ms + interval_ms
        if rows:
            self._carry_out(task, processor.sweep(rows, task.read_rows, now_ms), now_ms)
            self._changed = True

    def _throttle(self, tasks: Sequence[Task], clear: bool) -> None:
        """Close inputs while outputs wait, or while too much is in memory; reopen them after."""
        load = sum(task.processor.load() for task in tasks if task.processor)
        limit = self._settings.load_max
        if not clear:
            closed = frozenset(topic for group in self._groups for topic in group.inputs)
        elif load >= limit or (self._closed_inputs and load >= limit * 4 // 5):
            closed = frozenset(
                topic
                for group in self._groups
                for topic in group.inputs
                if topic not in group.replayed_first + group.always_open
            )
        else:
            closed = frozenset()
        self.counters.throttled_turns += bool(closed)
        if closed == self._closed_inputs:
            return
        running = [p for t in tasks if t.state is TaskState.RUNNING for p in t.inputs]
        self._member.pause([p for p in running if p.topic in closed - self._closed_inputs])
        self._member.resume([p for p in running if p.topic in self._closed_inputs - closed])
        self._closed_inputs = closed

    def _patience(self, tasks: Sequence[Task], now_ms: int) -> int:
        """How long to wait for records."""
        settings = self._settings
        if (
            not self._pipeline.idle
            or self._restorer.busy
            or any(questions.calls_out for questions in self._questions.values())
            or any(task.due_scan is not None for task in tasks)
        ):
            return settings.busy_poll_ms
        patience = settings.idle_poll_ms
        for questions in self._questions.values():
            due_ms = questions.next_ms(now_ms)
            patience = min(patience, patience if due_ms is None else due_ms - now_ms)
        for task in tasks:
            if task.state is TaskState.RUNNING:
                due_ms = _processor(task).next_ms()
                patience = min(patience, patience if due_ms is None else due_ms - now_ms)
        if self._changed and any(task.processor for task in tasks):
            due_ms = self._pipeline.last_taken_ms + settings.commit_interval_ms
            patience = min(patience, due_ms - now_ms)
        # What is overdue was tried in this turn and is held up: look again soon, but do not spin.
        return max(patience, settings.busy_poll_ms)

    # --- claiming, catching up, committing -----------------------------------------------------

    def _prepare_claim(self, task: Task) -> None:
        for partition in task.inputs:
            position = self._member.position(partition)
            assert position is not None, f"{partition} is assigned but has no position"
            task.offsets[partition] = position
        task.committed = dict(task.offsets)
        self._changed = True

    def _commit_if_due(self, tasks: Sequence[Task], clear: bool, now_ms: int) -> None:
        if not self._pipeline.idle:
            return
        ready = [task for task in tasks if task.processor is not None and task.open]
        since_ms = now_ms - self._pipeline.last_taken_ms
        renew = any(self._lease.wants_renewal(task, now_ms) for task in ready)
        if not ready or since_ms < self._settings.commit_interval_ms:
            return
        # What a commit that failed had taken.
        left = any(task.unlanded or task.unlanded_writes for task in ready)
        if clear and (self._changed or renew or left):
            if self._pipeline.take(ready, self._member, now_ms, renewal=False):
                self._changed = False
        elif renew:
            proven = [task for task in ready if task.proof_ms is not None]
            if proven:
                self._pipeline.take(proven, self._member, now_ms, renewal=True)

    def _on_landed(self, commit: Commit | None, now_ms: int) -> None:
        if commit is None:
            return
        for task in commit.tasks:
            if task.state is not TaskState.CLAIMING:
                continue
            task.move_to(TaskState.CATCHING_UP)
            self._member.resume(list(task.replay_ends))
            self._start_if_caught_up(task, now_ms)

    def _start_if_caught_up(self, task: Task, now_ms: int) -> None:
        for partition, end in task.replay_ends.items():
            if task.offsets[partition] < end and (self._member.position(partition) or 0) < end:
                return
        task.move_to(TaskState.RUNNING)
        self._member.resume([p for p in task.inputs if p.topic not in self._closed_inputs])
        self._member.pause([p for p in task.inputs if p.topic in self._closed_inputs])
        self._carry_out(task, _processor(task).resume(now_ms), now_ms)
        self._changed = True
        logger.info("task %s runs", task.name)

    def _commit_before_leaving(self, leaving: list[Task]) -> None:
        """The last commit of tasks that leave in good order; whatever it cannot store, the next
        owner finds in the log."""
        now_ms = self._clock.now_ms()
        timeout_ms = self._settings.close_timeout_ms
        self._on_landed(self._pipeline.finish(timeout_ms), now_ms)
        self._drain(leaving, now_ms)
        self._producer.flush(timeout_ms)
        self._withdraw_failed(now_ms)
        self._drain(leaving, now_ms)
        ready = [t for t in leaving if t.processor is not None and not t.outbox]
        if not ready or not self._pipeline.idle:
            return
        if self._pipeline.take(ready, self._member, now_ms, renewal=False):
            self._pipeline.finish(timeout_ms)


def _processor(task: Task) -> Processor:
    assert task.processor is not None, f"{task.name} is {task.state} and has no processor"
    return task.processor


def check_partitions(log: Log, groups: Sequence[TaskGroup]) -> dict[str, int]:
    """Partition counts of all topics of ``groups``.

    Raises:
        Fatal: a topic is missing, or the counts within a group differ. State would land in the
            wrong partition; create or migrate the topics first.
    """
    topics = [
        topic for group in groups for topic in (*group.inputs, group.changelog, *group.outputs)
    ]
    counts = log.partition_counts(topics)
    for group in groups:
        wanted = (*group.inputs, group.changelog, *group.outputs)
        missing = [topic for topic in wanted if topic not in counts]
        if missing:
            raise Fatal(f"topics do not exist: {', '.join(missing)}; run `cape topics apply` first")
        if len({counts[topic] for topic in wanted}) > 1:
            listed = ", ".join(f"{topic} has {counts[topic]}" for topic in wanted)
            raise Fatal(
                f"partition counts of group {group.name!r} differ: {listed}; they must be equal"
            )
    return counts
