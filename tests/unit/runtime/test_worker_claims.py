from pathlib import Path

import pytest

from cape_stream.adapters.claims_file import FileClaims
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.status import EventFailure, FailureClass
from cape_stream.runtime.worker_claims import (
    CLAIM,
    STATUS_OUTPUT_BYTES_MAX,
    ClaimDesk,
    with_missed,
)
from cape_stream.runtime.worker_counters import WorkerCounters
from cape_stream.runtime.worker_handler import JobOutcome
from tests.unit.runtime.worker_worlds import PlainWorld

LIMIT = 100
LARGE = b"\x00" + b"x" * LIMIT


class Desk:
    """A claim desk on a folder, or without a store."""

    def __init__(self, folder: Path | None, limit: int = LIMIT) -> None:
        self.store = FileClaims(folder) if folder else None
        self.desk = ClaimDesk(self.store, limit)
        self.counters = WorkerCounters()

    def deposit(self, outcome: JobOutcome, *, stops: bool = False) -> JobOutcome:
        return self.desk.deposit(outcome, stops, self.counters)

    def redeem(self, job: Job, *, stops: bool = False) -> tuple[Job, list[EventFailure]]:
        return self.desk.redeem(job, stops, self.counters)

    def claim(self, value: bytes = LARGE) -> bytes:
        return self.deposit(JobOutcome([1], {1: value})).outputs[1]


def job(*inputs: dict[str, bytes]) -> Job:
    made = PlainWorld().job("delays")
    made.events = [Event(number, b"e", inputs=each) for number, each in enumerate(inputs, 1)]
    return made


def test_output_up_to_the_limit_travels_itself(tmp_path: Path) -> None:
    outcome = JobOutcome([1, 2], {1: LARGE[:LIMIT]})

    assert Desk(tmp_path).deposit(outcome) is outcome


