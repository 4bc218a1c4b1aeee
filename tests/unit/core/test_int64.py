"""B28: sequence ids of all sizes, exact through ping, page, job, status, cursor and restart."""

import json
from pathlib import Path

import pytest
from msgspec import msgpack

from cape_stream.model.cursor import CursorInfo
from cape_stream.model.sequence import SEQUENCE_MAX
from tests.desk import Desk, topology

DATA = Path(__file__).parents[2] / "data" / "int64-cases.json"
CASES = json.loads(DATA.read_text())
ACCEPTED: list[int] = [0, *CASES["accept"]]


def served(sequence: int) -> Desk:
    desk = Desk(topology("T1"), topology("T2", after=("T1",)))
    desk.publish("S", [sequence])
    desk.ping("S", sequence)
    desk.serve()
    return desk


@pytest.mark.parametrize("sequence", ACCEPTED)
def test_sequence_id_is_exact_from_ping_to_cursor(sequence: int) -> None:
    desk = served(sequence)
    assert desk.out() == [[sequence]]
    desk.report("J1")
    assert desk.out() == [[sequence]]
    desk.report("J2")

    desk.commit()
    assert desk.infos["S"] == CursorInfo("S", sequence, {"T1": sequence, "T2": sequence})
    assert desk.scheduler.active_subjects == 0


@pytest.mark.parametrize("sequence", ACCEPTED)
def test_sequence_id_is_exact_through_failure_and_restart(sequence: int) -> None:
    desk = served(sequence)
    desk.report("J1", failed=[sequence])
    desk.commit()
    assert str(sequence) in str(msgpack.decode(desk.active["S"]))
    desk.crash()
    while not desk.out():
        desk.tick(100)
        desk.serve()

    assert desk.out() == [[sequence]]
    desk.report(desk.names_out()[0])
    assert desk.cursor("S", "T1") == sequence


def test_zero_is_an_event_and_not_the_absence_of_one() -> None:
    desk = Desk(topology("T1"))
    desk.ping("S")

    assert [query.start for query in desk.queries] == [0]
    desk.answer("S", [0])
    desk.report("J1")
    assert desk.cursor("S", "T1") == 0
    desk.ping("S", 0)
    assert desk.queries == []


@pytest.mark.parametrize("latest", [SEQUENCE_MAX, None])
def test_nothing_is_asked_beyond_the_end_of_int64(latest: int | None) -> None:
    desk = Desk(topology("T1"), page_limit=2)
    desk.infos["S"] = CursorInfo("S", SEQUENCE_MAX - 2, {"T1": SEQUENCE_MAX - 2})
    desk.ping("S", latest)
    desk.answer("S", [SEQUENCE_MAX - 1, SEQUENCE_MAX])

    assert desk.queries == []
    assert desk.out() == [[SEQUENCE_MAX - 1, SEQUENCE_MAX]]
    desk.report("J1")
    assert desk.scheduler.active_subjects == 0
    desk.commit()
    desk.ping("S")
    assert desk.queries == []
    assert desk.scheduler.active_subjects == 0


def test_start_at_the_end_of_int64_waits_for_the_last_event() -> None:
    desk = Desk(topology("T1", start=SEQUENCE_MAX))
    desk.publish("S", [SEQUENCE_MAX - 1, SEQUENCE_MAX])
    desk.ping("S", SEQUENCE_MAX)
    desk.serve()

    assert desk.out() == [[SEQUENCE_MAX]]
