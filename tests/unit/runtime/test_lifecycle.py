import re
from itertools import pairwise

import pytest

from cape_stream.adapters.simulated import MemoryTable
from cape_stream.runtime import lifecycle
from cape_stream.runtime.lifecycle import NEXT_STATES, TaskState
from cape_stream.runtime.task import Task
from tests.desk import topology
from tests.unit.runtime.engine_worlds import EngineWorld

LIFE = [
    TaskState.RESTORING,
    TaskState.CLAIMING,
    TaskState.CATCHING_UP,
    TaskState.RUNNING,
    TaskState.CLOSED,
]


def task_in(state: TaskState) -> Task:
    task = Task(EngineWorld(topology("T1")).group(), 0, MemoryTable())
    task.state = state
    return task


def test_lifecycle_table_names_every_state() -> None:
    assert set(NEXT_STATES) == set(TaskState) == set(LIFE)
    assert set().union(*NEXT_STATES.values()) <= set(TaskState)


def test_lifecycle_leads_from_restoring_to_running() -> None:
    for before, after in pairwise(LIFE):
        assert after in NEXT_STATES[before]


def test_lifecycle_may_end_anywhere_and_ends_for_good() -> None:
    for state in LIFE[:-1]:
        assert TaskState.CLOSED in NEXT_STATES[state]
    assert NEXT_STATES[TaskState.CLOSED] == frozenset()


def test_lifecycle_drawing_shows_every_state_and_explains_it() -> None:
    text = lifecycle.__doc__ or ""
    drawn = re.findall(r"[A-Z_]{6,}", text.split("RESTORING  ")[0])
    explained = re.findall(r"^([A-Z_]+) ", text, re.MULTILINE)

    assert drawn == explained == [state.name for state in LIFE]


@pytest.mark.parametrize("before", LIFE)
@pytest.mark.parametrize("after", LIFE)
def test_task_moves_as_the_table_says(before: TaskState, after: TaskState) -> None:
    task = task_in(before)
    if after in NEXT_STATES[before]:
        task.move_to(after)
        assert task.state is after
        assert task.open is (after is not TaskState.CLOSED)
    else:
        with pytest.raises(AssertionError, match="cannot become"):
            task.move_to(after)
        assert task.state is before
