import pytest

from cape_stream.adapters.simulated import CALM, Faults, SimLog
from cape_stream.errors import Corrupt, Fenced, Retry
from cape_stream.ports.log import Member, Record, TopicPartition, TopicSpec, Watermarks
from tests.unit.adapters.simulated.worlds import Notebook, SmallWorld

PINGS = ("pings", "statuses")


def polled(member: Member) -> list[bytes | None]:
    return [record.value for record in member.poll(100, 0)]


def test_log_serves_as_a_plain_twin_without_any_world() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="t", partitions=2, config={})])
    notebook = Notebook()
    member, producer = log.member("g", ["t"], notebook), log.producer()

    producer.send("t", 1, b"k", b"v")
    producer.poll(0)
    member.poll(10, 0)
    member.resume(sorted(notebook.owned))

    assert producer.settled == producer.sent == {TopicPartition("t", 1): 1}
    assert producer.acked_offset == {TopicPartition("t", 1): 0}
    assert member.poll(10, 1_000) == [Record("t", 1, 0, 1_000_000, b"k", b"v")]


def test_group_keeps_equal_numbers_of_two_topics_together_when_members_come_and_go() -> None:
    world = SmallWorld(partitions=5)
    notebooks = [Notebook() for _ in range(3)]
    members = []
    for number, notebook in enumerate(notebooks):
        _, log = world.process(f"p{number}")
        members.append(log.member("g", PINGS, notebook))
        for _ in range(3):
            for member in members:
                member.poll(10, 0)
    members[0].close()
    for _ in range(3):
        for member in members[1:]:
            member.poll(10, 0)

    assert notebooks[0].owned == set()
    for notebook in notebooks[1:]:
        numbers = [{p.partition for p in notebook.owned if p.topic == topic} for topic in PINGS]
        assert numbers[0] == numbers[1]
    assert len(notebooks[1].owned | notebooks[2].owned) == 10
    assert not notebooks[1].owned & notebooks[2].owned


def test_group_gives_a_partition_away_only_after_its_owner_let_go() -> None:
    world = SmallWorld(partitions=2)
    old, new = Notebook(), Notebook()
    first = world.process("a")[1].member("g", ["pings"], old)
    first.poll(10, 0)
    second = world.process("b")[1].member("g", ["pings"], new)

    second.poll(10, 0)
    second.poll(10, 0)
    assert new.owned == set()
    first.poll(10, 0)
    second.poll(10, 0)

    assert old.calls[-1] == ("revoked", [TopicPartition("pings", 1)])
    assert new.owned == {TopicPartition("pings", 1)}


def test_member_is_put_out_when_silent_for_a_session_then_loses_all_and_comes_back() -> None:
    world = SmallWorld(partitions=1)
    old, new = Notebook(), Notebook()
    _, old_log = world.process("a")
    first = old_log.member("g", PINGS, old)
    first.poll(10, 0)
    second = world.process("b")[1].member("g", PINGS, new)
    second.poll(10, 0)
    world.run(599)
    second.poll(10, 0)
    assert new.owned == set()
    world.run(1)
    second.poll(10, 0)
    assert len(new.owned) == 2

    with pytest.raises(Fenced):
        old_log.committer("a").commit([], {TopicPartition("pings", 0): 1}, first.ownership())
    first.poll(10, 0)

    assert old.calls[-1] == (
        "lost",
        [TopicPartition("pings", 0), TopicPartition("statuses", 0)],
    )
    assert world.broker.committed("g") == {}


def test_member_begins_at_the_low_end_and_says_so_when_the_offset_is_out_of_range() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="pings", partitions=1, config={})])
    pings = TopicPartition("pings", 0)
    for number in range(10):
        log.broker.append(pings, b"k", b"%d" % number)
    log.broker.delete_records("pings", 0, 7)
    for committed in (3, 1_000):
        log.broker.set_committed("g", pings, committed)
        notebook = Notebook()
        member = log.member("g", ["pings"], notebook)
        member.poll(10, 0)
        assert notebook.repositions == [(pings, committed, Watermarks(7, 10))]
        assert member.position(pings) == 7
        member.resume([pings])

        assert polled(member) == [b"7", b"8", b"9"]
        assert member.position(pings) == 10
        member.close()


def test_member_begins_anew_at_the_low_end_when_retention_overtakes_it() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="pings", partitions=1, config={})])
    pings = TopicPartition("pings", 0)
    notebook = Notebook()
    member = log.member("g", ["pings"], notebook)
    member.poll(10, 0)
    for number in range(5):
        log.broker.append(pings, b"k", b"%d" % number)
    log.broker.delete_records("pings", 0, 4)
    member.resume([pings])

    assert polled(member) == [b"4"]
    assert notebook.repositions == [(pings, 0, Watermarks(4, 5))]


