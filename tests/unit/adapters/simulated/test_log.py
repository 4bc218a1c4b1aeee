import pytest

from cape_stream.adapters.simulated import CALM, Faults, SimLog
from cape_stream.errors import Corrupt, Fenced, Reject, Retry
from cape_stream.ports.log import Member, Record, TopicPartition, TopicSpec, Watermarks, Write
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
        old_log.committer("a").commit([], {TopicPartition("pings", 0): 1}, first)
    first.poll(10, 0)

    assert old.calls[-1] == (
        "lost",
        [TopicPartition("pings", 0), TopicPartition("statuses", 0)],
    )
    assert world.broker.committed("g") == {}


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
        log.committer("a").commit([row], {TopicPartition("pings", 1): 5}, first)
    log.committer("a").commit([row], {TopicPartition("pings", 0): 5}, first)

    assert world.broker.committed("g") == {TopicPartition("pings", 0): 5}
    assert [record.value for record in world.broker.records("changelog", 1)] == [b"v"]


def test_committer_is_still_accepted_inside_revoked() -> None:
    log = SimLog()
    log.create_topics([TopicSpec(name="pings", partitions=1, config={})])
    committer = log.committer("a")

    class LastWord(Notebook):
        def revoked(self, partitions: object) -> None:
            committer.commit([], {TopicPartition("pings", 0): 9}, member)

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
            last.append(dict(committer.commit(writes, {TopicPartition("pings", 0): 3}, member)))

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
            log.committer("z").commit([row], {TopicPartition("pings", 0): 1}, member)

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
                log.committer("a").commit([row], {TopicPartition("pings", 0): 1}, member),
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


@pytest.mark.parametrize("faults", [Faults(commit_retry=1.0), Faults(commit_abort=1.0)])
def test_commit_that_is_to_be_retried_stored_nothing(faults: Faults) -> None:
    world = SmallWorld(partitions=1)
    _, log = world.process("a")
    member = log.member("g", ["pings"], Notebook())
    member.poll(10, 0)
    world.dice.faults = faults
    row = Write("changelog", 0, b"k", b"v")

    with pytest.raises(Retry):
        log.committer("a").commit([row], {TopicPartition("pings", 0): 1}, member)

    assert world.broker.records("changelog", 0) == []
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


def test_producer_loses_its_buffer_with_its_process_but_not_what_is_on_the_wire() -> None:
    faults = Faults(send_ms=(10, 10), wire_ms=(10, 10))
    world = SmallWorld(partitions=1, faults=faults)
    process, log = world.process("a")
    producer = log.producer()
    producer.send("pings", 0, b"k", b"on the wire")
    world.run(5)
    producer.send("pings", 0, b"k", b"in the buffer")
    world.run(7)
    process.kill()
    world.run(1_000)

    assert [record.value for record in world.broker.records("pings", 0)] == [b"on the wire"]


def test_producer_of_a_stopped_process_gives_up_what_is_too_old_before_it_sends() -> None:
    world = SmallWorld(partitions=1, faults=Faults(send_ms=(10, 10)))
    process, log = world.process("a")
    producer = log.producer()
    producer.send("pings", 0, b"k", b"old")
    process.stop(400)
    world.run(400)
    producer.send("pings", 0, b"k", b"new")
    world.run(10)
    producer.poll(0)

    assert [(f.value, f.reason) for f in producer.take_failed()] == [(b"old", "message timeout")]
    assert [record.value for record in world.broker.records("pings", 0)] == [b"new"]
    assert producer.settled == {TopicPartition("pings", 0): 2}
    assert producer.take_failed() == []


def test_producer_counts_what_is_settled_in_order_and_keeps_the_order_of_a_partition() -> None:
    faults = Faults(send_ms=(0, 9), wire_ms=(0, 9), ack_ms=(0, 9), send_fail=0.2)
    world = SmallWorld(partitions=1, faults=faults)
    with world.timeline:
        process, log = world.process("a")
        producer = log.producer()

        def loop() -> None:
            for number in range(200):
                assert producer.send("pings", 0, b"k", b"%03d" % number)
                producer.poll(1)
                assert producer.settled[TopicPartition("pings", 0)] <= number + 1
            assert producer.flush(1_000)

        process.start(loop)
        world.run(5_000)

        failed = [send.value for send in producer.take_failed()]
        stored = [record.value for record in world.broker.records("pings", 0)]
        assert stored == sorted(v for v in stored if v is not None)
        assert len(failed) > 10
        assert sorted(v for v in stored + failed if v) == [b"%03d" % n for n in range(200)]
        assert producer.acked_offset == {TopicPartition("pings", 0): len(stored) - 1}


def test_producer_rejects_what_is_too_large_and_refuses_more_than_its_queue_holds() -> None:
    log = SimLog()
    with pytest.raises(Reject):
        log.producer().send("pings", 0, b"k", bytes(1_048_577))
    world = SmallWorld(faults=Faults(send_full=1.0))

    assert not world.process("a")[1].producer().send("pings", 0, b"k", b"v")


def test_producer_gives_up_what_goes_to_a_topic_that_does_not_exist() -> None:
    producer = SimLog().producer()
    producer.send("nowhere", 0, b"k", b"v")
    producer.poll(0)

    assert [send.topic for send in producer.take_failed()] == ["nowhere"]


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
        log.committer("a").commit([], {}, member)
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
