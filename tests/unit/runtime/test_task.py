from cape_stream.adapters.simulated import MemoryTable
from cape_stream.ports.log import TopicPartition
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.task import Task
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, NAMES, EngineWorld


def make_task(table: MemoryTable | None = None) -> Task:
    return Task(EngineWorld(topology("T1")).group(), 3, table or MemoryTable())


def test_task_is_named_after_its_group_and_partition() -> None:
    task = make_task()

    assert task.name == str(task.id) == "flights-3"
    assert task.inputs == [
        TopicPartition(NAMES.statuses(DOMAIN), 3),
        TopicPartition(NAMES.pings(DOMAIN), 3),
        TopicPartition(NAMES.operations(DOMAIN), 3),
    ]
    assert task.changelog == TopicPartition(NAMES.changelog(DOMAIN), 3)
    assert task.state is TaskState.RESTORING
    assert task.open


def test_task_reads_rows_in_the_order_asked() -> None:
    table = MemoryTable()
    table.write("flights-3", {b"a": b"1", b"b": b"2"}, 5)

    assert make_task(table).read_rows([b"b", b"x", b"a"]) == [b"2", None, b"1"]


def test_task_reads_rows_on_their_way_before_those_in_the_table() -> None:
    table = MemoryTable()
    table.write("flights-3", {b"a": b"1", b"b": b"2", b"c": b"3"}, 5)
    task = make_task(table)
    task.unlanded = {b"a": b"new", b"b": None, b"d": b"4"}

    assert task.read_rows([b"a", b"b", b"c", b"d", b"x"]) == [b"new", None, b"3", b"4", None]