def test_member_delivers_nothing_of_a_paused_partition_and_goes_on_after_it() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="pings", partitions=1, config={})])
    pings = TopicPartition("pings", 0)
    member = log.member("g", ["pings"], Notebook())
    log.broker.append(pings, b"k", b"1")
    assert polled(member) == []
    member.resume([pings])
    assert polled(member) == [b"1"]
    member.pause([pings])
    log.broker.append(pings, b"k", b"2")
    assert polled(member) == []
    member.resume([pings])

    assert polled(member) == [b"2"]


def test_member_commit_reaches_the_next_owner_of_the_partition() -> None:
    world = SmallWorld(partitions=1, faults=Faults(offsets_ms=(20, 20)))
    pings = TopicPartition("pings", 0)
    world.broker.append(pings, b"k", b"1")
    first = world.process("a")[1].member("g", ["pings"], Notebook())
    first.poll(10, 0)
    first.resume([pings])
    assert polled(first) == [b"1"]
    first.commit({pings: 1})
    assert world.broker.committed("g") == {}
    first.close()

    second = world.process("b")[1].member("g", ["pings"], Notebook())
    second.poll(10, 0)
    second.resume([pings])
    assert world.broker.committed("g") == {pings: 1}
    assert polled(second) == []


def test_outage_refuses_every_call_then_excuses_all_sessions() -> None:
    world = SmallWorld(partitions=1)
    _, log = world.process("a")
    notebook = Notebook()
    member, producer = log.member("g", ["pings"], notebook), log.producer()
    member.poll(10, 0)
    world.broker.go_down(5_000)
    producer.send("pings", 0, b"k", b"too old when it is up again")
    with pytest.raises(Retry):
        member.poll(10, 0)
    with pytest.raises(Retry):
        log.committer("a").commit([], {}, member.ownership())
    with pytest.raises(Retry):
        log.reader().watermarks(TopicPartition("pings", 0))
    world.run(5_000)

    member.poll(10, 0)
    assert [name for name, _ in notebook.calls] == ["assigned"]
    producer.poll(0)
    assert len(producer.take_failed()) == 1


def test_reader_says_corrupt_when_its_start_is_no_longer_kept() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="changelog", partitions=1, config={})])
    changelog = TopicPartition("changelog", 0)
    for number in range(1_200):
        log.broker.append(changelog, b"%d" % (number % 3), b"%d" % number)
    log.broker.delete_records("changelog", 0, 100)

    with pytest.raises(Corrupt):
        list(log.reader().read(changelog, 99, 1_200))
    batches = list(log.reader().read(changelog, 100, 1_150))

    assert [record.offset for batch in batches for record in batch] == list(range(100, 1_150))
    assert len(batches) > 1


def test_compaction_keeps_the_newest_value_of_each_key_and_all_offsets() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="changelog", partitions=1, config={})])
    changelog = TopicPartition("changelog", 0)
    for key, value in [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)]:
        log.broker.append(changelog, key, value)
    log.broker.compact("changelog")

    assert [(r.offset, r.value) for r in log.broker.records("changelog", 0)] == [(2, b"2")]
    assert log.reader().watermarks(changelog) == Watermarks(0, 4)
    assert [len(batch) for batch in log.reader().read(changelog, 0, 4)] == [1]


def test_recreated_topic_is_empty_and_has_no_committed_offsets() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="pings", partitions=1, config={})])
    log.broker.append(TopicPartition("pings", 0), b"k", b"v")
    log.broker.set_committed("g", TopicPartition("pings", 0), 1)

    log.broker.recreate("pings")

    assert log.broker.watermarks("pings", 0) == Watermarks(0, 0)
    assert log.broker.committed("g") == {}


def test_truncated_partition_gives_its_offsets_again() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="pings", partitions=1, config={})])
    pings = TopicPartition("pings", 0)
    for value in (b"1", b"2", b"3"):
        log.broker.append(pings, b"k", value)

    log.broker.truncate("pings", 0, 1)

    assert log.broker.append(pings, b"k", b"new") == 1
    assert [record.value for record in log.broker.records("pings", 0)] == [b"1", b"new"]


def test_poll_waits_in_a_fiber_until_a_record_comes() -> None:
    world = SmallWorld(partitions=1, faults=CALM)
    with world.timeline:
        process, log = world.process("a")
        notebook = Notebook()
        member = log.member("g", ["pings"], notebook)
        seen: list[tuple[int, list[bytes | None]]] = []

        def loop() -> None:
            member.poll(10, 0)
            member.resume(sorted(notebook.owned))
            for _ in range(2):
                records = member.poll(10, 100)
                seen.append((world.timeline.now_ms, [record.value for record in records]))

        process.start(loop)
        pings = TopicPartition("pings", 0)
        world.timeline.after(40, lambda: (world.broker.append(pings, b"k", b"v"), None)[1])
        world.run(1_000)

        assert seen == [(10_040, [b"v"]), (10_140, [])]
