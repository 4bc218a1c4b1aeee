import pytest

from cape_stream.adapters.simulated import Disk, Faults, MemoryTable, SimClock, SimLog
from cape_stream.errors import Corrupt, Fatal
from cape_stream.ports.log import TopicPartition
from cape_stream.runtime.commit import CommitPipeline
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.recovery import META_KEY, Recovery, TaskMeta
from cape_stream.runtime.restoring import REPAIRS_MAX, RETRY_MS, Restorer
from cape_stream.runtime.task import Task
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, NAMES, EngineWorld, InlineBackground

CHANGELOG = NAMES.changelog(DOMAIN)


class Desk:
    """A restorer, some tasks to restore, and the world they live in."""

    def __init__(self, *, restores_max: int = 2, partitions: int = 3) -> None:
        self.world = EngineWorld(topology("T1"), partitions=partitions)
        self.log = SimLog(self.world.broker)
        self.disk = Disk()
        self.table = MemoryTable(self.disk)
        clock = SimClock(self.world.broker.timeline)
        self.background = InlineBackground()
        recovery = Recovery(self.log, self.table, clock)
        self.restorer = Restorer(recovery, self.table, self.background, restores_max)
        self.pipeline = CommitPipeline(
            self.log.committer("test"), self.log.producer(), InlineBackground(), clock
        )
        group = self.world.group()
        self.tasks = [Task(group, number, self.table) for number in range(partitions)]

    def turn(self, turns: int = 1, now_ms: int = 0) -> list[str]:
        ready: list[str] = []
        for _ in range(turns):
            ready += [task.name for task in self.restorer.turn(self.tasks, self.pipeline, now_ms)]
        return ready

    def write(self, key: bytes, value: bytes, partition: int = 0) -> None:
        self.world.broker.append(TopicPartition(CHANGELOG, partition), key, value)


def test_restorer_brings_tasks_to_where_they_claim() -> None:
    desk = Desk()
    desk.write(META_KEY, TaskMeta(6, {}).encode())

    assert desk.turn(3) == ["flights-0", "flights-1", "flights-2"]
    assert {task.state for task in desk.tasks} == {TaskState.CLAIMING}
    assert [task.epoch for task in desk.tasks] == [7, 1, 1]
    assert all(task.processor is not None for task in desk.tasks)
    assert not desk.restorer.busy
    assert desk.turn() == []


def test_restorer_restores_a_few_at_a_time() -> None:
    desk = Desk(restores_max=2)
    desk.background.holds = True
    desk.turn(3)
    assert desk.background.submitted == 2
    assert desk.restorer.busy
    desk.background.release()

    assert desk.turn() == ["flights-0", "flights-1"]
    assert desk.background.submitted == 3


def test_restorer_never_restores_a_task_twice_at_a_time() -> None:
    desk = Desk(partitions=1, restores_max=5)
    desk.background.holds = True
    desk.turn(5)

    assert desk.background.submitted == 1


def test_restorer_waits_while_an_old_commit_may_write_the_same_rows() -> None:
    """A task that was lost and comes back while its last commit is still on its way."""
    desk = Desk(partitions=1)
    old = Task(desk.world.group(), 0, desk.table)
    member = desk.world.running()._member
    desk.pipeline.take([old], member, 0, renewal=True)
    assert desk.turn(3) == []
    assert desk.background.submitted == 0
    desk.pipeline.finish(0)

    assert desk.turn(2) == ["flights-0"]


def test_restorer_drops_what_came_for_a_task_that_left() -> None:
    desk = Desk(partitions=1)
    desk.background.holds = True
    desk.turn()
    desk.tasks[0].move_to(TaskState.CLOSED)
    desk.background.release()

    assert desk.turn(2) == []
    assert desk.tasks[0].processor is None
    assert not desk.restorer.busy


def test_restorer_tries_again_later_when_the_log_is_away() -> None:
    desk = Desk(partitions=1)
    desk.world.faults = Faults(read_retry=1.0)
    assert desk.turn(2) == []
    assert desk.turn(5, now_ms=RETRY_MS - 1) == []
    assert desk.background.submitted == 1
    desk.world.faults = Faults()

    assert desk.turn(2, now_ms=RETRY_MS) == ["flights-0"]


def test_restorer_rebuilds_unreadable_rows_of_one_task_alone() -> None:
    desk = Desk()
    desk.turn(3)
    desk.write(b"c1", b"x")
    desk.disk.damage("flights-0")
    desk.tasks = [Task(desk.world.group(), number, desk.table) for number in range(3)]
    ready = desk.turn(4)

    assert sorted(ready) == ["flights-0", "flights-1", "flights-2"]
    (line,) = desk.restorer.repairs
    assert line.startswith("flights-0: ")
    assert line.endswith(": rebuilding the local table")
    assert desk.table.get_many("flights-0", [b"c1"]) == [b"x"]


def test_restorer_rebuilds_a_row_that_does_not_decode() -> None:
    """It stands in the local table only, so the changelog mends it."""
    desk = Desk(partitions=1)
    desk.turn(2)
    end = desk.world.changelog_end().high
    desk.table.write("flights-0", {b"aS": b"\xc1 garbage"}, end)
    desk.tasks = [Task(desk.world.group(), 0, desk.table)]

    assert desk.turn(3) == ["flights-0"]
    assert len(desk.restorer.repairs) == 1
    assert desk.table.get_many("flights-0", [b"aS"]) == [None]


def test_restorer_gives_up_on_a_changelog_that_does_not_decode() -> None:
    desk = Desk(partitions=1)
    desk.write(b"aS", b"\xc1 garbage")

    with pytest.raises(Fatal, match=rf"even after {REPAIRS_MAX} rebuilds.*{CHANGELOG}"):
        desk.turn(50)
    assert len(desk.restorer.repairs) == REPAIRS_MAX


def test_restorer_counts_rebuilds_in_a_row_only() -> None:
    desk = Desk(partitions=1)
    for _ in range(REPAIRS_MAX * 2):
        desk.turn(3)
        desk.disk.damage("flights-0")
        desk.tasks = [Task(desk.world.group(), 0, desk.table)]

    assert desk.turn(3) == ["flights-0"]
    assert len(desk.restorer.repairs) == REPAIRS_MAX * 2


def test_restorer_tells_repairs_of_stale_tables() -> None:
    desk = Desk(partitions=1)
    desk.table.write("flights-0", {b"x": b"y"}, 500)

    assert desk.turn(2) == ["flights-0"]
    assert "stands at offset 500" in desk.restorer.repairs[0]


def test_restorer_hands_on_what_it_cannot_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(task: str) -> None:
        raise Corrupt("the disk cannot even be cleared")

    desk = Desk(partitions=1)
    desk.disk.damage("flights-0")
    monkeypatch.setattr(desk.table, "clear", refuse)

    with pytest.raises(Corrupt, match="even be cleared"):
        desk.turn(2)