def test_output_over_the_limit_travels_as_a_claim_and_comes_back(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    outcome = desk.deposit(JobOutcome([1, 2], {1: LARGE, 2: b'"small"'}))

    assert outcome.done == [1, 2]
    assert outcome.outputs[2] == b'"small"'
    assert outcome.outputs[1][:1] == CLAIM
    assert len(outcome.outputs[1]) == 65
    given = job({"parse": outcome.outputs[1], "check": b"7"}, {"parse": b'"small"'}, {})
    redeemed, failures = desk.redeem(given)
    assert [event.inputs for event in redeemed.events] == [
        {"parse": LARGE, "check": b"7"},
        {"parse": b'"small"'},
        {},
    ]
    assert failures == []
    assert (desk.counters.claims_made, desk.counters.claims_redeemed) == (1, 1)
    assert given.events[0].inputs["parse"] == outcome.outputs[1], "the job as it came is untouched"


def test_equal_outputs_share_one_claim(tmp_path: Path) -> None:
    outcome = Desk(tmp_path).deposit(JobOutcome([1, 2], {1: LARGE, 2: LARGE}))

    assert outcome.outputs[1] == outcome.outputs[2]
    assert len([each for each in tmp_path.rglob("*") if each.is_file()]) == 1


def test_outputs_too_large_together_go_to_the_store_largest_first(tmp_path: Path) -> None:
    third = STATUS_OUTPUT_BYTES_MAX // 3
    outputs = {1: b"a" * third, 2: b"b" * (third + 2), 3: b"c" * third, 4: b"d"}
    desk = Desk(tmp_path, limit=STATUS_OUTPUT_BYTES_MAX)
    outcome = desk.deposit(JobOutcome([1, 2, 3, 4], outputs))

    assert [number for number, each in outcome.outputs.items() if each[:1] == CLAIM] == [2]
    assert outcome.outputs.keys() == outputs.keys()
    assert (
        Desk(None, limit=STATUS_OUTPUT_BYTES_MAX).deposit(JobOutcome([1, 2, 3, 4], outputs)).outputs
        is outputs
    ), "without a store, whoever sends the status says that it is too large"


def test_output_over_the_limit_is_invalid_where_there_is_no_store() -> None:
    outcome = Desk(None).deposit(JobOutcome([1, 2, 3], {1: b"1", 2: LARGE, 3: b"3"}))

    assert outcome.done == [1, 3]
    assert outcome.outputs == {1: b"1", 3: b"3"}
    (failure,) = outcome.failures
    assert (failure.sequence, failure.failure_class) == (2, FailureClass.INVALID)
    for part in ("101 bytes", "worker.output_bytes_max = 100", "worker.claims"):
        assert part in failure.error


def test_nothing_behind_a_refused_output_is_done_where_the_order_matters() -> None:
    failed = EventFailure(4, FailureClass.BUG)
    outcome = JobOutcome([1, 2, 3], {1: b"1", 2: LARGE, 3: b"3"}, [failed])
    kept = Desk(None).deposit(outcome, stops=True)

    assert kept.done == [1]
    assert kept.outputs == {1: b"1"}
    assert [failure.sequence for failure in kept.failures] == [2]


def test_outputs_are_transient_failures_while_the_store_is_away(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "claims")
    (tmp_path / "claims").rmdir()
    (tmp_path / "claims").write_bytes(b"")
    outcome = desk.deposit(JobOutcome([1, 2, 3], {1: LARGE, 2: b"2", 3: LARGE}))

    assert outcome.done == [2]
    assert [(each.sequence, each.failure_class) for each in outcome.failures] == [
        (1, FailureClass.TRANSIENT),
        (3, FailureClass.TRANSIENT),
    ]
    assert str(tmp_path) in outcome.failures[0].error


def test_lost_claim_is_a_transient_failure_of_its_event_only(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    lost, kept = desk.claim(b"\x00" + b"y" * LIMIT), desk.claim()
    (path,) = tmp_path.rglob(lost[3:].decode())
    path.unlink()
    redeemed, failures = desk.redeem(job({"parse": lost}, {"parse": kept}, {"parse": b"3"}))

    assert [event.sequence for event in redeemed.events] == [2, 3]
    (failure,) = failures
    assert (failure.sequence, failure.failure_class) == (1, FailureClass.TRANSIENT)
    for part in ("'parse'", "is lost", str(tmp_path), "worker.claims", lost[1:17].decode()):
        assert part in failure.error
    assert desk.counters.claims_missed == 1


def test_nothing_behind_a_lost_claim_runs_where_the_order_matters(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    kept = desk.claim()
    lost = CLAIM + b"0" * 64
    given = job({"parse": kept}, {"parse": lost}, {"parse": lost}, {"parse": b"4"})
    redeemed, failures = desk.redeem(given, stops=True)

    assert [event.sequence for event in redeemed.events] == [1]
    assert [failure.sequence for failure in failures] == [2]


def test_damaged_claim_is_a_transient_failure(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    claim = desk.claim()
    (path,) = tmp_path.rglob(claim[3:].decode())
    path.write_bytes(b"something else")
    redeemed, (failure,) = desk.redeem(job({"parse": claim}))

    assert redeemed.events == []
    assert failure.failure_class is FailureClass.TRANSIENT
    assert "is damaged" in failure.error


@pytest.mark.parametrize(
    "claim", [CLAIM, CLAIM + b"../../etc/passwd", CLAIM + b"A" * 64, CLAIM + b"a" * 64 + b"\n"]
)
def test_claim_without_a_proper_name_is_not_looked_for(tmp_path: Path, claim: bytes) -> None:
    _, (failure,) = Desk(tmp_path).redeem(job({"parse": claim}))

    assert "a claim without a name" in failure.error


def test_claim_of_a_worker_without_a_store_says_what_to_set(tmp_path: Path) -> None:
    claim = Desk(tmp_path).claim()
    _, (failure,) = Desk(None).redeem(job({"parse": claim}))

    assert failure.failure_class is FailureClass.TRANSIENT
    assert "set worker.claims" in failure.error


def test_claims_are_transient_failures_while_the_store_is_away(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "claims")
    claim = desk.claim()
    (tmp_path / "claims").rename(tmp_path / "moved")
    (tmp_path / "claims").write_bytes(b"")
    given = job({"parse": claim}, {"parse": b"2"}, {"parse": claim})
    redeemed, failures = desk.redeem(given)

    assert [event.sequence for event in redeemed.events] == [2]
    assert [failure.sequence for failure in failures] == [1, 3]


MISSED = [EventFailure(2, FailureClass.TRANSIENT, "lost")]
FAILED = EventFailure(1, FailureClass.BUG)


@pytest.mark.parametrize(
    ("outcome", "stops", "sequences"),
    [
        (JobOutcome([1]), False, [2]),
        (JobOutcome([1]), True, [2]),
        (JobOutcome([], failures=[FAILED]), False, [1, 2]),
        (JobOutcome([], failures=[FAILED]), True, [1]),
    ],
)
def test_missed_events_have_failed_unless_they_were_not_reached(
    outcome: JobOutcome, stops: bool, sequences: list[int]
) -> None:
    merged = with_missed(outcome, job({}), MISSED, stops)

    assert [failure.sequence for failure in merged.failures] == sequences
