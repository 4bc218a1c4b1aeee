"""Which restores run, and what becomes of their results."""

import logging
from collections import Counter
from collections.abc import Iterable

from cape_stream.errors import Corrupt, Fatal, Retry
from cape_stream.ports.background import Background, Pending
from cape_stream.ports.table import Table
from cape_stream.runtime.commit import CommitPipeline
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.recovery import Recovery, RestoreCancelledError, Restored
from cape_stream.runtime.task import Task

logger = logging.getLogger(__name__)

REPAIRS_MAX = 5
"""How often in a row a task's table is rebuilt; after that the changelog itself is at fault."""
RETRY_MS = 500
"""Pause after a restore that the log's absence ended."""


class Restorer:
    """Runs restores in the background, a few at a time, never two of the same task."""

    def __init__(
        self, recovery: Recovery, table: Table, background: Background, restores_max: int
    ) -> None:
        self._recovery = recovery
        self._table = table
        self._background = background
        self._restores_max = restores_max
        self._running: dict[str, tuple[Task, Pending[Restored]]] = {}
        self._not_before_ms = 0
        self._repaired: Counter[str] = Counter()
        """Task name → rebuilds since it was restored last."""
        self.rows_replayed = 0
        self.repairs: list[str] = []
        """What had to be repaired since the start, one line each."""

    @property
    def busy(self) -> bool:
        """True while a restore runs."""
        return bool(self._running)

    def turn(self, tasks: Iterable[Task], pipeline: CommitPipeline, now_ms: int) -> list[Task]:
        """Start what may start; tasks that are ready to claim their partition."""
        ready = [
            task
            for name, (task, pending) in list(self._running.items())
            if pending.done() and self._collect(name, task, pending, now_ms)
        ]
        if now_ms >= self._not_before_ms:
            for task in tasks:
                if len(self._running) >= self._restores_max:
                    break
                waiting = task.state is TaskState.RESTORING and task.name not in self._running
                # A commit of the same task, lost and assigned again, may still write its rows.
                if waiting and not pipeline.holds(task.name):
                    self._start(task)
        return ready

    def _start(self, task: Task) -> None:
        work = self._recovery.restore
        pending = self._background.submit(lambda: work(task.group, task.id, lambda: task.open))
        self._running[task.name] = (task, pending)

    def _collect(self, name: str, task: Task, pending: Pending[Restored], now_ms: int) -> bool:
        """Take a restore's result over into its task; False if the task is not ready."""
        del self._running[name]
        try:
            restored = pending.result()
        except RestoreCancelledError:
            return False
        except Retry as error:
            logger.warning("restore of %s has to wait: %s", name, error)
            self._not_before_ms = now_ms + (error.after_ms or RETRY_MS)
            return False
        except Corrupt as error:
            self._repaired[name] += 1
            if self._repaired[name] > REPAIRS_MAX:
                raise Fatal(
                    f"{name}: {error}, even after {REPAIRS_MAX} rebuilds: the changelog itself"
                    f" ({task.changelog.topic}[{task.changelog.partition}]) is damaged; keep it for"
                    " inspection and restore it from a backup"
                ) from error
            self._note_repair(f"{name}: {error}: rebuilding the local table")
            self._table.clear(name)
            return False
        del self._repaired[name]
        if not task.open:
            return False
        self.rows_replayed += restored.rows_replayed
        if restored.repaired:
            self._note_repair(restored.repaired)
        task.processor = restored.processor
        task.epoch = restored.epoch
        task.bounds = restored.bounds
        task.replay_ends = restored.replay_ends
        task.due_ahead_ms = max(0, restored.written_ms - now_ms)
        task.move_to(TaskState.CLAIMING)
        logger.info(
            "task %s restored: epoch %d, %d changelog records, %d issued outputs looked at",
            name,
            restored.epoch,
            restored.rows_replayed,
            restored.adopted_from,
        )
        return True

    def _note_repair(self, line: str) -> None:
        logger.warning("%s", line)
        self.repairs.append(line)
