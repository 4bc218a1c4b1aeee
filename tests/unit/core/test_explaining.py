"""Why a subject waits, in one sentence a lambda."""

from typing import Any

import pytest

from cape_stream.core.explaining import explain, parked_events
from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.operation import Verb
from cape_stream.model.status import FailureClass
from cape_stream.model.topology import Ordering
from tests.desk import Desk, topology

QUARANTINE = {FailureClass.INVALID: 1}


def about(desk: Desk, subject: str = "S", where: str = "active") -> dict[str, Any]:
    desk.commit()
    state = desk.look(subject)
    assert state is not None
    return explain(desk.plan, state, where, desk.scheduler.paused, desk.now_ms)


def because(answer: dict[str, Any], name: str) -> str:
    [found] = [each for each in answer["topologies"] if each["topology"] == name]
    text: str = found["lambdas"][0]["because"]
    return text


def pinged(*names: str, newest: int = 2, ordering: Ordering = "parallel") -> Desk:
    made = [topology(name, ordering=ordering, quarantine_after=QUARANTINE) for name in names]
    desk = Desk(*made)
    desk.publish("S", range(1, newest + 1))
    desk.ping("S", newest)
    return desk


def test_explain_says_that_the_source_is_asked() -> None:
    assert about(pinged("T1"))["because"] == (
        "T1/only: the source is being asked for the next events"
    )


def test_explain_says_that_the_source_rests_and_for_how_long() -> None:
    desk = pinged("T1")
    desk.fault("S")

    answer = about(desk)

    assert (
        "the source failed or fell short 1 times in a row; it is asked again in 0."
        in (answer["because"])
    )
    assert answer["source"]["failures_in_a_row"] == 1


def test_explain_says_what_is_out_since_when_and_until_when() -> None:
    desk = pinged("T1")
    desk.serve()
    desk.tick(2_000)

    answer = about(desk)

    assert answer["because"] == (
        "T1/only: 1 jobs are out; the oldest, 0-1-1 with event 1, attempt 1, for 2.0 s, and is"
        " given up in 28.0 s"
    )
    [job] = answer["topologies"][0]["lambdas"][0]["in_flight"]
    assert (job["events"], job["attempt"], job["expires_in_ms"]) == ([1, 2], 1, 28_000)


@pytest.mark.parametrize("ordering", ["parallel", "ordered"])
def test_explain_says_what_failed_and_when_it_is_tried_again(ordering: Ordering) -> None:
    desk = pinged("T1", ordering=ordering)
    desk.serve()
    desk.report("J1", failed=[1])

    answer = about(desk)

    assert "event 1 failed (transient: transient 1) and is tried again in 0." in answer["because"]
    assert answer["because"].endswith("as attempt 2") == (ordering == "parallel")
    [first, *_] = answer["topologies"][0]["lambdas"][0]["parked"]
    assert (first["event"], first["attempts"], first["failure_class"]) == (1, 1, "transient")


def test_explain_says_what_is_in_quarantine_also_of_a_sleeper() -> None:
    desk = pinged("T1")
    desk.serve()
    desk.report("J1", failed={2: FailureClass.INVALID})
    assert desk.scheduler.active_subjects == 0

    answer = about(desk, where="asleep")

    assert answer["because"] == (
        "T1/only: event 2 failed (invalid: invalid 2) 1 times and is in quarantine until somebody"
        " releases, skips or rewinds it"
    )
    state = desk.look("S")
    assert state is not None
    [parked] = parked_events(desk.plan, state, desk.now_ms)
    assert parked["quarantined"]
    assert parked["due_in_ms"] is None
    assert (parked["first_error"], parked["last_error"]) == ("invalid 2", "invalid 2")


def test_explain_names_the_predecessor_and_the_event_it_waits_at() -> None:
    desk = Desk(topology("T1"), topology("T2", after=("T1",)))
    desk.publish("S", [5, 6])
    desk.ping("S", 6)
    desk.serve()

    assert because(about(desk), "T2") == "event 5 waits for T1/only, which has not done it"

    desk.commit()
    desk.crash()
    assert because(about(desk), "T2") == "it waits for T1/only, which has done nothing"


def test_explain_says_that_a_topology_is_paused() -> None:
    desk = pinged("T1", "T2")
    desk.serve()
    desk.order(Verb.PAUSE, "T1", subject=None)

    answer = about(desk)

    assert because(answer, "T1") == (
        "the topology is paused; `cape topology resume` lets it go on; 1 jobs of before are still"
        " out"
    )
    assert [each["paused"] for each in answer["topologies"]] == [True, False]


def test_explain_says_that_all_is_done_or_that_a_sweep_takes_it_up() -> None:
    desk = Desk(topology("T1"), settings=SchedulerSettings())
    desk.infos["S"] = CursorInfo("S", 5, {"T1": 5})
    done = desk.scheduler.known_cursors("S", desk.infos["S"])
    assert done == [5]
    desk.ping("S", 6)
    desk.publish("S", [6])
    desk.serve()
    desk.report("J1")
    state = desk.scheduler.finisher("S")
    assert state is not None
    answer = explain(desk.plan, state, "idle", (), desk.now_ms)
    assert answer["because"] == "everything known of it is done"

    state.head = 9
    assert (
        "the next sweep, or a ping, takes it up"
        in (explain(desk.plan, state, "idle", (), desk.now_ms)["because"])
    )
