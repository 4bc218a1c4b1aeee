"""Roles as processes on a real Kafka, killed and cut off at work.

The judge reads only the source and what the handlers wrote.
"""

import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.broker import LocalBroker
from tests.integration import run_app
from tests.integration.run_app import Execution

APP = "tests.integration.run_app:app"
TOPOLOGIES = ("ledger", "audit")
SUBJECTS, EVENTS_EACH = 40, 60
WORLD = {"RUN_APP_EVENT_WORK_S": "0.005", "RUN_APP_TIMEOUT_S": "6"}

Process = subprocess.Popen[str]


@pytest.mark.timeout(240)
def test_members_lose_and_reorder_nothing_when_some_are_killed_and_the_broker_restarts(
    kafka_broker: LocalBroker, tmp_path: Path
) -> None:
    run_app.fill(tmp_path, SUBJECTS, EVENTS_EACH)
    kafka = ("--kafka", kafka_broker.bootstrap)
    apply = run_app.start(tmp_path, "topics", "apply", APP, *kafka, "--replication", "1")
    assert apply.wait(60) == 0, apply.communicate()[1]
    with _members(tmp_path, kafka, ["dispatcher"] * 2 + ["worker"] * 3 + ["refresh"]) as members:
        first_dispatcher, _, first_worker, *_ = members

        _wait(tmp_path, 0.15, members)
        first_dispatcher.send_signal(signal.SIGKILL)
        _wait(tmp_path, 0.4, members[1:])
        first_worker.send_signal(signal.SIGKILL)
        _wait(tmp_path, 0.65, [members[1], *members[3:]])
        kafka_broker.restart()
        _wait(tmp_path, 1.0, [members[1], *members[3:]])

    whole = set(range(EVENTS_EACH))
    for topology in TOPOLOGIES:
        found = run_app.delivered(tmp_path, topology)
        assert len(found) == SUBJECTS
        assert all(set(each) == whole for each in found.values())
        unexplained = [
            again for again in _repeats(run_app.executions(tmp_path, topology)) if not again[1]
        ]
        assert unexplained == []
    ledger = run_app.delivered(tmp_path, "ledger")
    assert [run_app.jumps(each) for each in ledger.values()] == [[]] * SUBJECTS


def test_repeats_explains_no_execution_of_one_attempt_by_two_jobs() -> None:
    first, second = Execution("a", 1, 1, "0-1-1"), Execution("a", 1, 2, "0-1-2")
    twin = Execution("a", 1, 1, "0-1-4")

    assert _repeats([first, second]) == [(second, "attempt 2 beside attempt 1")]
    assert _repeats([first, first]) == [(first, "job 0-1-1 was read again")]
    assert _repeats([first, twin]) == [(twin, "")]
    assert _repeats([first, Execution("b", 1, 1, "0-1-3")]) == []


def _repeats(executions: Sequence[Execution]) -> list[tuple[Execution, str]]:
    """Executions of an event beyond its first, each with what explains it, or nothing.

    A worker that dies takes what it did with it: either it had not yet said that it took the job,
    then the next worker reads the same job; or the dispatcher waits in vain, then there is a newer
    attempt. Two jobs for one attempt would be two owners, or an event that was issued twice.
    """
    before: dict[tuple[str, int], list[Execution]] = defaultdict(list)
    found = []
    for each in executions:
        earlier = before[each.subject, each.sequence]
        if earlier:
            found.append((each, _explanation(each, earlier)))
        earlier.append(each)
    return found


def _explanation(again: Execution, earlier: Sequence[Execution]) -> str:
    if any(again.job_id == each.job_id for each in earlier):
        return f"job {again.job_id} was read again"
    if any(again.attempt == each.attempt for each in earlier):
        return ""
    return f"attempt {again.attempt} beside attempt {earlier[-1].attempt}"


@contextmanager
def _members(folder: Path, kafka: Sequence[str], roles: Sequence[str]) -> Iterator[list[Process]]:
    members = [
        run_app.start(
            folder,
            *(role, APP, *kafka, "--data", str(folder / f"{role}-{number}"), "--quiet"),
            environment=WORLD,
        )
        for number, role in enumerate(roles)
    ]
    try:
        yield members
    finally:
        end_all(members)


def end_all(members: Sequence[Process]) -> None:
    """Stop processes in good order, or else by force."""
    for member in members:
        if member.poll() is None:
            member.terminate()
    for member in members:
        try:
            member.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            member.kill()
            member.communicate()


def _wait(folder: Path, share: float, members: Sequence[Process]) -> None:
    """Wait until so much is delivered to every topology; all ``members`` must stay alive."""
    wanted = share * SUBJECTS * EVENTS_EACH
    while min(_count(folder, topology) for topology in TOPOLOGIES) < wanted:
        for member in members:
            assert member.poll() is None, f"{member.args!r} ended: {member.communicate()[1]}"
        time.sleep(0.2)


def _count(folder: Path, topology: str) -> int:
    return sum(len(set(each)) for each in run_app.delivered(folder, topology).values())
