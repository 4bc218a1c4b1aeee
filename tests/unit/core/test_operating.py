"""What operators' verbs do, and what they are refused for."""

import pytest

from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.active_row import NEVER_MS
from cape_stream.model.operation import Outcome, Verb
from cape_stream.model.status import FailureClass
from cape_stream.model.topology import LambdaSpec
from tests.desk import Desk, topology

APPLIED, NOTHING, REFUSED = Outcome.APPLIED, Outcome.NOTHING, Outcome.REFUSED
QUARANTINE = {FailureClass.INVALID: 1}


def finish(desk: Desk) -> None:
    """Everything that is out is done, and what follows it."""
    for _ in range(50):
        desk.serve()
        for name in desk.names_out():
            desk.report(name)
    assert not desk.out()


def at_ten(*topologies: str) -> Desk:
    """A desk whose subject S is done up to 10, and stored."""
    desk = Desk(*(topology(name) for name in topologies or ("T1",)))
    desk.publish("S", range(1, 11))
    desk.ping("S", 10)
    finish(desk)
    desk.commit()
    return desk


def with_quarantined() -> Desk:
    desk = Desk(topology("T1", LambdaSpec(lambda_id="only"), quarantine_after=QUARANTINE))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.report("J1", failed={1: FailureClass.INVALID})
    desk.commit()
    return desk


# --- rewind ------------------------------------------------------------------------------------


def test_rewind_delivers_again_what_follows() -> None:
    desk = at_ten("T1", "T2")

    ruling = desk.order(Verb.REWIND, "T1", sequence=7)
    desk.serve()

    assert (ruling.outcome, ruling.detail) == (APPLIED, "cursor 10 → 7")
    assert (desk.events_out("T1"), desk.events_out("T2")) == ([8, 9, 10], [])
    finish(desk)
    assert desk.cursor("S", "T1") == 10


def test_rewind_gives_up_what_is_out_and_ignores_what_it_reports() -> None:
    desk = at_ten()
    desk.publish("S", [11, 12])
    desk.ping("S", 12)
    desk.serve()

    ruling = desk.order(Verb.REWIND, "T1", sequence=9)
    desk.serve()
    desk.report("J2")

    assert ruling.detail == "cursor 10 → 9; 1 jobs given up"
    assert desk.counters.ignored_successes == 2
    assert desk.out("T1") == [[10, 11, 12]]
    assert desk.newest().attempt == 2, "a greater fencing token than the one given up"


def test_rewind_survives_a_crash_without_taking_old_jobs_for_new_ones() -> None:
    desk = at_ten()
    desk.publish("S", [11, 12])
    desk.ping("S", 12)
    desk.serve()
    late = desk.make_status("J2")

    desk.order(Verb.REWIND, "T1", sequence=9)
    desk.commit()
    desk.crash(adopting=["J1", "J2"], statuses=[late])
    desk.serve()

    assert desk.out("T1") == [[10, 11, 12]]
    finish(desk)
    assert desk.cursor("S", "T1") == 12


def test_rewind_holds_when_the_subject_leaves_memory_before_it_is_served() -> None:
    """Its topology is paused: nothing is under way for it, and an old job is still at work."""
    desk = at_ten()
    desk.publish("S", [11, 12])
    desk.ping("S", 12)
    desk.serve()
    late = desk.make_status("J2")
    desk.order(Verb.PAUSE, "T1", subject=None)

    desk.order(Verb.REWIND, "T1", sequence=9)
    desk.commit()
    assert desk.scheduler.active_subjects == 0
    desk.status(late)
    desk.commit()
    desk.order(Verb.RESUME, "T1", subject=None)
    desk.wait(60_000)
    desk.serve()

    assert desk.out("T1") == [[10, 11, 12]]
    assert desk.newest().attempt == 2, "a greater fencing token than the one given up"


def test_rewind_forgets_what_was_put_aside() -> None:
    desk = with_quarantined()

    desk.order(Verb.REWIND, "T1", sequence=-1)
    desk.serve()

    assert desk.events_out("T1") == [1, 2]
    assert desk.scheduler.parked_events == 0


def test_rewind_brings_outputs_anew() -> None:
    stages = (LambdaSpec(lambda_id="parse"), LambdaSpec(lambda_id="store", inputs=("parse",)))
    desk = Desk(topology("T1", *stages))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.report("J1", outputs={1: b"old", 2: b"old"})
    finish(desk)

    desk.order(Verb.REWIND, "T1", sequence=1)
    desk.serve()
    desk.report(desk.names_out()[0], outputs={2: b"new"})

    assert [dict(each.inputs) for each in desk.newest().events] == [{"parse": b"new"}]


