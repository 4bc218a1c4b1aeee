from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cape_stream.adapters.embedded import EmbeddedLog, EmbeddedSettings
from cape_stream.ports.log import TopicPartition, TopicSpec, Watermarks, Write
from tests.unit.adapters.embedded.listeners import Follower

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SETTINGS = EmbeddedSettings(consumed_retention_ms=MINUTE_MS, tombstone_grace_ms=10 * MINUTE_MS)


@dataclass
class World:
    """A log on a clock that only a test moves."""

    path: Path
    now_ms: int = 1_700_000_000_000
    log: EmbeddedLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.opened()

    def opened(self) -> EmbeddedLog:
        return EmbeddedLog(self.path, SETTINGS, now_ms=lambda: self.now_ms)

    def topic(self, name: str, **config: str) -> TopicPartition:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.log.create_topics([TopicSpec(name=name, partitions=1, config=settings)])
        return TopicPartition(name, 0)

    def send(self, topic: TopicPartition, count: int) -> None:
        producer = self.log.producer()
        for number in range(count):
            producer.send(*topic, b"k", b"%d" % number)
        producer.close()

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass in steps in which the log keeps house, as it does by itself."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + MINUTE_MS)
            self.log.housekeep()

    def kept(self, topic: TopicPartition) -> Watermarks:
        return self.log.reader().watermarks(topic)

    def offsets(self, topic: TopicPartition) -> list[int]:
        reader = self.log.reader()
        kept = reader.watermarks(topic)
        return [r.offset for batch in reader.read(topic, *kept) for r in batch]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "log")
    yield world
    world.log.close()


def test_retention_drops_records_older_than_the_topic_allows(world: World) -> None:
    topic = world.topic("t", retention_ms=str(2 * HOUR_MS))
    world.send(topic, 10)
    world.pass_ms(HOUR_MS)
    world.send(topic, 5)

    world.pass_ms(HOUR_MS + 2 * MINUTE_MS)

    assert world.kept(topic) == (10, 15)
    assert world.offsets(topic) == list(range(10, 15))


def test_retention_keeps_everything_when_it_is_negative(world: World) -> None:
    topic = world.topic("t", retention_ms="-1")
    world.send(topic, 10)

    world.pass_ms(48 * HOUR_MS)

    assert world.kept(topic) == (0, 10)


def test_retention_is_a_week_when_the_topic_does_not_say(world: World) -> None:
    topic = world.topic("t")
    world.send(topic, 10)
    world.now_ms += 7 * 24 * HOUR_MS - 2 * MINUTE_MS
    world.log.housekeep()
    before = world.kept(topic)

    world.pass_ms(4 * MINUTE_MS)

    assert (before, world.kept(topic)) == ((0, 10), (10, 10))


def test_retention_drops_what_all_groups_have_consumed_a_while_ago(world: World) -> None:
    topic = world.topic("t")
    world.send(topic, 10)
    fast, slow = Follower(world.log, "fast", ["t"]), Follower(world.log, "slow", ["t"])
    fast.drain()
    slow.drain()
    fast.member.commit({topic: 9})
    slow.member.commit({topic: 4})
    at_once = world.kept(topic)

    world.pass_ms(3 * MINUTE_MS)

    assert (at_once, world.kept(topic)) == ((0, 10), (4, 10))


def test_retention_keeps_what_a_group_has_not_begun_to_consume(world: World) -> None:
    topic = world.topic("t")
    world.send(topic, 10)
    done = Follower(world.log, "done", ["t"])
    done.drain()
    done.member.commit({topic: 10})
    Follower(world.log, "late", ["t"]).poll()

    world.pass_ms(10 * MINUTE_MS)

    assert world.kept(topic) == (0, 10)


def test_retention_keeps_what_no_group_consumes(world: World) -> None:
    topic = world.topic("dead-letters")
    world.send(topic, 10)

    world.pass_ms(10 * MINUTE_MS)

    assert world.kept(topic) == (0, 10)


