import logging
from dataclasses import replace
from typing import Any

import pytest

from cape_stream.adapters.simulated import BrokerSettings, Faults
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.status import FailureClass, JobStatus, StatusKind
from cape_stream.ports.log import TopicPartition
from cape_stream.runtime.worker_handler import Executor
from cape_stream.runtime.worker_settings import WorkerSettings
from cape_stream.sdk import Batch, Invalid, Permanent, Transient
from tests.unit.runtime.worker_worlds import PARTITIONS, PlainWorld


def nothing(batch: Batch) -> None:
    """All done."""


def test_worker_reports_what_the_handler_did_to_the_task_that_issued_the_job() -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    worker = world.inline()
    job = world.issue(world.job("delays", "café", waited_ms=70))

    worker.step(0)

    assert world.statuses() == [
        JobStatus(
            job_id=job.job_id,
            domain="flights",
            partition=job.partition,
            subject="café",
            topology="delays",
            lambda_id="work",
            epoch=3,
            attempt=2,
            kind=StatusKind.RESULTS,
            done=(1, 2),
            queued_ms=70,
        )
    ]
    counters = worker.counters()
    assert (counters.taken, counters.done, counters.events_done) == (1, 1, 2)
    assert (counters.running, counters.waiting, counters.queued_ms) == (0, 0, 70)
    assert counters.statuses_sent == 1


def test_worker_commits_what_it_has_taken() -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    worker = world.inline()
    for _ in range(4):
        world.issue(world.job("delays"))
    world.issue(world.job("delays"), backlog=True)

    worker.step(0)
    world.clock.sleep_ms(50)
    worker.step(0)

    assert world.committed() == [2, 2]
    assert sum(world.committed(backlog=True)) == 1


def test_worker_commits_seldom_but_always_when_it_closes() -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    worker = world.inline()
    for _ in range(3):
        world.issue(world.job("delays"))
        worker.step(0)
    before = sum(world.committed())
    worker.close()

    assert before == 0
    assert sum(world.committed()) == 3


def test_live_jobs_run_before_backlog_ones() -> None:
    world = PlainWorld()
    order: list[str] = []
    world.handle("delays", lambda batch: order.append(batch.subject))
    worker = world.inline()
    for number in range(4):
        world.issue(world.job("delays", f"old-{number}"), backlog=True)
        world.issue(world.job("delays", f"new-{number}"))

    worker.step(0)

    assert [each[:3] for each in order] == ["new"] * 4 + ["old"] * 4


def test_worker_serves_only_its_queues() -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    general = world.inline()
    bulk = world.worker(WorkerSettings(queues=("bulk",), inline=True, concurrency=1))
    job = world.issue(world.job("delays"), queue="bulk")
    for _ in range(3):
        general.step(0)
    assert world.done() == []

    for _ in range(3):
        bulk.step(0)

    assert world.done() == [job.job_id]


@pytest.mark.parametrize("junk", [b"", b"\x00", b"\x00\x7f\xff\xff\xffabc", b"{}", b"\xff" * 99])
def test_record_that_is_no_job_becomes_a_dead_letter_and_the_next_one_is_served(
    junk: bytes,
) -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    worker = world.inline()
    first = world.issue(world.job("delays"))
    world.put(junk, partition=first.partition, key=b"\xff")
    second = world.job("delays")
    second.partition = first.partition
    world.issue(second)

    worker.step(0)

    assert world.done() == [first.job_id, second.job_id]
    (letter,) = world.letters()
    assert letter == DeadLetter(
        topic=world.names.jobs("general"),
        partition=first.partition,
        offset=1,
        reason=letter.reason,
        key=b"\xff",
        value=junk,
    )
    assert letter.reason
    assert worker.counters().dead_letters == 1


