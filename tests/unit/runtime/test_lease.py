import pytest

from cape_stream.adapters.simulated import MemoryTable
from cape_stream.runtime.lease import Lease
from cape_stream.runtime.task import Task
from tests.desk import topology
from tests.unit.runtime.engine_worlds import EngineWorld

SESSION_MS = 6_000


def proven(proof_ms: int | None) -> Task:
    task = Task(EngineWorld(topology("T1")).group(), 0, MemoryTable())
    task.proof_ms = proof_ms
    return task


@pytest.mark.parametrize(
    ("proof_ms", "now_ms", "holds"),
    [(None, 0, False), (0, 0, True), (0, 2_999, True), (0, 3_000, False), (1_000, 3_999, True)],
)
def test_lease_holds_for_half_a_session(proof_ms: int | None, now_ms: int, holds: bool) -> None:
    assert Lease(SESSION_MS).holds(proven(proof_ms), now_ms) is holds


@pytest.mark.parametrize(
    ("proof_ms", "now_ms", "wants"),
    [(None, 0, True), (0, 0, False), (0, 999, False), (0, 1_000, True)],
)
def test_lease_wants_renewal_long_before_it_ends(
    proof_ms: int | None, now_ms: int, wants: bool
) -> None:
    assert Lease(SESSION_MS).wants_renewal(proven(proof_ms), now_ms) is wants


def test_lease_leaves_the_other_half_for_what_is_in_the_producers_buffer() -> None:
    """The message timeout of the log's producers has to fit into it."""
    world = EngineWorld(topology("T1"))
    session_ms = world.broker.settings.session_timeout_ms

    assert Lease(session_ms).valid_ms + world.broker.settings.message_timeout_ms < session_ms
