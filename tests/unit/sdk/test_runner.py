import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from cape_stream.model.status import EventFailure, FailureClass
from cape_stream.model.topology import Ordering
from cape_stream.runtime.worker_handler import HandlerKey, JobHandler, JobOutcome
from cape_stream.sdk import Batch, EventResult, Invalid, Throttled
from cape_stream.sdk import tally as tally_module
from cape_stream.sdk.runner import HandlerFunction
from tests.unit.sdk.apps import bound, clock, fed_topology, job

Step = Callable[[Batch], Iterator[EventResult]]
SHAPES = ["generator", "async generator", "list"]


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log lines are rare by design; every test begins with none so far."""
    monkeypatch.setattr(tally_module, "_logged_ms", {})


def shaped(step: Step, shape: str) -> HandlerFunction:
    """The same handler as a generator, an async one, or one that returns a list."""

    async def stream(batch: Batch) -> AsyncIterator[EventResult]:
        for result in step(batch):
            await asyncio.sleep(0)
            yield result

    if shape == "async generator":
        return stream
    return step if shape == "generator" else lambda batch: list(step(batch))


def run(function: HandlerFunction, ordering: Ordering = "parallel", **given: Any) -> JobOutcome:
    """Run a handler on a job of events 1, 2, 3 (or as given)."""
    return execute(bound(function, ordering), **given)


def execute(handler: JobHandler, **given: Any) -> JobOutcome:
    if handler.is_async:
        return asyncio.run(handler.run_async(job(**given), 1_030_000, clock()))
    return handler.run(job(**given), 1_030_000, clock())


def classes(outcome: JobOutcome) -> dict[int, FailureClass]:
    return {failure.sequence: failure.failure_class for failure in outcome.failures}


def test_function_that_returns_has_done_all() -> None:
    seen: list[int] = []

    outcome = run(lambda batch: seen.extend(event.sequence for event in batch))

    assert outcome == JobOutcome([1, 2, 3])
    assert seen == [1, 2, 3]


def test_async_function_that_returns_has_done_all() -> None:
    seen: list[str] = []

    async def work(batch: Batch) -> None:
        await asyncio.sleep(0)
        seen.append(batch.subject)

    assert run(work) == JobOutcome([1, 2, 3])
    assert seen == ["N1"]


@pytest.mark.parametrize("ordering", ["parallel", "ordered"])
def test_function_that_raises_has_failed_all_that_way(ordering: Ordering) -> None:
    def work(batch: Batch) -> None:
        raise Throttled("too many calls", retry_after=2)

    async def async_work(batch: Batch) -> None:
        work(batch)

    for outcome in (run(work, ordering), run(async_work, ordering)):
        assert outcome.done == []
        assert [(f.sequence, f.failure_class, f.retry_after_ms) for f in outcome.failures] == [
            (sequence, FailureClass.THROTTLED, 2_000) for sequence in (1, 2, 3)
        ]
        assert outcome.failures[2].error.startswith("Throttled: too many calls (test_runner.py:")


@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_taken_event_by_event(shape: str) -> None:
    def step(batch: Batch) -> Iterator[EventResult]:
        one, two, three = batch
        yield one.done()
        yield two.fail("invalid", "no tail number")
        yield three.retry(after=5, reason="busy")

    outcome = run(shaped(step, shape))

    assert outcome.done == [1]
    assert outcome.failures == [
        EventFailure(2, FailureClass.INVALID, "no tail number"),
        EventFailure(3, FailureClass.TRANSIENT, "busy", 5_000),
    ]
    assert outcome.results_ignored == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_results_may_come_in_any_order(shape: str) -> None:
    def step(batch: Batch) -> Iterator[EventResult]:
        for event in reversed(batch.events):
            yield event.done() if event.sequence != 2 else event.fail("bug")

    outcome = run(shaped(step, shape))

    assert outcome.done == [1, 3]
    assert classes(outcome) == {2: FailureClass.BUG}


@pytest.mark.parametrize("shape", ["generator", "async generator"])
@pytest.mark.parametrize("ordering", ["parallel", "ordered"])
def test_what_was_yielded_before_a_crash_counts(shape: str, ordering: Ordering) -> None:
    def step(batch: Batch) -> Iterator[EventResult]:
        yield batch.events[0].done()
        raise Invalid("no tail number")

    outcome = run(shaped(step, shape), ordering)

    assert outcome.done == [1]
    assert classes(outcome) == {2: FailureClass.INVALID, 3: FailureClass.INVALID}


@pytest.mark.parametrize("shape", ["generator", "async generator"])
def test_ordered_handler_is_stopped_at_its_first_failing_event(shape: str) -> None:
    steps: list[str] = []

    def step(batch: Batch) -> Iterator[EventResult]:
        try:
            for event in batch:
                steps.append(f"run {event.sequence}")
                yield event.done() if event.sequence < 2 else event.retry()
        finally:
            steps.append("clean up")

    outcome = run(shaped(step, shape), "ordered")

    assert outcome.done == [1]
    assert classes(outcome) == {2: FailureClass.TRANSIENT}
    assert steps == ["run 1", "run 2", "clean up"]


def test_async_handler_has_cleaned_up_before_the_job_is_reported() -> None:
    steps: list[str] = []

    async def stream(batch: Batch) -> AsyncIterator[EventResult]:
        try:
            yield batch.events[0].retry()
        finally:
            await asyncio.sleep(0)
            steps.append("clean up")

    async def report() -> None:
        await bound(stream, "ordered").run_async(job(), 1_030_000, clock())
        steps.append("report")

    asyncio.run(report())

    assert steps == ["clean up", "report"]


@pytest.mark.parametrize("shape", SHAPES)
def test_parallel_handler_goes_on_behind_a_failing_event(shape: str) -> None:
    def step(batch: Batch) -> Iterator[EventResult]:
        for event in batch:
            yield event.fail("permanent") if event.sequence == 1 else event.done()

    outcome = run(shaped(step, shape))

    assert outcome.done == [2, 3]
    assert classes(outcome) == {1: FailureClass.PERMANENT}


@pytest.mark.parametrize("shape", ["generator", "async generator"])
def test_clean_up_that_raises_after_a_stop_changes_nothing(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    def step(batch: Batch) -> Iterator[EventResult]:
        try:
            yield batch.events[0].fail("invalid")
        finally:
            raise RuntimeError("clean-up")

    async def stream(batch: Batch) -> AsyncIterator[EventResult]:
        try:
            yield batch.events[0].fail("invalid")
        finally:
            raise RuntimeError("clean-up")

    outcome = run(step if shape == "generator" else stream, "ordered")

    assert outcome.done == []
    assert classes(outcome) == {1: FailureClass.INVALID}
    assert "RuntimeError: clean-up" in caplog.text


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ordering", ["parallel", "ordered"])
def test_event_without_a_result_is_a_bug_of_the_handler(shape: str, ordering: Ordering) -> None:
    def step(batch: Batch) -> Iterator[EventResult]:
        yield batch.events[0].done()
        yield batch.events[2].done()

    outcome = run(shaped(step, shape), ordering)

    assert outcome.done == [1, 3]
    assert outcome.failures == [
        EventFailure(2, FailureClass.BUG, "the handler ended without a result for this event")
    ]


def test_failures_are_reported_in_the_order_of_the_events() -> None:
    def work(batch: Batch) -> Iterator[EventResult]:
        yield batch.events[2].retry()
        yield batch.events[1].done()

    assert [failure.sequence for failure in run(work).failures] == [1, 3]


def test_generator_that_yields_nothing_has_done_nothing() -> None:
    def work(batch: Batch) -> Iterator[EventResult]:
        return
        yield

    assert classes(run(work)) == dict.fromkeys((1, 2, 3), FailureClass.BUG)


@pytest.mark.parametrize("shape", SHAPES)
def test_second_result_for_an_event_is_ignored_and_counted(shape: str) -> None:
    def step(batch: Batch) -> Iterator[EventResult]:
        for event in batch:
            yield event.done()
        yield batch.events[0].fail("invalid")

    outcome = run(shaped(step, shape))

    assert outcome == JobOutcome([1, 2, 3], {}, [], results_ignored=1)


@pytest.mark.parametrize("foreign", [[2], [77]])
@pytest.mark.parametrize("ordering", ["parallel", "ordered"])
def test_result_for_an_event_of_another_batch_is_ignored_and_counted(
    foreign: list[int], ordering: Ordering
) -> None:
    stranger = Batch(job(foreign), clock(), 0).events[0]

    def work(batch: Batch) -> Iterator[EventResult]:
        yield batch.events[0].done()
        yield stranger.done()
        yield stranger.fail("bug")
        yield batch.events[2].done()

    outcome = run(work, ordering)

    assert outcome.done == [1, 3]
    assert classes(outcome) == {2: FailureClass.BUG}
    assert outcome.results_ignored == 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("junk", [None, True, 7, "done"])
def test_yielding_something_else_is_a_bug_that_says_what_to_yield(junk: Any, shape: str) -> None:
    def step(batch: Batch) -> Iterator[EventResult]:
        yield batch.events[0].done()
        yield junk

    outcome = run(shaped(step, shape))

    assert outcome.done == [1]
    assert classes(outcome) == {2: FailureClass.BUG, 3: FailureClass.BUG}
    assert (
        f"yielded {type(junk).__name__} {junk!r}: yield event.done()" in outcome.failures[0].error
    )


@pytest.mark.parametrize("returned", [False, 3, "ok", {1: 2}, b""])
def test_returning_something_else_is_a_bug_that_says_what_to_return(returned: Any) -> None:
    async def work(batch: Batch) -> Any:
        return returned

    for function in (lambda batch: returned, work):
        outcome = run(function)

        assert classes(outcome) == dict.fromkeys((1, 2, 3), FailureClass.BUG)
        assert f"returned {type(returned).__name__}" in outcome.failures[0].error


def test_hidden_coroutine_is_a_bug_and_not_a_success() -> None:
    async def work(batch: Batch) -> None: ...

    outcome = run(lambda batch: work(batch))

    assert classes(outcome) == dict.fromkeys((1, 2, 3), FailureClass.BUG)
    assert "must be visible as `async def`" in outcome.failures[0].error


def test_async_function_may_return_a_list_of_results() -> None:
    async def work(batch: Batch) -> Any:
        return [event.done() for event in batch]

    assert run(work).done == [1, 2, 3]


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError()])
def test_exits_and_cancellations_of_its_own_are_bugs(error: BaseException) -> None:
    async def async_work(batch: Batch) -> None:
        raise error

    def work(batch: Batch) -> None:
        raise error

    assert classes(run(async_work)) == dict.fromkeys((1, 2, 3), FailureClass.BUG)
    if isinstance(error, SystemExit):
        assert classes(run(work)) == dict.fromkeys((1, 2, 3), FailureClass.BUG)


def test_interrupt_is_nobodys_outcome() -> None:
    def work(batch: Batch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(work)


def test_cancelling_from_outside_ends_the_run_without_an_outcome() -> None:
    async def work(batch: Batch) -> None:
        await asyncio.sleep(60)

    async def cancel() -> None:
        task = asyncio.create_task(bound(work).run_async(job(), 1_030_000, clock()))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_outputs_travel_only_where_a_lambda_takes_them() -> None:
    app, topology = fed_topology()

    def emit(batch: Batch) -> Iterator[EventResult]:
        for event in batch:
            yield event.done(output=event.sequence) if event.sequence != 2 else event.done()

    topology.handler(name="first")(emit)
    topology.handler(name="second", inputs=emit)(partial(emit))
    handlers = app.job_handlers()

    first = execute(handlers[HandlerKey("flights", "delays", "first")])
    second = execute(handlers[HandlerKey("flights", "delays", "second")])

    assert first.outputs == {1: b"1", 3: b"3"}
    assert second.outputs == {}
    assert first.done == second.done == [1, 2, 3]


def test_output_that_cannot_travel_fails_its_event_and_the_rest() -> None:
    def work(batch: Batch) -> Iterator[EventResult]:
        for event in batch:
            yield event.done(output=object() if event.sequence == 2 else "fine")

    outcome = run(work)

    assert outcome.done == [1]
    assert classes(outcome) == {2: FailureClass.BUG, 3: FailureClass.BUG}
    assert "TypeError" in outcome.failures[0].error


def test_bug_is_logged_with_its_traceback_but_not_for_every_subject(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def work(batch: Batch) -> None:
        raise KeyError("tail")

    handler, time = bound(work), clock()
    for _ in range(100):
        handler.run(job(), 0, time)
    lines = len(caplog.records)
    time.sleep_ms(1_000)
    handler.run(job(), 0, time)

    assert lines == 1
    assert len(caplog.records) == 2
    assert "delays.work, subject 'N1', job 0-1-1, attempt 1: the handler raised" in caplog.text
    assert "KeyError: 'tail'" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def test_planned_failures_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def work(batch: Batch) -> None:
        raise Invalid("no tail number")

    run(work)

    assert caplog.records == []
