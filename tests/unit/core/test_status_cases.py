"""B19: the status sequences of `tests/data/job-status-cases.json`, run as a table.

Each case: subject acct-7, topology T1, cursor 98, events 99 and 100 exist, J1 is out for them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cape_stream.model.cursor import CursorInfo
from cape_stream.model.status import EventFailure, FailureClass, JobStatus, StatusKind
from tests.desk import Desk, topology

DATA = Path(__file__).parents[2] / "data" / "job-status-cases.json"
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads(DATA.read_text())["cases"]
}
SUBJECT = "acct-7"


class Case:
    """One case as it is played: the desk, and how often the cursor moved."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.desk = Desk(topology("T1"), epoch=2)
        self.desk.infos[SUBJECT] = CursorInfo(SUBJECT, 98, {"T1": 98})
        self.desk.publish(SUBJECT, [99, 100])
        self.cursors = [98]
        if "before" not in str(steps[0].get("do")):
            self.issue()
        self.start_ms = self.desk.now_ms
        for step in steps:
            self.play(step)

    def issue(self) -> None:
        self.desk.ping(SUBJECT, 100)
        self.desk.serve()
        assert self.desk.out() == [[99, 100]]

    def play(self, step: dict[str, Any]) -> None:
        """One step at its time."""
        desk = self.desk
        desk.wait(self.start_ms + step["t"] * 1_000 - desk.now_ms)
        if "timeout" in step.get("do", ""):
            while "J2" not in desk.jobs:
                desk.tick(10)
        if "status" in step:
            desk.status(self.read(**step["status"]))
            desk.serve()
            assert desk.scheduler.open_jobs >= 0
        cursor = desk.cursor(SUBJECT, "T1")
        if cursor != self.cursors[-1]:
            self.cursors.append(cursor)

    def read(self, job: str, subject: str = SUBJECT, **results: str) -> JobStatus:
        """The report that a step of the file spells."""
        known = self.desk.jobs.get(job)
        # A job that the dispatcher has not stored: issued by the owner before this one.
        job_id = known.job_id if known else {"J1": "0-1-1"}.get(job, job)
        failures = [
            EventFailure(int(sequence), FailureClass.TRANSIENT)
            for sequence, result in results.items()
            if result == "fail"
        ]
        done = [int(sequence) for sequence, result in results.items() if result == "ok"]
        attempt = known.attempt if known else 1
        return JobStatus(
            job_id,
            "flights",
            0,
            subject,
            "T1",
            "only",
            2,
            attempt,
            StatusKind.RESULTS,
            done,
            {},
            failures,
        )


def play(case_id: str) -> Case:
    return Case(CASES[case_id]["steps"])


@pytest.mark.parametrize("case_id", CASES)
def test_status_case_ends_as_the_table_says(case_id: str) -> None:
    case = play(case_id)
    expected = CASES[case_id]["expect"]

    told = {
        "cursor": case.cursors[-1],
        "cursor_writes": len(case.cursors) - 1,
        "inflight": case.desk.scheduler.open_jobs,
        "jobs_issued": len(case.desk.jobs),
    }
    assert {key: told[key] for key in expected if key in told} == {
        key: value for key, value in expected.items() if key in told
    }
    assert case.cursors == sorted(case.cursors)


def reissued(desk: Desk) -> Iterator[list[int]]:
    """What goes out once every wait is over."""
    while not desk.out():
        desk.tick(100)
        desk.serve()
    yield from desk.out()


def test_status_case_partial_issues_a_new_job_for_the_failed_event_only() -> None:
    assert list(reissued(play("partial").desk)) == [[100]]


def test_status_case_hole_retries_the_hole_and_does_not_lose_what_is_above() -> None:
    desk = play("hole").desk

    assert list(reissued(desk)) == [[99]]
    desk.report(desk.names_out()[0])
    assert desk.cursor(SUBJECT, "T1") == 100


def test_status_case_missing_event_is_not_done() -> None:
    desk = play("missing-event").desk

    assert desk.counters.missing_events == 1
    assert list(reissued(desk)) == [[100]]


def test_status_case_extra_event_is_ignored_and_counted() -> None:
    desk = play("extra-event").desk

    assert desk.counters.extra_events == 1


def test_status_case_unknown_job_leaves_the_known_one_in_flight() -> None:
    desk = play("unknown-job").desk

    assert desk.counters.unknown_statuses == 1
    assert desk.names_out() == ["J1"]


def test_status_case_wrong_subject_moves_neither() -> None:
    desk = play("wrong-subject").desk

    assert desk.counters.wrong_subject == 1
    assert desk.cursor(SUBJECT, "T1") == 98
    assert desk.scheduler.subject("acct-8") is None
    assert not desk.scheduler.holds("acct-8")


def test_status_case_late_success_makes_the_second_report_a_no_op() -> None:
    desk = play("late-success").desk

    assert desk.counters.late_successes == 2
    assert desk.counters.repeated_events == 2


def test_status_case_before_the_issue_record_executes_nothing_again() -> None:
    case = play("before-issue-record")

    assert case.desk.jobs == {}
    assert case.desk.cursor(SUBJECT, "T1") == 100