def test_retention_begins_to_count_anew_when_the_log_is_opened(world: World) -> None:
    topic = world.topic("t")
    world.send(topic, 10)
    follower = Follower(world.log, "g", ["t"])
    follower.drain()
    follower.member.commit({topic: 10})
    follower.member.close()
    world.log.housekeep()
    world.log.close()
    world.now_ms += 24 * HOUR_MS

    world.log = world.opened()
    world.log.housekeep()
    at_once = world.kept(topic)
    world.pass_ms(3 * MINUTE_MS)

    assert (at_once, world.kept(topic)) == ((0, 10), (10, 10))


def test_retention_survives_an_offset_beyond_the_end(world: World) -> None:
    topic = world.topic("t")
    world.send(topic, 10)
    follower = Follower(world.log, "g", ["t"])
    follower.drain()
    follower.member.commit({topic: 1_000})

    world.pass_ms(3 * MINUTE_MS)

    assert world.kept(topic) == (10, 10)


def _put(world: World, follower: Follower, *rows: tuple[bytes, bytes | None]) -> None:
    writes = [Write("c", 0, key, value) for key, value in rows]
    world.log.committer("c").commit(writes, {}, follower.member.ownership())


def test_compaction_drops_what_is_superseded_at_once(world: World) -> None:
    topic = world.topic("c", cleanup_policy="compact")
    follower = Follower(world.log, "g", ["c"])

    _put(world, follower, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    _put(world, follower, (b"b", b"2"), (b"c", b"1"))
    world.send(topic, 2)

    assert world.offsets(topic) == [2, 3, 4, 6]
    assert world.kept(topic) == (0, 7)


def test_compaction_does_not_apply_retention(world: World) -> None:
    topic = world.topic("c", cleanup_policy="compact", retention_ms="1000")
    follower = Follower(world.log, "g", ["c"])
    _put(world, follower, (b"a", b"1"))
    follower.drain()
    follower.member.commit({topic: 1})

    world.pass_ms(24 * HOUR_MS)

    assert world.offsets(topic) == [0]


def test_tombstones_go_when_they_are_old(world: World) -> None:
    topic = world.topic("c", cleanup_policy="compact", delete_retention_ms=str(HOUR_MS))
    follower = Follower(world.log, "g", ["c"])
    _put(world, follower, (b"a", b"1"), (b"b", b"1"))
    _put(world, follower, (b"a", None))
    world.pass_ms(30 * MINUTE_MS)
    before = world.offsets(topic)
    _put(world, follower, (b"b", None))

    world.pass_ms(31 * MINUTE_MS)

    assert before == [1, 2]
    assert world.offsets(topic) == [3]
    world.pass_ms(31 * MINUTE_MS)
    assert world.offsets(topic) == []
    assert world.kept(topic) == (0, 4)


def test_tombstones_of_keys_that_came_back_go_alone(world: World) -> None:
    topic = world.topic("c", cleanup_policy="compact", delete_retention_ms=str(HOUR_MS))
    follower = Follower(world.log, "g", ["c"])
    _put(world, follower, (b"a", None))
    _put(world, follower, (b"a", b"again"))

    world.pass_ms(2 * HOUR_MS)
    kept = world.offsets(topic)
    _put(world, follower, (b"a", b"newer"))

    assert kept == [1]
    assert world.offsets(topic) == [2]


def test_offsets_go_on_when_the_newest_record_was_a_tombstone_that_went(world: World) -> None:
    topic = world.topic("c", cleanup_policy="compact", delete_retention_ms=str(HOUR_MS))
    follower = Follower(world.log, "g", ["c"])
    _put(world, follower, (b"a", b"1"), (b"a", None))
    world.pass_ms(2 * HOUR_MS)
    follower.member.close()
    world.log.close()

    world.log = world.opened()

    assert world.kept(topic) == (0, 2)
    assert world.offsets(topic) == []


def test_tombstones_wait_until_every_table_had_time_to_replay_them(world: World) -> None:
    topic = world.topic("c", cleanup_policy="compact", delete_retention_ms=str(HOUR_MS))
    follower = Follower(world.log, "g", ["c"])
    _put(world, follower, (b"a", None))
    follower.member.close()
    world.log.close()
    world.now_ms += 48 * HOUR_MS

    world.log = world.opened()
    world.pass_ms(9 * MINUTE_MS)
    before = world.offsets(topic)
    world.pass_ms(2 * MINUTE_MS)

    assert (before, world.offsets(topic)) == ([0], [])
