"""An audit finds what no longer fits together, and nothing where all does."""

from collections.abc import Callable

import pytest

from cape_stream.errors import Retry
from cape_stream.model.job import Job
from cape_stream.ports.log import TopicPartition
from cape_stream.roles.auditing import Auditor, Ledger, against_changelog
from cape_stream.runtime.dispatching import ACTIVE_PREFIX, CURSOR_PREFIX
from cape_stream.runtime.loop import Engine
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, NAMES, EngineWorld, processor_of, task_of

CHANGELOG = TopicPartition(NAMES.changelog(DOMAIN), 0)
JOBS = TopicPartition(NAMES.jobs("general"), 0)


class Audited:
    """A dispatcher with an idle subject, a busy one and a failed one, all of it committed."""

    def __init__(self) -> None:
        self.world = EngineWorld(topology("T1"))
        self.engine: Engine = self.world.running()
        for subject in ("idle", "busy", "failed"):
            self.world.publish(subject, 1)
            self.world.ping(subject, 1)
        self.world.turn(self.engine)
        jobs = {job.subject: job for job in self.world.jobs()}
        self.world.report(jobs["idle"])
        self.world.report(jobs["failed"], failed=[1])
        self.world.turn(self.engine)
        self.world.broker.set_committed(NAMES.worker_group, JOBS, 3)

    def findings(self) -> list[tuple[str, str, str]]:
        task = task_of(self.engine, 0)
        scheduler = processor_of(self.engine).scheduler
        world = self.world
        auditor = Auditor(world.plan, world.source, world.codec, NAMES, world.partitions)
        found = auditor.findings(
            world.log().reader(),
            [Ledger(0, task.name, task.table)],
            lambda: {0: set(scheduler.inflight.jobs)},
        )
        return [(each["kind"], each["subject"], each["detail"]) for each in found]

    def write(self, key: bytes, value: bytes | None) -> None:
        task = task_of(self.engine, 0)
        task.table.write(task.name, {key: value}, task.table.position(task.name) or 0)

    def stray(self, **changed: object) -> None:
        """A job in the queue that nobody issued."""
        job = next(each for each in self.world.jobs() if each.subject == "busy")
        fields = {name: getattr(job, name) for name in Job.__slots__} | changed
        value = self.world.codec.encode_job(Job(**fields))
        self.world.broker.append(JOBS, b"busy", value)


def lose_row(audited: Audited) -> None:
    audited.write(CURSOR_PREFIX + b"idle", None)


def invent_row(audited: Audited) -> None:
    audited.write(b"d-never", b"")


def hide_news(audited: Audited) -> None:
    audited.world.publish("idle", 2)


def hide_subject(audited: Audited) -> None:
    audited.world.publish("stranger", 7)


def run_ahead(audited: Audited) -> None:
    audited.world.source._changes = [("idle", 0)]


def leave_job(audited: Audited) -> None:
    audited.stray(job_id="0-0-ff")


def test_audit_finds_nothing_in_a_dispatcher_at_work() -> None:
    assert Audited().findings() == []


@pytest.mark.parametrize(
    ("damage", "kind", "subject", "said"),
    [
        (lose_row, "impossible", "idle", "is in the changelog, offset"),
        (invent_row, "impossible", "", "is in the table and not in the changelog"),
        (hide_news, "stuck", "idle", "events up to 2, known are those up to 1"),
        (hide_subject, "stuck", "stranger", "nothing is known of the subject"),
        (run_ahead, "impossible", "idle", "a cursor is at 1, the newest event of the source at 0"),
        (leave_job, "leaked", "busy", "job 0-0-ff waits in app.jobs.general[0], offset 3"),
    ],
)
def test_audit_finds_what_does_not_fit(
    damage: Callable[[Audited], None], kind: str, subject: str, said: str
) -> None:
    audited = Audited()
    damage(audited)

    found = audited.findings()

    assert [each for each in found if each[:2] == (kind, subject) and said in each[2]], found


def test_audit_finds_rows_that_differ_from_the_changelog() -> None:
    audited = Audited()
    audited.write(ACTIVE_PREFIX + b"busy", b"another")
    task = task_of(audited.engine, 0)

    found = list(
        against_changelog(audited.world.log().reader(), CHANGELOG, Ledger(0, task.name, task.table))
    )

    assert [(each.kind, each.subject) for each in found] == [("impossible", "busy")]
    assert "in the table and" in found[0].detail


@pytest.mark.parametrize("group", [NAMES.worker_group, NAMES.publisher_group])
def test_audit_does_not_look_at_jobs_that_were_taken(group: str) -> None:
    audited = Audited()
    leave_job(audited)
    audited.world.broker.set_committed(group, JOBS, 4)

    assert audited.findings() == []


def test_audit_leaves_jobs_of_other_tasks_and_domains_and_other_records_alone() -> None:
    audited = Audited()
    audited.stray(job_id="1-0-ff", partition=1)
    audited.stray(job_id="0-0-ff", domain="parcels")
    audited.world.broker.append(JOBS, b"x", b"garbage")

    assert audited.findings() == []


def test_audit_says_so_when_the_source_does_not_answer() -> None:
    audited = Audited()
    audited.world.source.go_down(60_000)

    with pytest.raises(Retry, match="the source does not tell its subjects"):
        audited.findings()
