import logging
from dataclasses import replace

import pytest

from cape_stream.adapters.simulated import MemoryTable
from cape_stream.errors import Fatal
from cape_stream.ports.log import TopicPartition, Watermarks
from cape_stream.runtime.assignment import PARTNER_WAIT_MS, Assignment
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.task import Task
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, NAMES, EngineWorld


class Desk:
    """An assignment, and the tasks it says goodbye to."""

    def __init__(self) -> None:
        self.leaving: list[list[Task]] = []
        group = EngineWorld(topology("T1")).group()
        group = replace(group, inputs=(NAMES.statuses(DOMAIN), NAMES.pings(DOMAIN)))
        self.assignment = Assignment([group], MemoryTable(), self.leaving.append)

    def tasks(self) -> list[str]:
        return [task.name for task in self.assignment.tasks.values()]


def ping(partition: int) -> TopicPartition:
    return TopicPartition(NAMES.pings(DOMAIN), partition)


def status(partition: int) -> TopicPartition:
    return TopicPartition(NAMES.statuses(DOMAIN), partition)


def test_task_exists_once_all_its_inputs_are_ours() -> None:
    desk = Desk()
    desk.assignment.assigned([ping(0), ping(1), status(1)])
    assert desk.tasks() == ["flights-1"]
    desk.assignment.assigned([status(0)])

    assert desk.tasks() == ["flights-1", "flights-0"]
    assert desk.assignment.by_partition[ping(0)] is desk.assignment.by_partition[status(0)]


def test_task_says_goodbye_before_it_is_revoked() -> None:
    desk = Desk()
    desk.assignment.assigned([ping(0), status(0), ping(1), status(1)])
    task = desk.assignment.by_partition[ping(0)]
    desk.assignment.revoked([ping(0), status(0)])

    assert desk.leaving == [[task]]
    assert task.state is TaskState.CLOSED
    assert desk.tasks() == ["flights-1"]
    assert set(desk.assignment.by_partition) == {ping(1), status(1)}


def test_task_that_is_lost_goes_without_a_word() -> None:
    desk = Desk()
    desk.assignment.assigned([ping(0), status(0)])
    task = desk.assignment.by_partition[ping(0)]
    desk.assignment.lost([ping(0), status(0)])

    assert desk.leaving == []
    assert task.state is TaskState.CLOSED
    assert desk.tasks() == []


def test_task_leaves_when_one_of_its_inputs_leaves() -> None:
    desk = Desk()
    desk.assignment.assigned([ping(0), status(0)])
    desk.assignment.revoked([status(0)])

    assert desk.tasks() == []
    assert desk.assignment.by_partition == {}


def test_task_that_comes_back_is_a_new_one() -> None:
    desk = Desk()
    desk.assignment.assigned([ping(0), status(0)])
    old = desk.assignment.by_partition[ping(0)]
    desk.assignment.lost([ping(0), status(0)])
    desk.assignment.assigned([ping(0), status(0)])

    new = desk.assignment.by_partition[ping(0)]
    assert new is not old
    assert (new.state, old.state) == (TaskState.RESTORING, TaskState.CLOSED)


def test_partitions_that_nobody_had_leave_without_a_trace() -> None:
    desk = Desk()
    desk.assignment.revoked([ping(0)])
    desk.assignment.lost([ping(0)])

    assert (desk.leaving, desk.tasks()) == ([[]], [])


def test_input_without_its_partner_is_refused_between_rebalances() -> None:
    desk = Desk()
    desk.assignment.assigned([ping(0), status(0)])
    desk.assignment.assigned([ping(1)])
    desk.assignment.check_together(0)
    desk.assignment.check_together(PARTNER_WAIT_MS - 1)

    with pytest.raises(Fatal, match=r"partition 1 of app\.flights\.pings is assigned"):
        desk.assignment.check_together(PARTNER_WAIT_MS)


def test_input_may_wait_for_its_partner_in_every_rebalance_anew() -> None:
    desk = Desk()
    desk.assignment.assigned([ping(1)])
    desk.assignment.check_together(0)
    desk.assignment.assigned([status(1)])
    desk.assignment.check_together(PARTNER_WAIT_MS)
    desk.assignment.assigned([status(0)])
    desk.assignment.check_together(2 * PARTNER_WAIT_MS)
    desk.assignment.check_together(3 * PARTNER_WAIT_MS - 1)


def test_lost_range_is_told_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """B08: the committed offset is outside what the log keeps."""
    desk = Desk()
    with caplog.at_level(logging.WARNING):
        desk.assignment.repositioned(ping(0), 50_456, Watermarks(75_033, 80_000))

    assert desk.assignment.lost_ranges == {ping(0): (50_456, Watermarks(75_033, 80_000))}
    (record,) = caplog.records
    assert "app.flights.pings[0]" in record.getMessage()
    assert "50456" in record.getMessage()
    assert "75033 to 80000" in record.getMessage()
