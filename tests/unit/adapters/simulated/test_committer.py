import pytest

from cape_stream.adapters.simulated import Faults, SimLog
from cape_stream.errors import Fenced, Retry
from cape_stream.ports.log import TopicPartition, TopicSpec, Watermarks, Write
from tests.unit.adapters.simulated.worlds import Notebook, SmallWorld


def test_committer_refuses_partitions_that_the_member_gave_away() -> None:
    world = SmallWorld(partitions=2)
    _, log = world.process("a")
    first = log.member("g", ["pings"], Notebook())
    first.poll(10, 0)
    second = world.process("b")[1].member("g", ["pings"], Notebook())
    second.poll(10, 0)
    first.poll(10, 0)
    row = Write("changelog", 1, b"k", b"v")

    with pytest.raises(Fenced):
        log.committer("a").commit([row], {TopicPartition("pings", 1): 5}, first.ownership())
    log.committer("a").commit([row], {TopicPartition("pings", 0): 5}, first.ownership())

    assert world.broker.committed("g") == {TopicPartition("pings", 0): 5}
    assert [record.value for record in world.broker.records("changelog", 1)] == [b"v"]


def test_committer_is_still_accepted_inside_revoked() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="pings", partitions=1, config={})])
    committer = log.committer("a")

    class LastWord(Notebook):
        def revoked(self, partitions: object) -> None:
            committer.commit([], {TopicPartition("pings", 0): 9}, member.ownership())

    member = log.member("g", ["pings"], LastWord())
    member.poll(10, 0)
    member.close()

    assert log.broker.committed("g") == {TopicPartition("pings", 0): 9}


def test_commit_shows_all_or_nothing_to_readers_and_holds_the_stable_end_meanwhile() -> None:
    slow = Faults(commit_write_ms=(10, 10), commit_end_ms=(100, 100))
    world = SmallWorld(partitions=2, faults=slow)
    with world.timeline:
        process, log = world.process("a")
        member = log.member("g", ["pings"], Notebook())
        member.poll(10, 0)
        writes = [Write("changelog", number, b"k", b"v") for number in (0, 1)]
        last: list[dict[TopicPartition, int]] = []

        def loop() -> None:
            committer = log.committer("a")
            last.append(
                dict(committer.commit(writes, {TopicPartition("pings", 0): 3}, member.ownership()))
            )

        process.start(loop)
        world.run(109)
        assert world.broker.records("changelog", 0) == []
        assert world.broker.watermarks("changelog", 0) == Watermarks(0, 1)
        assert world.broker.committed("g") == {}
        world.run(1)

        assert [len(world.broker.records("changelog", n)) for n in (0, 1)] == [1, 1]
        assert world.broker.watermarks("changelog", 0) == Watermarks(0, 2)
        assert world.broker.committed("g") == {TopicPartition("pings", 0): 3}
        assert last == [{TopicPartition("changelog", 0): 0, TopicPartition("changelog", 1): 0}]


@pytest.mark.parametrize(("ends", "restored"), [(True, [b"zombie"]), (False, [])])
def test_next_owner_waits_for_a_transaction_that_its_stopped_owner_left_open(
    ends: bool, restored: list[bytes]
) -> None:
    world = SmallWorld(partitions=1, faults=Faults(commit_end_ms=(10, 10)))
    with world.timeline:
        process, log = world.process("zombie")
        member = log.member("g", ["pings"], Notebook())
        member.poll(10, 0)
        world.broker.append(TopicPartition("pings", 0), b"k", b"ping")
        row = Write("changelog", 0, b"k", b"zombie")

        def zombie() -> None:
            log.committer("z").commit([row], {TopicPartition("pings", 0): 1}, member.ownership())

        def never_mind(error: BaseException | None) -> None:
            assert ends is (error is None)

        process.start(zombie, ended=never_mind)
        world.timeline.after(5, lambda: process.stop(700 if ends else 5_000))
        rows: list[bytes | None] = []
        pings: list[bytes | None] = []

        def heir() -> None:
            heir_log = world.process("heir")[1]
            notebook = Notebook()
            heir_member = heir_log.member("g", ["pings"], notebook)
            while not notebook.owned:
                heir_member.poll(10, 50)
            heir_member.resume(sorted(notebook.owned))
            changelog, reader = TopicPartition("changelog", 0), heir_log.reader()
            for batch in reader.read(changelog, 0, reader.watermarks(changelog).high):
                rows.extend(record.value for record in batch)
            pings.extend(record.value for record in heir_member.poll(10, 0))

        world.process("heir")[0].start(heir)
        world.run(10_000)

        assert rows == restored
        assert pings == ([] if ends else [b"ping"])


