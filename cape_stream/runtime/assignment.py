"""Which tasks are ours: the group's partitions, turned into tasks and back."""

import logging
from collections.abc import Callable, Sequence

from cape_stream.errors import Fatal
from cape_stream.ports.log import TopicPartition, Watermarks
from cape_stream.ports.table import Table
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.processor import TaskGroup, TaskId
from cape_stream.runtime.task import Task

logger = logging.getLogger(__name__)

PARTNER_WAIT_MS = 60_000
"""How long an input may be ours without its partner: a rebalance moves them in steps."""


class Assignment:
    """Implements `cape_stream.ports.log.MemberListener`.

    A task exists while every input of its group is ours for that partition. The group's assignor
    moves them together, so one input without the others is a broken group, not a state to work in.
    """

    def __init__(
        self,
        groups: Sequence[TaskGroup],
        table: Table,
        before_leaving: Callable[[list[Task]], None],
    ) -> None:
        """``before_leaving``: makes the last commit of tasks that are about to leave."""
        self._groups = {topic: group for group in groups for topic in group.inputs}
        self._table = table
        self._before_leaving = before_leaving
        self._held: set[TopicPartition] = set()
        self.tasks: dict[TaskId, Task] = {}
        self.by_partition: dict[TopicPartition, Task] = {}
        self.lost_ranges: dict[TopicPartition, tuple[int, Watermarks]] = {}
        """Partitions whose committed offset the log no longer kept: (committed, kept)."""
        self._apart_since_ms: int | None = None

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """More partitions are ours."""
        self._held.update(partitions)
        for held in partitions:
            group = self._groups[held.topic]
            inputs = [TopicPartition(topic, held.partition) for topic in group.inputs]
            task_id = TaskId(group.name, held.partition)
            if task_id not in self.tasks and self._held.issuperset(inputs):
                task = Task(group, held.partition, self._table)
                self.tasks[task_id] = task
                self.by_partition.update(dict.fromkeys(inputs, task))
                logger.info("task %s assigned", task.name)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions leave in good order: store what we know, then let go."""
        leaving = self._tasks_of(partitions)
        self._before_leaving(leaving)
        self._let_go(partitions, leaving)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are gone already: let go without a write."""
        self._let_go(partitions, self._tasks_of(partitions))

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        """Records between the committed offset and what is kept are gone; refresh finds what they
        would have told."""
        self.lost_ranges[partition] = (committed, kept)
        logger.warning(
            "%s[%d]: committed offset %d is outside what the log keeps (%d to %d); reading on"
            " from %d, refresh will find what the missing records would have told",
            *partition,
            committed,
            *kept,
            kept.low,
        )

    def check_together(self, now_ms: int) -> None:
        """Raise Fatal if an input is ours and its partner is not, and stays so: nobody would serve
        it, and nothing would look broken."""
        if len(self._held) == len(self.by_partition):
            self._apart_since_ms = None
            return
        if self._apart_since_ms is None:
            self._apart_since_ms = now_ms
        if now_ms - self._apart_since_ms < PARTNER_WAIT_MS:
            return
        held = min(self._held - self.by_partition.keys())
        inputs = ", ".join(self._groups[held.topic].inputs)
        raise Fatal(
            f"partition {held.partition} of {held.topic} is assigned to this member without its"
            f" partners ({inputs}) for {PARTNER_WAIT_MS // 1_000} s; use one assignor that keeps"
            " equal partition numbers together on all members"
        )

    def _tasks_of(self, partitions: Sequence[TopicPartition]) -> list[Task]:
        found = {id(task): task for p in partitions if (task := self.by_partition.get(p))}
        return list(found.values())

    def _let_go(self, partitions: Sequence[TopicPartition], leaving: list[Task]) -> None:
        self._held.difference_update(partitions)
        for task in leaving:
            task.move_to(TaskState.CLOSED)
            del self.tasks[task.id]
            for partition in task.inputs:
                self.by_partition.pop(partition, None)
            logger.info("task %s left", task.name)