@pytest.mark.parametrize("to", [-5, 2])
def test_rewind_beyond_history_is_refused(to: int) -> None:
    desk = Desk(topology("T1", start=4))
    desk.publish("S", range(1, 9))
    desk.ping("S", 8)
    finish(desk)

    ruling = desk.order(Verb.REWIND, "T1", sequence=to)

    assert ruling.outcome is REFUSED
    assert "is before the history of 'T1', which starts with 4: rewind to 3" in ruling.detail
    assert desk.cursor("S", "T1") == 8


def test_rewind_does_not_go_forward() -> None:
    ruling = at_ten().order(Verb.REWIND, "T1", sequence=11)

    assert ruling.outcome is REFUSED
    assert "use `cape cursor set`" in ruling.detail


def test_dependent_topology_waits_for_a_rewound_one_and_repeats_nothing() -> None:
    desk = Desk(topology("T1"), topology("T2", after=("T1",)))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    finish(desk)

    desk.order(Verb.REWIND, "T1", sequence=0)
    desk.publish("S", [3])
    desk.ping("S", 3)
    desk.serve()

    assert (desk.events_out("T1"), desk.events_out("T2")) == ([1, 2, 3], [])
    finish(desk)
    assert [e.sequence for j in desk.jobs.values() if j.topology == "T2" for e in j.events] == [
        *(1, 2, 3)
    ]


# --- skip and set ------------------------------------------------------------------------------


def test_skip_takes_one_event_as_done() -> None:
    desk = with_quarantined()

    ruling = desk.order(Verb.SKIP, "T1", sequence=1)

    assert (ruling.outcome, ruling.detail) == (APPLIED, "1 taken as done")
    desk.serve()
    assert desk.cursor("S", "T1") == 2
    assert not desk.asleep


def test_skip_takes_an_event_out_of_a_job() -> None:
    desk = Desk(topology("T1"))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()

    desk.order(Verb.SKIP, "T1", sequence=1)
    desk.report("J1", done=[2])

    assert desk.cursor("S", "T1") == 2
    assert desk.counters.jobs_issued == 1


def test_skip_of_an_event_that_is_not_reached_yet_holds() -> None:
    desk = Desk(topology("T1", LambdaSpec(lambda_id="only", max_batch=1), ordering="ordered"))
    desk.publish("S", [1, 2, 3])
    desk.ping("S", 3)
    desk.serve()

    desk.order(Verb.SKIP, "T1", sequence=2)
    desk.report("J1")

    assert desk.out("T1") == [[3]]


@pytest.mark.parametrize("verb", [Verb.SKIP, Verb.REWIND, Verb.SET, Verb.BACKFILL])
@pytest.mark.parametrize("why", ["", "  "])
def test_verbs_that_change_what_is_delivered_need_a_reason(verb: Verb, why: str) -> None:
    desk = at_ten()

    ruling = desk.order(verb, "T1", sequence=3, why=why)

    assert ruling.outcome is REFUSED
    assert ruling.detail.startswith(f"{verb} needs a reason")
    assert desk.cursor("S", "T1") == 10


def test_skip_of_what_was_done_has_nothing_to_do() -> None:
    desk = at_ten()

    assert desk.order(Verb.SKIP, "T1", sequence=4).outcome is NOTHING
    assert desk.order(Verb.SKIP, "T1", sequence=11).outcome is REFUSED
    assert desk.scheduler.active_subjects == 0


def test_set_goes_forward_over_what_is_out_and_put_aside() -> None:
    desk = with_quarantined()
    desk.publish("S", [3, 4])
    desk.ping("S", 4)
    desk.serve()
    assert desk.out("T1") == [[3, 4]]

    ruling = desk.order(Verb.SET, "T1", sequence=3)

    assert ruling.detail == "cursor none → 3; up to 3 taken as done"
    assert desk.out("T1") == [[4]]
    finish(desk)
    assert desk.cursor("S", "T1") == 4


def test_set_goes_back_like_a_rewind_and_not_beyond_what_exists() -> None:
    desk = at_ten()

    assert desk.order(Verb.SET, "T1", sequence=11).outcome is REFUSED
    assert desk.order(Verb.SET, "T1", sequence=10).outcome is NOTHING
    assert desk.order(Verb.SET, "T1", sequence=8).detail == "cursor 10 → 8"
    desk.serve()
    assert desk.events_out("T1") == [9, 10]


def test_backfill_delivers_from_an_event_on_once_more() -> None:
    desk = at_ten()

    assert desk.order(Verb.BACKFILL, "T1", sequence=9).outcome is APPLIED
    desk.serve()
    assert desk.events_out("T1") == [9, 10]
    assert desk.order(Verb.BACKFILL, "T1", sequence=9).outcome is NOTHING


# --- what is put aside -------------------------------------------------------------------------


