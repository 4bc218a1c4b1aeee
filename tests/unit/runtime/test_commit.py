import pytest

from cape_stream.adapters.simulated import Faults, MemoryTable, SimClock, SimLog
from cape_stream.errors import Fenced
from cape_stream.ports.log import Member, TopicPartition, Write
from cape_stream.runtime.commit import Commit, CommitPipeline
from cape_stream.runtime.counting import CountingProcessor
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.processor import TaskGroup
from cape_stream.runtime.recovery import META_KEY, TaskMeta
from cape_stream.runtime.task import Task
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, NAMES, EngineWorld, InlineBackground

CHANGELOG = NAMES.changelog(DOMAIN)
JOBS = NAMES.jobs("general")
PING = TopicPartition(NAMES.pings(DOMAIN), 0)


class Desk:
    """A pipeline, its producer, and one running task with a row to store."""

    def __init__(self) -> None:
        self.world = EngineWorld(topology("T1"))
        self.log = SimLog(self.world.broker)
        self.clock = SimClock(self.world.broker.timeline)
        self.producer = self.log.producer()
        self.background = InlineBackground()
        self.table = MemoryTable()
        self.pipeline = CommitPipeline(
            self.log.committer("test"), self.producer, self.background, self.clock
        )
        self.member: Member = self.world.running()._member
        self.task = self.make_task()

    def make_task(self) -> Task:
        spec = self.world.group()
        group = TaskGroup(
            name=spec.name,
            inputs=spec.inputs,
            changelog=spec.changelog,
            make_processor=lambda task, epoch: CountingProcessor(task, NAMES.dead_letters),
            outputs=spec.outputs,
        )
        task = Task(group, 0, self.table)
        task.processor = group.make_processor(task.id, 1)
        task.epoch = 7
        return task

    def count(self, *keys: bytes) -> None:
        """Give the task something to store."""
        for key in keys:
            offset = self.world.broker.append(PING, key, b"")
            record = self.world.broker.records(*PING)[offset]
            processor = self.task.processor
            assert processor is not None
            effects = processor.step([record], self.task.read_rows, 0)
            self.task.unlanded_writes += effects.committed
            self.task.offsets[PING] = offset + 1

    def take(self, now_ms: int = 0, *, renewal: bool = False) -> bool:
        return self.pipeline.take([self.task], self.member, now_ms, renewal=renewal)

    def land(self) -> Commit:
        for _ in range(5):
            self.producer.poll(0)
            commit = self.pipeline.turn()
            if commit is not None:
                return commit
        raise AssertionError("it did not land")

    def fail(self) -> None:
        """The commit under way is aborted."""
        self.world.faults = Faults(commit_abort=1.0)
        for _ in range(5):
            self.producer.poll(0)
            assert self.pipeline.turn() is None
        self.world.faults = Faults()
        assert self.pipeline.idle

    def changelog(self) -> list[tuple[bytes | None, bytes | None]]:
        records = self.world.records(CHANGELOG)
        return [(r.key, r.value) for r in records if r.key != META_KEY]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_commit_stores_rows_offsets_and_extra_records_together(desk: Desk) -> None:
    desk.count(b"a", b"b", b"a")
    desk.take()
    desk.land()

    assert desk.changelog() == [(b"na", b"2"), (b"nb", b"1")]
    assert desk.world.committed(*PING) == 3
    assert [r.value for r in desk.world.records(NAMES.dead_letters)] == [b"1", b"1", b"2"]
    assert desk.table.get_many("flights-0", [b"na", b"nb"]) == [b"2", b"1"]
    assert (desk.task.unlanded, desk.task.unlanded_writes) == ({}, [])


