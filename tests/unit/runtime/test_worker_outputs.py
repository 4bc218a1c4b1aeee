"""Outputs on their way from one lambda's worker to the next one's, small and large."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cape_stream.adapters.claims_file import FileClaims
from cape_stream.model.event import Event
from cape_stream.model.status import FailureClass, JobStatus, StatusKind
from cape_stream.model.topology import Ordering
from cape_stream.ports.claims import ClaimStore
from cape_stream.runtime.worker_claims import CLAIM
from cape_stream.runtime.worker_settings import WorkerSettings
from cape_stream.sdk import Batch, EventResult
from cape_stream.sdk.topology import ExecutorName
from tests.unit.runtime import process_handlers
from tests.unit.runtime.worker_worlds import PlainWorld

LIMIT = 1_000
VALUES = {
    "bytes": b"\x01" * 5_000,
    "a claim of the user's own making": CLAIM + b"a" * 64,
    "text": "x" * 5_000,
    "json": {"rows": list(range(2_000))},
    "small bytes": b"x",
    "no bytes": b"",
    "nothing": None,
}


class Line:
    """Two lambdas: ``parse`` gives an output for event 1, ``store`` notes its inputs."""

    def __init__(self, output: Any, ordering: Ordering = "parallel") -> None:
        self.world = PlainWorld()
        self.topology = self.world.app.domains["flights"].topology("line", ordering=ordering)
        self.seen: list[list[Any]] = []

        def parse(batch: Batch) -> Iterator[EventResult]:
            yield batch.events[0].done(output=output)
            yield batch.events[1].done()

        def store(batch: Batch) -> None:
            self.seen.append([event.input for event in batch])

        self.parse = self.topology.handler(parse)
        self.topology.handler(inputs=parse)(store)

    def run(self, lambda_id: str, *events: Event, claims: ClaimStore | None = None) -> JobStatus:
        """One job on a fresh worker; its status."""
        settings = WorkerSettings(
            queues=("general",), inline=True, concurrency=1, output_bytes_max=LIMIT
        )
        worker = self.world.worker(settings, claims)
        worker.step(0)
        made = replace(self.world.job("line"), lambda_id=lambda_id)
        job = self.world.issue(replace(made, events=events or made.events))
        for _ in range(5):
            worker.step(0)
        worker.close()
        (status,) = (each for each in self.world.statuses() if each.job_id == job.job_id)
        return status


@pytest.mark.parametrize("name", VALUES)
def test_next_handler_gets_what_the_first_one_gave(tmp_path: Path, name: str) -> None:
    line = Line(VALUES[name])
    status = line.run("parse", claims=FileClaims(tmp_path))
    inputs = [
        {"parse": status.outputs[sequence]} if sequence in status.outputs else {}
        for sequence in (1, 2)
    ]
    events = [Event(sequence, b"e", inputs=each) for sequence, each in enumerate(inputs, 1)]
    stored = line.run("store", *events, claims=FileClaims(tmp_path))

    assert list(status.done) == [1, 2]
    assert all(len(output) <= LIMIT for output in status.outputs.values())
    assert list(stored.done) == [1, 2]
    assert line.seen == [[VALUES[name], None]]


@pytest.mark.parametrize(
    ("ordering", "done", "failed"), [("parallel", [2], [1]), ("ordered", [], [1])]
)
def test_output_over_the_limit_fails_its_event_where_there_is_no_store(
    ordering: Ordering, done: list[int], failed: list[int]
) -> None:
    status = Line(b"x" * LIMIT, ordering).run("parse")

    assert list(status.done) == done
    assert [each.sequence for each in status.failures] == failed
    assert status.failures[0].failure_class is FailureClass.INVALID
    assert "1,001 bytes is over worker.output_bytes_max = 1,000" in status.failures[0].error


def test_handler_runs_for_the_other_events_when_a_claim_is_lost(tmp_path: Path) -> None:
    line = Line(b"x" * LIMIT)
    lost = {"parse": CLAIM + b"0" * 64}
    events = [Event(1, b"e", inputs=lost), Event(2, b"e", inputs={"parse": b"7"})]
    status = line.run("store", *events, claims=FileClaims(tmp_path))

    assert line.seen == [[7]]
    assert list(status.done) == [2]
    assert [each.failure_class for each in status.failures] == [FailureClass.TRANSIENT]


@pytest.mark.parametrize("ordering", ["parallel", "ordered"])
def test_handler_does_not_run_when_all_claims_are_lost(tmp_path: Path, ordering: Ordering) -> None:
    line = Line(b"x" * LIMIT, ordering)
    lost = {"parse": CLAIM + b"0" * 64}
    events = [Event(1, b"e", inputs=lost), Event(2, b"e", inputs=lost)]
    status = line.run("store", *events, claims=FileClaims(tmp_path))

    assert line.seen == []
    assert status.kind is StatusKind.RESULTS
    assert not status.done
    assert [each.sequence for each in status.failures] == [1, 2][: 1 + (ordering == "parallel")]


def test_output_nobody_takes_has_no_limit() -> None:
    world = PlainWorld()

    def work(batch: Batch) -> Iterator[EventResult]:
        for event in batch:
            yield event.done(output=b"x" * 2_000_000)

    world.handle("delays", work)
    worker = world.inline()
    job = world.issue(world.job("delays"))
    worker.step(0)
    worker.step(0)
    worker.close()

    assert world.done() == [job.job_id]


@pytest.mark.parametrize(
    ("function", "executor"),
    [
        (process_handlers.check_inputs, "thread"),
        (process_handlers.check_inputs, "process"),
        (process_handlers.check_inputs_async, None),
    ],
    ids=["thread", "process", "async"],
)
def test_claims_are_redeemed_wherever_the_handler_runs(
    tmp_path: Path, function: Callable[[Batch], Any], executor: ExecutorName | None
) -> None:
    line, store = Line(b"one" * 1_000), FileClaims(tmp_path)
    claim = line.run("parse", claims=store).outputs[1]
    line.topology.handler(name="check", inputs=line.parse, executor=executor)(function)
    status = line.run("check", Event(1, b"one", inputs={"parse": claim}), claims=store)

    assert claim[:1] == CLAIM
    assert (list(status.done), list(status.failures)) == ([1], [])