def test_release_wakes_a_quarantined_event_and_gives_it_all_its_attempts() -> None:
    desk = with_quarantined()
    assert desk.asleep["S"].wake_ms == NEVER_MS

    ruling = desk.order(Verb.RELEASE, "T1", sequence=1)
    desk.serve()

    assert (ruling.outcome, ruling.detail) == (APPLIED, "due now: 1")
    assert desk.out("T1") == [[1]]
    assert (desk.newest().attempt, desk.record("J2").charged) == (2, 0)


def test_release_of_what_is_not_put_aside_says_where_it_is() -> None:
    desk = at_ten()
    desk.publish("S", [11])
    desk.ping("S", 13)
    desk.serve()

    assert desk.order(Verb.RELEASE, "T1", sequence=4).detail == "4 was done"
    assert desk.order(Verb.RELEASE, "T1", sequence=11).detail == "11 is in a job that is out"
    assert desk.order(Verb.RELEASE, "T1", sequence=13).outcome is REFUSED


def test_retry_releases_everything_of_the_subject() -> None:
    desk = Desk(topology("T1", quarantine_after=QUARANTINE))
    desk.publish("S", range(1, 4))
    desk.ping("S", 3)
    desk.serve()
    desk.report("J1", failed={1: FailureClass.INVALID, 2: FailureClass.TRANSIENT})
    desk.commit()

    ruling = desk.order(Verb.RETRY, "T1")
    desk.serve()

    assert ruling.detail == "due now: 1, 2"
    assert desk.events_out("T1") == [1, 2]
    assert desk.order(Verb.RETRY, "T1").outcome is NOTHING


# --- pause and resume --------------------------------------------------------------------------


def test_paused_topology_gets_no_new_jobs_and_its_subjects_leave_memory() -> None:
    desk = Desk(topology("T1"), topology("T2"))
    desk.publish("S", [1, 2])

    assert desk.order(Verb.PAUSE, "T1", subject=None).outcome is APPLIED
    desk.ping("S", 2)
    finish(desk)
    desk.commit()
    desk.sweep()

    assert [job.topology for job in desk.jobs.values()] == ["T2"]
    assert desk.scheduler.active_subjects == 0
    assert desk.infos["S"].cursors == {"T1": -1, "T2": 2}


@pytest.mark.parametrize("is_named", [True, False])
def test_news_of_a_pause_is_delivered_after_it(is_named: bool) -> None:
    desk = at_ten()
    desk.order(Verb.PAUSE, "T1", subject=None)
    desk.publish("S", [11])
    desk.ping("S", 11 if is_named else None)
    desk.commit()
    desk.crash()

    assert desk.order(Verb.RESUME, "T1", subject=None).outcome is APPLIED
    desk.serve()

    assert desk.events_out("T1") == [11]


def test_events_put_aside_during_a_pause_go_on_after_it() -> None:
    settings = SchedulerSettings(sleep_after_ms=1_000)
    desk = Desk(topology("T1"), settings=settings)
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()
    desk.order(Verb.DRAIN, "T1", subject=None)
    desk.report("J1", failed=[1])
    desk.wait(600_000)
    desk.commit()
    assert desk.scheduler.active_subjects == 0

    desk.order(Verb.RESUME, "T1", subject=None)
    desk.serve()

    assert desk.out("T1") == [[1]]


def test_pause_and_drain_say_how_much_is_out() -> None:
    desk = Desk(topology("T1"))
    desk.publish("S", [1])
    desk.ping("S", 1)
    desk.serve()

    assert desk.order(Verb.DRAIN, "T1", subject=None).detail == "paused; 1 jobs are out"
    desk.report("J1")
    again = desk.order(Verb.DRAIN, "T1", subject=None)
    assert (again.outcome, again.detail) == (NOTHING, "was paused; no job is out")


def test_resume_has_nothing_to_do_where_nothing_is_paused() -> None:
    assert at_ten().order(Verb.RESUME, "T1", subject=None).outcome is NOTHING


# --- what nobody knows -------------------------------------------------------------------------


@pytest.mark.parametrize("verb", Verb)
def test_unknown_topology_is_refused_by_every_verb(verb: Verb) -> None:
    ruling = at_ten().order(verb, "T7", sequence=1)

    assert ruling.outcome is REFUSED
    assert ruling.detail == "no topology 'T7' in this domain: it has T1"


@pytest.mark.parametrize("verb", [v for v in Verb if v not in {"pause", "drain", "resume"}])
def test_unknown_subject_is_refused_by_every_verb_about_one(verb: Verb) -> None:
    desk = at_ten()

    ruling = desk.order(verb, "T1", "X", sequence=1)

    assert ruling.outcome is REFUSED
    assert ruling.detail == "no subject 'X' in this domain: nothing is known of it"
    assert desk.order(verb, "T1", None, sequence=1).outcome is REFUSED
    if verb is not Verb.RETRY:
        assert desk.order(verb, "T1", "S").outcome is REFUSED
