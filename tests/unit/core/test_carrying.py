"""Dispatchers of two releases take turns over one state: nothing that one of them does not know is
lost, and everybody goes on where they left off."""

import pytest

from cape_stream.core.carrying import holds_unserved
from cape_stream.model.active_row import NEVER_MS
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.status import FailureClass
from cape_stream.model.topology import LambdaSpec
from tests.desk import Desk, topology

OLD = (topology("T1"), topology("gone"))
NEW = (topology("T1"), topology("added"))
PARSE, STORE = LambdaSpec(lambda_id="parse"), LambdaSpec(lambda_id="store")


def served(desk: Desk, newest: int) -> None:
    """Everything up to ``newest`` is pinged, asked for and done."""
    held = desk.source.get("S", [])
    desk.publish("S", range(held[-1].sequence + 1 if held else 0, newest + 1))
    desk.ping("S", newest)
    desk.serve()
    for _ in range(20):
        for name in desk.names_out():
            desk.report(name)
            desk.serve()
    assert not desk.out()


def test_cursor_of_an_unknown_topology_is_carried_through_when_the_row_is_rewritten() -> None:
    desk = Desk(*OLD)
    served(desk, 3)
    desk.commit()

    desk.deploy(*NEW)
    served(desk, 9)
    desk.commit()

    assert desk.infos["S"].cursors == {"T1": 9, "added": 9, "gone": 3}


def test_topology_goes_on_from_its_cursor_after_a_roll_back() -> None:
    desk = Desk(*OLD)
    served(desk, 3)
    desk.deploy(*NEW)
    served(desk, 9)
    desk.deploy(*OLD)

    desk.sweep()
    desk.serve()

    assert desk.events_out("gone") == [4, 5, 6, 7, 8, 9]
    assert desk.out("T1") == []


def test_work_of_an_unknown_topology_sleeps_in_the_table_until_somebody_knows_it() -> None:
    desk = Desk(*OLD)
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.report("J1")
    desk.report("J2", failed={1: FailureClass.INVALID})
    desk.commit()

    desk.deploy(*NEW)
    served(desk, 5)
    desk.commit()

    row = desk.asleep["S"]
    assert row.wake_ms == NEVER_MS
    assert holds_unserved(Desk(*OLD).plan, row)
    assert not holds_unserved(Desk(*NEW).plan, row)
    [carried] = [each for each in row.lambdas if each.topology == "gone"]
    assert [(p.sequence, p.attempts, p.last_error) for p in carried.parked] == [(1, 1, "invalid 1")]
    assert desk.scheduler.active_subjects == 0

    desk.deploy(*OLD)
    desk.sweep()
    desk.wait(10_000)

    assert desk.record(desk.names_out("gone")[0]).attempt in (1, 2)
    assert desk.events_out("gone") == [1, 3, 4, 5]


def test_sweep_leaves_a_row_asleep_whose_work_nobody_here_knows() -> None:
    desk = Desk(*OLD)
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    desk.report("J1")
    desk.commit()

    desk.deploy(*NEW)
    served(desk, 1)
    desk.commit()
    desk.sweep()

    assert desk.scheduler.active_subjects == 0
    assert desk.infos["S"].cursors["gone"] == -1


def test_removed_lambda_of_a_known_topology_goes_on_after_a_roll_back() -> None:
    both, one = topology("T1", PARSE, STORE), topology("T1", PARSE)
    desk = Desk(both)
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.report("J1")
    desk.commit()

    desk.deploy(one)
    served(desk, 4)
    desk.commit()
    assert desk.infos["S"].cursors == {"T1": -1}, "no further than the lambda that is away"

    desk.deploy(both)
    desk.sweep()
    desk.serve()

    assert desk.state("S").lambdas[0].cursor == 4
    assert desk.events_out("T1") == [1, 2, 3, 4]


def test_renamed_topology_goes_on_where_it_stood_under_its_former_name() -> None:
    desk = Desk(topology("orders"))
    served(desk, 3)
    desk.commit()

    desk.deploy(topology("purchases", formerly=("orders",)))
    desk.publish("S", [4])
    desk.ping("S", 4)
    desk.serve()

    assert desk.out("purchases") == [[4]]


def test_topology_that_was_renamed_back_gets_everything_since() -> None:
    desk = Desk(topology("orders"))
    served(desk, 3)
    desk.deploy(topology("purchases", formerly=("orders",)))
    served(desk, 5)
    desk.deploy(topology("orders"))

    desk.sweep()
    desk.serve()

    assert desk.events_out("orders") == [4, 5]


@pytest.mark.parametrize(
    ("stored", "ping", "wanted"),
    [
        (CursorInfo("S", 5, {"T1": 5}), 7, [6, 7]),
        (CursorInfo("S", 5, {"T1": 3}), 7, [6, 7]),
        (CursorInfo("S", 5, {"T1": 5, "late": 2}), 7, [3, 4, 5, 6, 7]),
        (None, 7, [7]),
        (None, None, [1, 2, 3, 4, 5, 6, 7]),
        (CursorInfo("S", -1, {"T1": -1}), None, [1, 2, 3, 4, 5, 6, 7]),
    ],
    ids=["behind the newest", "of any topology", "begun", "unknown, named", "unknown", "empty"],
)
def test_latest_begins_behind_what_is_known(
    stored: CursorInfo | None, ping: int | None, wanted: list[int]
) -> None:
    desk = Desk(topology("T1"), topology("late", from_latest=True))
    desk.publish("S", range(1, 8))
    if stored:
        desk.infos["S"] = stored

    desk.ping("S", ping)
    desk.serve()

    assert desk.events_out("late") == wanted


def test_sweep_does_not_begin_a_topology_that_wants_only_what_is_new() -> None:
    desk = Desk(topology("T1"), topology("late", from_latest=True))
    desk.infos["S"] = CursorInfo("S", 5, {"T1": 5})

    desk.sweep()

    assert desk.scheduler.active_subjects == 0


def test_topology_that_begins_at_a_sequence_gets_nothing_below_it() -> None:
    desk = Desk(topology("T1"))
    served(desk, 5)
    desk.deploy(topology("T1"), topology("added", start=4))

    desk.sweep()
    desk.serve()

    assert desk.events_out("added") == [4, 5]