def test_commit_moves_the_tables_position_behind_its_last_row(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    desk.land()

    rows = desk.world.records(CHANGELOG)
    assert desk.table.position("flights-0") == rows[-1].offset + 1


def test_commit_holds_the_epoch_and_the_bounds_of_outputs(desk: Desk) -> None:
    for number in range(3):
        assert desk.producer.send(JOBS, 0, b"k", b"%d" % number)
    desk.producer.poll(0)
    desk.count(b"a")
    desk.take()
    desk.land()

    stored = {r.key: r.value for r in desk.world.records(CHANGELOG)}
    assert TaskMeta.decode(stored[META_KEY]) == TaskMeta(7, {JOBS: 3})


def test_commit_waits_until_the_log_has_the_outputs_it_records(desk: Desk) -> None:
    desk.count(b"a")
    desk.producer.send(JOBS, 0, b"k", b"job")
    desk.take()

    assert [desk.pipeline.turn() for _ in range(3)] == [None, None, None]
    assert desk.background.submitted == 0
    desk.producer.poll(0)
    desk.pipeline.turn()
    assert desk.background.submitted == 1


def test_commit_does_not_wait_for_outputs_sent_after_it_was_taken(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    desk.producer.send(JOBS, 0, b"k", b"job")

    desk.pipeline.turn()
    assert desk.background.submitted == 1


def test_commit_takes_an_output_that_was_given_up_for_settled(desk: Desk) -> None:
    desk.world.faults = Faults(send_fail=1.0)
    desk.count(b"a")
    desk.producer.send(JOBS, 0, b"k", b"job")
    desk.world.faults = Faults()
    desk.take()

    desk.land()
    assert len(desk.producer.take_failed()) == 1


def test_commit_is_of_the_moment_it_was_taken(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    desk.background.holds = True
    desk.pipeline.turn()
    desk.count(b"a", b"a")
    desk.background.release()
    desk.land()

    assert desk.changelog() == [(b"na", b"1")]
    assert desk.world.committed(*PING) == 1
    desk.take()
    desk.background.holds = False
    desk.land()
    assert desk.changelog()[-1] == (b"na", b"3")


def test_commit_that_fails_puts_everything_back(desk: Desk) -> None:
    desk.count(b"a", b"b")
    desk.take()
    desk.fail()
    assert desk.changelog() == []
    assert desk.world.committed(*PING) in (None, 0)
    desk.count(b"a")
    desk.take()
    desk.land()

    assert desk.changelog() == [(b"na", b"2"), (b"nb", b"1")]
    letters = desk.world.records(NAMES.dead_letters)
    assert [(r.key, r.value) for r in letters] == [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]


def test_commit_that_fails_lets_the_newer_row_win(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    desk.background.holds = True
    desk.pipeline.turn()
    desk.count(b"a")
    desk.background.holds = False
    desk.world.faults = Faults(commit_abort=1.0)
    desk.background.release()
    assert desk.pipeline.turn() is None
    desk.world.faults = Faults()
    desk.take()
    desk.land()

    assert desk.changelog() == [(b"na", b"2")]


def test_commit_counts_what_became_of_it(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    desk.fail()
    desk.take()
    desk.land()

    counters = desk.pipeline.counters
    assert (counters.landed, counters.failed, counters.fenced, counters.rows) == (1, 1, 0, 1)


def test_commit_of_a_member_that_was_put_out_is_fenced(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    desk.world.kill()
    for _ in range(3):
        assert desk.pipeline.turn() is None

    assert desk.pipeline.counters.fenced == 1
    assert desk.changelog() == []
    assert desk.task.unlanded == {b"na": b"1"}


def test_commit_needs_a_membership(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise Fenced("no membership")

    monkeypatch.setattr(desk.member, "ownership", refuse)

    desk.count(b"a")
    assert not desk.take(5_000)
    assert desk.pipeline.idle
    assert desk.task.unlanded == {}
    assert desk.pipeline.last_taken_ms == 5_000


def test_commit_that_landed_is_the_proof_of_ownership_as_of_its_begin(desk: Desk) -> None:
    desk.count(b"a")
    desk.take(5_000)
    desk.world.pass_ms(300)
    desk.land()

    assert desk.task.proof_ms == 5_000


def test_commit_that_failed_proves_nothing(desk: Desk) -> None:
    desk.take(5_000)
    desk.fail()

    assert desk.task.proof_ms is None
    assert not desk.task.claimed


def test_first_commit_claims_the_epoch_though_nothing_changed(desk: Desk) -> None:
    desk.take()
    desk.land()
    desk.take()
    desk.land()

    metas = [r for r in desk.world.records(CHANGELOG) if r.key == META_KEY]
    assert [TaskMeta.decode(r.value).epoch for r in metas] == [1, 7]


def test_renewal_carries_no_state_and_the_offsets_of_the_last_commit(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    desk.land()
    desk.count(b"b")
    desk.producer.send(JOBS, 0, b"k", b"job")
    desk.take(9_000, renewal=True)
    desk.pipeline.turn()
    commit = desk.pipeline.turn()

    assert commit is not None
    assert desk.task.proof_ms == 9_000
    assert desk.world.committed(*PING) == 1
    assert desk.changelog() == [(b"na", b"1")]
    desk.take()
    desk.land()
    assert desk.changelog() == [(b"na", b"1"), (b"nb", b"1")]


def test_commit_writes_no_rows_into_the_table_for_a_task_that_left(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    desk.task.move_to(TaskState.CLOSED)
    desk.land()

    assert desk.table.position("flights-0") is None
    assert desk.changelog() == [(b"na", b"1")]


def test_commit_finishes_while_somebody_waits_for_it(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    commit = desk.pipeline.finish(1_000)

    assert commit is not None
    assert desk.pipeline.idle
    assert desk.changelog() == [(b"na", b"1")]
    assert desk.pipeline.finish(1_000) is None


def test_commit_under_way_finishes_too(desk: Desk) -> None:
    desk.count(b"a")
    desk.take()
    desk.background.holds = True
    desk.pipeline.turn()

    assert desk.pipeline.finish(1_000) is not None


def test_only_one_commit_is_under_way(desk: Desk) -> None:
    desk.take()

    assert desk.pipeline.holds("flights-0")
    assert not desk.pipeline.holds("flights-1")
    with pytest.raises(AssertionError, match="one commit at a time"):
        desk.take()


def test_commit_refuses_a_moment_with_outputs_that_were_not_sent(desk: Desk) -> None:
    desk.task.outbox.append(Write(JOBS, 0, None, b"job"))

    with pytest.raises(AssertionError, match="cannot be recorded as issued"):
        desk.take()


def test_commit_gives_up_when_its_outputs_do_not_settle_in_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.count(b"a")
    desk.take()
    monkeypatch.setattr(desk.producer, "flush", lambda timeout_ms: False)

    assert desk.pipeline.finish(1_000) is None
    assert desk.pipeline.idle
    assert desk.pipeline.counters.failed == 1
    assert desk.task.unlanded == {b"na": b"1"}


def test_renewal_that_fails_leaves_the_claim_and_the_writes_as_they_were(desk: Desk) -> None:
    desk.count(b"a")
    desk.take(1_000)
    desk.land()
    desk.count(b"b")
    desk.take(2_000, renewal=True)
    desk.fail()

    assert (desk.task.proof_ms, desk.task.claimed) == (1_000, True)
    desk.take(3_000)
    desk.land()
    assert [r.value for r in desk.world.records(NAMES.dead_letters)] == [b"1", b"1"]