def test_commit_of_a_killed_process_is_aborted_when_its_time_is_over() -> None:
    world = SmallWorld(partitions=1, faults=Faults(commit_write_ms=(10, 10)))
    with world.timeline:
        process, log = world.process("a")
        member = log.member("g", ["pings"], Notebook())
        member.poll(10, 0)
        row = Write("changelog", 0, b"k", b"v")
        process.start(
            lambda: (
                log.committer("a").commit(
                    [row], {TopicPartition("pings", 0): 1}, member.ownership()
                ),
                None,
            )[1]
        )
        world.timeline.after(5, process.kill)
        world.run(999)
        stored = world.broker.partition(TopicPartition("changelog", 0))
        assert (stored.stable, stored.high) == (0, 1)
        world.run(1)

        assert (stored.stable, stored.high) == (2, 2)
        assert world.broker.records("changelog", 0) == []
        assert world.broker.committed("g") == {}


def test_commit_that_times_out_while_its_process_is_stopped_holds_nobody_up() -> None:
    world = SmallWorld(partitions=1, faults=Faults(commit_write_ms=(10, 10)))
    with world.timeline:
        process, log = world.process("a")
        member = log.member("g", ["pings"], Notebook())
        member.poll(10, 0)
        pings = TopicPartition("pings", 0)
        row = Write("changelog", 0, b"k", b"v")
        ends: list[BaseException | None] = []

        def commit() -> None:
            log.committer("a").commit([row], {pings: 1}, member.ownership())

        process.start(commit, ended=ends.append)
        world.timeline.after(5, lambda: process.stop(2_000))
        world.run(3_000)
        heir = Notebook()
        world.process("b")[1].member("g", ["pings"], heir).poll(10, 0)

        assert isinstance(ends[0], Retry)
        assert heir.owned == {pings}


def test_commit_of_an_earlier_membership_is_fenced_though_the_member_is_back() -> None:
    world = SmallWorld(partitions=1, faults=Faults(commit_write_ms=(50, 50)))
    with world.timeline:
        process, log = world.process("a")
        notebook = Notebook()
        member = log.member("g", ["pings"], notebook)
        member.poll(10, 0)
        ends: list[BaseException | None] = []

        def commit() -> None:
            log.committer("a").commit([], {TopicPartition("pings", 0): 1}, member.ownership())

        process.start(commit, ended=ends.append)
        world.run(10)
        process.stop(700)
        world.timeline.after(699, lambda: (member.poll(10, 0), None)[1])
        world.run(2_000)

        assert [name for name, _ in notebook.calls] == ["assigned", "lost", "assigned"]
        assert isinstance(ends[0], Fenced)


@pytest.mark.parametrize("faults", [Faults(commit_retry=1.0), Faults(commit_abort=1.0)])
def test_commit_that_is_to_be_retried_stored_nothing(faults: Faults) -> None:
    world = SmallWorld(partitions=1)
    _, log = world.process("a")
    member = log.member("g", ["pings"], Notebook())
    member.poll(10, 0)
    world.dice.faults = faults
    row = Write("changelog", 0, b"k", b"v")

    with pytest.raises(Retry):
        log.committer("a").commit([row], {TopicPartition("pings", 0): 1}, member.ownership())

    assert world.broker.records("changelog", 0) == []
    assert world.broker.committed("g") == {}