def test_cut_job_becomes_a_dead_letter_whatever_its_length() -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    whole = world.codec.encode_job(world.job("delays"))
    for length in range(len(whole)):
        world.put(whole[:length])
    worker = world.inline()
    for _ in range(len(whole) // 32):
        worker.step(0)

    assert worker.counters().dead_letters == len(world.letters()) == len(whole)
    assert world.statuses() == []


@pytest.mark.parametrize("key", [b"N1", None])
def test_record_without_a_value_is_counted_and_skipped(key: bytes | None) -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    worker = world.inline()
    world.put(None, partition=1, key=key)
    job = world.issue(world.job("delays"))

    worker.step(0)

    assert job.partition == 1
    assert world.done() == [job.job_id]
    assert world.letters() == []
    assert worker.counters().null_records == 1


def test_dead_letter_that_is_too_large_is_kept_without_its_value() -> None:
    world = PlainWorld(settings=BrokerSettings(record_bytes_max=2_000))
    world.put(b"\xff" * 1_999)
    worker = world.inline()
    worker.step(0)

    (letter,) = world.letters()
    assert letter.value is None
    assert "(value not kept: record of " in letter.reason


def test_job_for_code_this_worker_does_not_have_is_to_be_tried_again() -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    worker = world.inline()
    world.issue(world.job("rotations"))

    worker.step(0)

    (status,) = world.statuses()
    assert [failure.failure_class for failure in status.failures] == [FailureClass.TRANSIENT] * 2
    assert status.failures[0].error == (
        "no handler for rotations.work of domain 'flights' in this worker: deploy the code that"
        " declares it"
    )
    assert worker.counters().unknown_handlers == 1


def test_job_that_waited_past_its_timeout_is_handed_back_without_being_run() -> None:
    world = PlainWorld()
    ran: list[str] = []
    world.handle("delays", lambda batch: ran.append(batch.job_id))
    worker = world.inline(clock_skew_ms=5_000)
    stale = world.issue(world.job("delays", waited_ms=6_001, timeout_ms=1_000))
    late = world.issue(world.job("delays", waited_ms=6_000, timeout_ms=1_000))
    early = world.issue(world.job("delays", waited_ms=-90_000, timeout_ms=1_000))

    worker.step(0)

    assert sorted(ran) == [late.job_id, early.job_id]
    by_id = {status.job_id: status for status in world.statuses()}
    assert by_id[stale.job_id].kind is StatusKind.HANDED_BACK
    assert by_id[stale.job_id].queued_ms == 6_001
    assert not by_id[stale.job_id].done
    assert by_id[late.job_id].kind is StatusKind.RESULTS
    assert by_id[early.job_id].queued_ms == 0
    assert worker.counters().stale == 1


def test_worker_whose_clock_is_far_ahead_hands_back_once_and_then_works() -> None:
    world = PlainWorld()
    ran: list[int] = []
    world.handle("delays", lambda batch: ran.append(batch.attempt))
    worker = world.inline(clock_skew_ms=5_000)
    for attempt in (1, 2, 3):
        job = world.job("delays", waited_ms=900_000)
        world.issue(replace(job, partition=0, attempt=attempt))
        worker.step(0)
        world.clock.sleep_ms(100)

    kinds = [status.kind for status in world.statuses()]
    assert kinds == [StatusKind.HANDED_BACK, StatusKind.RESULTS, StatusKind.RESULTS]
    assert ran == [2, 3]
    assert [status.queued_ms for status in world.statuses()] == [900_000, 100, 100]


def test_outputs_too_large_for_a_record_fail_their_events_instead_of_vanishing() -> None:
    world = PlainWorld(settings=BrokerSettings(record_bytes_max=20_000))

    def work(batch: Batch) -> Any:
        return [event.done(output=b"x" * 15_000) for event in batch]

    topology = world.app.domains["flights"].topology("delays")
    topology.handler(name="work")(work)
    topology.handler(name="next", inputs=work)(nothing)
    worker = world.inline()
    world.issue(world.job("delays"))

    worker.step(0)

    (status,) = world.statuses()
    assert not status.done
    assert not status.outputs
    assert [f.failure_class for f in status.failures] == [FailureClass.PERMANENT] * 2
    assert "too large, use a smaller max_batch" in status.failures[0].error


def test_ten_thousand_failures_with_long_texts_fit_one_record() -> None:
    world = PlainWorld()

    def work(batch: Batch) -> None:
        raise ValueError("x" * 400)

    world.handle("delays", work)
    worker = world.inline()
    job = world.job("delays")
    job.events = [type(job.events[0])(sequence, b"") for sequence in range(10_000)]
    world.issue(job)

    worker.step(0)

    (status,) = world.statuses()
    assert len(status.failures) == 10_000
    assert len(status.failures[0].error) == 300
    assert sum(len(failure.error) for failure in status.failures) <= 65_536 + 300


def test_failures_are_counted_by_class_and_unreached_events_apart() -> None:
    world = PlainWorld()
    errors = {"a": Invalid("i"), "b": Permanent("p"), "c": Transient("t")}

    def work(batch: Batch) -> None:
        raise errors[batch.subject]

    def stop(batch: Batch) -> Any:
        return [batch.events[0].retry(), batch.events[0].done()]

    world.handle("delays", work)
    world.handle("rotations", stop, ordering="ordered")
    world.handle("alerts", lambda batch: [batch.events[0].done(), batch.events[0].done()])
    worker = world.inline()
    for subject in errors:
        world.issue(world.job("delays", subject))
    world.issue(world.job("rotations"))
    world.issue(world.job("alerts"))

    worker.step(0)

    counters = worker.counters()
    assert counters.events_failed == {
        FailureClass.INVALID: 2,
        FailureClass.PERMANENT: 2,
        FailureClass.TRANSIENT: 3,
        FailureClass.BUG: 1,
    }
    assert (counters.events_unreached, counters.results_ignored) == (1, 1)
    assert (counters.taken, counters.done, counters.events_done) == (5, 0, 1)


def test_report_the_client_gave_up_is_sent_again_and_given_up_in_the_end() -> None:
    world = PlainWorld(Faults(send_fail=1.0))
    worker = world.inline()
    world.broker.append(TopicPartition(world.names.jobs("general"), 0), b"N1", b"junk")
    for _ in range(6):
        worker.step(0)

    counters = worker.counters()
    assert (counters.dead_letters, counters.statuses_resent, counters.statuses_lost) == (1, 2, 1)


def test_reports_survive_a_client_that_is_often_full_or_fails() -> None:
    world = PlainWorld(Faults(send_full=0.5, send_fail=0.05))
    world.handle("delays", nothing)
    jobs = [world.job("delays") for _ in range(100)]
    for job in jobs:
        topic = TopicPartition(world.names.jobs("general"), job.partition)
        world.broker.append(topic, b"N1", world.codec.encode_job(job))
    worker = world.inline()
    for _ in range(10):
        worker.step(0)

    assert sorted(world.done()) == sorted(job.job_id for job in jobs)
    assert worker.counters().statuses_resent > 0


def test_reports_wait_for_room_in_the_clients_queue() -> None:
    world = PlainWorld(settings=BrokerSettings(producer_records_max=2))
    world.handle("delays", nothing)
    jobs = [world.issue(world.job("delays")).job_id for _ in range(20)]
    worker = world.inline()
    worker.step(0)

    assert sorted(world.done()) == sorted(jobs)


def test_worker_waits_while_the_log_is_away_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    job = world.issue(world.job("delays"))
    worker = world.inline()
    world.broker.go_down(700)

    for _ in range(2):
        worker.step(0)
    missed = worker.counters().polls_failed
    for _ in range(2):
        worker.step(0)

    assert missed == 2
    assert world.done() == [job.job_id]
    assert "the log does not answer" in caplog.text


def test_committed_offset_outside_the_log_goes_to_the_oldest_record_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = PlainWorld()
    world.handle("delays", nothing)
    first = TopicPartition(world.names.jobs("general"), 0)
    world.broker.set_committed(world.names.worker_group, first, 50)
    job = world.job("delays")
    job.partition = 0
    world.issue(job)
    worker = world.inline()
    worker.step(0)

    assert world.done() == [job.job_id]
    assert "flight-ops.jobs.general-0: the committed offset 50 is outside" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def test_second_member_takes_over_and_no_job_runs_twice() -> None:
    world = PlainWorld()
    ran: list[str] = []
    world.handle("delays", lambda batch: ran.append(batch.job_id))
    first = world.inline()
    jobs = [world.issue(world.job("delays")) for _ in range(10)]
    first.step(0)
    second = world.inline()
    for _ in range(10):
        world.clock.sleep_ms(1_000)
        first.step(0)
        second.step(0)
    jobs += [world.issue(world.job("delays")) for _ in range(10)]
    for _ in range(3):
        first.step(0)
        second.step(0)

    assert sorted(ran) == sorted(job.job_id for job in jobs)
    assert first.counters().taken < 20
    assert second.counters().taken > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queues": ()}, "queues is empty"),
        ({"inline": True, "concurrency": 2}, "concurrency must be 1 when inline, not 2"),
        ({"concurrency": 0}, "concurrency must be 1 to 1000, not 0"),
        ({"prefetch": 0}, "prefetch must be 1 to 10000, not 0"),
        ({"grace_ms": -1}, "grace_ms must be >= 0"),
        ({"clock_skew_ms": -1}, "clock_skew_ms must be >= 0"),
    ],
)
def test_settings_refuse_what_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorkerSettings(**{"queues": ("general",), **settings})


def test_settings_default_to_threads() -> None:
    settings = WorkerSettings(queues=("general",))

    assert (settings.inline, settings.executor) == (False, Executor.THREAD)
    assert PARTITIONS == 2, "the tests above count on it"
