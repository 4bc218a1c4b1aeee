"""What an audit finds, and that it finds nothing where nothing is wrong."""

from collections.abc import Callable

import pytest

from cape_stream.core.auditing import Finding, audit_cursors, audit_inflight, audit_sleeper
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.model.active_row import NEVER_MS, ActiveRow, LambdaRow, ParkedRow
from cape_stream.model.cursor import CursorInfo
from tests.desk import Desk, topology


def busy() -> Desk:
    """A desk with one job out and one event parked."""
    desk = Desk(topology("T1", window=2), topology("T2"))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.report("J1", failed=[2])
    return desk


def damage_lookup(inflight: InflightState, state: SubjectState) -> None:
    inflight.jobs.clear()


def damage_job(inflight: InflightState, state: SubjectState) -> None:
    state.lambdas[1].jobs = []
    state.open_jobs = 0


def damage_cursor(inflight: InflightState, state: SubjectState) -> None:
    state.lambdas[1].cursor = state.lambdas[1].high = 2


def damage_parked(inflight: InflightState, state: SubjectState) -> None:
    state.lambdas[0].cursor = state.lambdas[0].high = 2


def damage_count(inflight: InflightState, state: SubjectState) -> None:
    inflight.parked += 1


def damage_gate(inflight: InflightState, state: SubjectState) -> None:
    inflight.valves[0].queue.out += 1


def damage_high(inflight: InflightState, state: SubjectState) -> None:
    state.lambdas[0].high = -1
    state.lambdas[0].cursor = 0


def abandon(inflight: InflightState, state: SubjectState) -> None:
    for entry in state.lambdas:
        for record in list(entry.jobs):
            inflight.release(entry, record)
        for sequence in list(entry.parked):
            inflight.unpark(state, entry, sequence)


def test_audit_finds_nothing_in_a_desk_at_work() -> None:
    desk = busy()

    assert list(audit_inflight(desk.plan, desk.scheduler.inflight)) == []


@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (damage_lookup, "stuck", "is not in the lookup table"),
        (damage_job, "leaked", "is out for no lambda"),
        (damage_cursor, "impossible", "is out, and done, parked or out again"),
        (damage_parked, "impossible", "is parked and done"),
        (damage_count, "impossible", "2 parked events counted, 1 there"),
        (damage_gate, "leaked", "queue general counts 2 jobs out, 1 are"),
        (damage_high, "impossible", "was given less than it has done"),
        (abandon, "stuck", "in memory, and nothing is under way for it"),
    ],
)
def test_audit_finds_what_is_wrong_in_memory(
    damage: Callable[[InflightState, SubjectState], None], kind: str, said: str
) -> None:
    desk = busy()
    damage(desk.scheduler.inflight, desk.state("S"))

    found = list(audit_inflight(desk.plan, desk.scheduler.inflight))

    assert [each for each in found if each.kind == kind and said in each.detail], found


@pytest.mark.parametrize(
    ("cursors", "kinds"),
    [({"T1": 5}, []), ({"T1": 6}, ["impossible"]), ({"T1": -1}, []), ({"late": 9}, [])],
)
def test_audit_finds_cursors_beyond_what_exists(cursors: dict[str, int], kinds: list[str]) -> None:
    plan = Desk(topology("T1"), topology("late", start=10)).plan

    found = audit_cursors(plan, CursorInfo("S", 5, cursors))

    assert [each.kind for each in found] == kinds


PARKED = ParkedRow(1, 1, 1, NEVER_MS, "invalid", "", "", 1, 1)


@pytest.mark.parametrize(
    ("row", "is_indexed", "has_active_row", "wanted"),
    [
        (ActiveRow("S", 1, 1, [LambdaRow("T1", "only", 0, parked=[PARKED])], 9), True, False, []),
        (
            ActiveRow("S", 1, 1, [LambdaRow("T1", "only", 0, parked=[PARKED])], 9),
            False,
            True,
            ["stuck", "impossible"],
        ),
        (
            ActiveRow("S", 1, 1, [LambdaRow("T1", "only", 0)]),
            True,
            False,
            ["impossible", "leaked"],
        ),
    ],
    ids=["sound", "not indexed and twice", "empty"],
)
def test_audit_finds_sleepers_that_nobody_wakes(
    row: ActiveRow, is_indexed: bool, has_active_row: bool, wanted: list[str]
) -> None:
    found: list[Finding] = list(
        audit_sleeper(row, is_indexed=is_indexed, has_active_row=has_active_row)
    )

    assert [each.kind for each in found] == wanted
