"""The sweep over the sources: who leads, what is pinged, what is remembered."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from cape_stream.adapters.simulated import CALM, ROUGH, STEADY, Faults
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.model.job import BACKLOG
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.log import TopicPartition
from cape_stream.ports.source import Changes
from cape_stream.runtime.refresh_marks import Mark
from cape_stream.runtime.refresh_settings import RefreshSettings
from tests.unit.runtime.refresh_worlds import NAMES, PARTITIONS, RefreshWorld, publish

SESSION_AND_SOME_MS = 3_000
HEALED_WITHIN_S = 700
"""Hanging calls end after 600 s at the latest; only then may a sweep with all its calls hanging
ask again."""
BRISK = RefreshSettings(
    interval_ms=100,
    store_interval_ms=50,
    full_interval_ms=0,
    limit=10,
    backoff_first_ms=100,
    backoff_max_ms=1_000,
    call_timeout_ms=500,
)


class Stubborn(MemoryEventSource):
    """A source that answers ``changed_since`` with whatever a test puts into ``answer``."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer
        self.calls = 0

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        self.calls += 1
        return self.answer  # type: ignore[return-value]  # a source's declared type proves nothing


class Blocked(MemoryEventSource):
    """A source whose ``changed_since`` never answers while it is blocked."""

    def __init__(self, world: RefreshWorld) -> None:
        super().__init__()
        self.blocked = True
        self.calls = 0
        self._world = world

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        self.calls += 1
        while self.blocked:
            self._world.timeline.sleep(1_000)
        return super().changed_since(watermark, limit)

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        raise AssertionError("refresh asks for no events")


def test_refresh_pings_every_subject_of_a_source_that_never_pings() -> None:
    world = RefreshWorld(BRISK)
    with world.timeline:
        for number in range(95):
            publish(world.a, f"s{number}", 7)
        leader = world.candidate("one")
        world.run(3_000)
        publish(world.a, "late", 0)
        world.run(500)

        assert leader.leads
        assert world.pinged("a") == {f"s{number}": 7 for number in range(95)} | {"late": 0}
        assert {ping.lane for ping in world.pings("a")} == {BACKLOG}
        assert world.pings("b") == []


def test_refresh_sends_each_ping_to_the_partition_that_owns_the_subject() -> None:
    world = RefreshWorld(BRISK)
    with world.timeline:
        for number in range(40):
            publish(world.a, f"s{number}", 0)
        world.candidate("one")
        world.run(1_000)

        for number in range(PARTITIONS):
            for record in world.broker.records(NAMES.pings("a"), number):
                assert record.key is not None
                assert crc32(record.key) % PARTITIONS == number


def test_refresh_pings_nobody_twice_while_nothing_goes_wrong() -> None:
    world = RefreshWorld(BRISK)
    with world.timeline:
        for number in range(30):
            publish(world.a, f"s{number}", 0)
        world.candidate("one")
        world.run(5_000)

        assert len(world.pings("a")) == 30


def test_refresh_stores_how_far_it_came_and_the_next_process_goes_on_from_there() -> None:
    world = RefreshWorld(BRISK)
    with world.timeline:
        for number in range(30):
            publish(world.a, f"s{number}", 0)
        first = world.candidate("one")
        world.run(2_000)
        first.stop()
        world.run(1_000)
        stored = world.marks()["a"]
        publish(world.a, "new", 0)
        second = world.candidate("two")
        world.run(2_000)

        assert stored.watermark == "30"
        assert second.leads
        assert len(world.pings("a")) == 31
        assert "new" in world.pinged("a")


def test_refresh_is_taken_over_when_the_leader_dies() -> None:
    world = RefreshWorld(BRISK)
    with world.timeline:
        first, second = world.candidate("one"), world.candidate("two")
        world.run(1_000)
        before = [first.leads, second.leads]
        leader, other = (first, second) if first.leads else (second, first)
        leader.process.kill()
        publish(world.a, "after", 3)
        world.run(SESSION_AND_SOME_MS)

        assert sorted(before) == [False, True]
        assert other.leads
        assert world.pinged("a") == {"after": 3}


def test_refresh_overwrites_no_newer_mark_wherever_a_stopped_leader_wakes_up() -> None:
    """Among the moments is the one before the commit of a mark that is out of date by then."""
    refused = 0
    for effects in range(1, 40, 2):
        world = RefreshWorld(BRISK, faults=CALM)
        with world.timeline:
            first = world.candidate("one")
            world.run(1_000)
            publish(world.a, "before", 0)
            first.process.stop_after(effects, 4_000)
            world.run(500)
            second = world.candidate("two")
            publish(world.a, "during", 0)
            world.run(3_000)
            stored_by_second = world.marks()["a"].watermark
            world.run(2_000)

            assert stored_by_second == "2"
            assert world.marks()["a"].watermark == "2"
            assert [first.leads, second.leads].count(True) == 1
            assert world.pinged("a") == {"before": 0, "during": 0}
            refused += first.refresher.counters.fenced
    assert refused > 0


def test_refresh_stores_its_last_mark_when_it_is_stopped_in_good_order() -> None:
    world = RefreshWorld(replace(BRISK, store_interval_ms=3_600_000))
    with world.timeline:
        leader = world.candidate("one")
        world.run(1_000)
        publish(world.a, "s", 0)
        world.run(1_000)
        stored_before = world.marks()
        leader.stop()
        world.run(1_000)

        assert stored_before == {}
        assert world.marks()["a"].watermark == "1"
        assert TopicPartition(NAMES.refresh, 0) in world.broker.committed(NAMES.refresh_group)


def test_refresh_of_one_domain_goes_on_while_the_source_of_another_fails() -> None:
    world = RefreshWorld(BRISK)
    with world.timeline:
        world.a.go_down(10_000)
        publish(world.a, "later", 0)
        publish(world.b, "now", 0)
        leader = world.candidate("one")
        world.run(5_000)
        failing = leader.refresher.errors()
        news, _ = leader.refresher.sweep_counters()["a"]
        pinged_early = world.pinged("b")
        world.run(10_000)

        assert pinged_early == {"now": 0}
        assert failing == {"a": "SourceDownError: the simulated source is down"}
        assert 2 <= news.failures < 20
        assert world.pinged("a") == {"later": 0}
        assert leader.refresher.errors() == {}


def test_refresh_of_one_domain_goes_on_while_the_source_of_another_hangs() -> None:
    settings = RefreshSettings(
        interval_ms=100,
        call_timeout_ms=500,
        backoff_first_ms=100,
        backoff_max_ms=200,
        calls_hanging_max=2,
        full_interval_ms=0,
    )
    world = RefreshWorld(settings)
    with world.timeline:
        hanging = Blocked(world)
        hanging.append("later", 0, b"x")
        publish(world.b, "now", 0)
        leader = world.candidate("one", a=hanging, b=world.b)
        world.run(10_000)
        news, _ = leader.refresher.sweep_counters()["a"]
        calls_while_blocked = hanging.calls
        pinged_early = world.pinged("b")
        hanging.blocked = False
        world.run(5_000)

        assert pinged_early == {"now": 0}
        assert calls_while_blocked == 2
        assert news.timeouts == 2
        assert world.pinged("a") == {"later": 0}


def changes(subjects: Any, watermark: Any, more: bool) -> Changes:
    """What a source may say whatever its types promise."""
    return Changes(subjects, watermark, more)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "returned NoneType, not Changes"),
        (changes([("s", 1)], None, False), "watermark None, which is no text"),
        (changes([], "5", True), "there is more but stays at watermark '5'"),
        (changes(["s"], "5", False), "returned 's' where"),
    ],
)
def test_refresh_backs_off_from_a_source_that_breaks_its_contract(
    answer: object, said: str
) -> None:
    world = RefreshWorld(BRISK)
    with world.timeline:
        source = Stubborn(answer)
        leader = world.candidate("one", a=source)
        world.run(5_000)

        error = leader.refresher.errors().get("a", "")
        assert said in error
        assert source.calls < 10


def test_refresh_passes_over_what_is_no_subject_and_pings_the_others() -> None:
    world = RefreshWorld(BRISK)
    with world.timeline:
        source = Stubborn(
            Changes([("", 1), ("good", 1), ("x" * 2_000, 1), ("bad", -3)], "1", False)
        )
        leader = world.candidate("one", a=source)
        world.run(2_000)
        news, _ = leader.refresher.sweep_counters()["a"]

        assert set(world.pinged("a")) == {"good"}
        assert news.refused_subjects == 3 * news.finished
        assert world.marks()["a"].watermark == "1"


def test_refresh_moves_the_watermark_only_over_pings_the_log_has() -> None:
    world = RefreshWorld(BRISK, faults=Faults(send_fail=1.0, source_ms=(1, 5)))
    with world.timeline:
        publish(world.a, "s", 0)
        leader = world.candidate("one")
        world.run(5_000)
        news, _ = leader.refresher.sweep_counters()["a"]
        assert news.lost_rounds >= 2
        assert world.marks().get("a", Mark()).watermark is None
        world.dice.faults = STEADY
        world.run(5_000)

        assert world.pinged("a") == {"s": 0}
        assert world.marks()["a"].watermark == "1"


def test_refresh_sweeps_from_the_beginning_again_after_its_interval() -> None:
    settings = RefreshSettings(interval_ms=100, full_interval_ms=60_000, full_pause_ms=10, limit=10)
    world = RefreshWorld(settings)
    with world.timeline:
        for number in range(25):
            publish(world.a, f"s{number}", 0)
        first = world.candidate("one")
        world.run(50_000)
        assert len(world.pings("a")) == 25
        first.stop()
        world.run(1_000)
        second = world.candidate("two")
        world.run(5_000)
        assert len(world.pings("a")) == 25
        world.run(10_000)

        _, full = second.refresher.sweep_counters()["a"]
        assert full.finished == 1
        assert len(world.pings("a")) == 50


def test_refresh_sweeps_from_the_beginning_though_the_last_leader_lived_in_the_future() -> None:
    """A machine whose clock was a day ahead must not put the next full sweep off by a day."""
    settings = RefreshSettings(interval_ms=100, full_interval_ms=10_000, full_pause_ms=10)
    world = RefreshWorld(settings)
    with world.timeline:
        ahead = Mark("0", world.timeline.now_ms + 86_400_000)
        world.broker.append(TopicPartition(NAMES.refresh, 0), b"a", ahead.encode())
        candidate = world.candidate("one")
        world.run(20_000)

        _, full = candidate.refresher.sweep_counters()["a"]
        assert full.finished == 1


def test_refresh_begins_anew_when_its_mark_does_not_decode() -> None:
    world = RefreshWorld(BRISK)
    with world.timeline:
        publish(world.a, "s", 0)
        for value in (b"{}", b"\xff\x00", b"[1]", b'{"watermark": 5, "full_ms": 0}'):
            world.broker.append(TopicPartition(NAMES.refresh, 0), b"a", value)
        world.candidate("one")
        world.run(1_000)

        assert world.pinged("a") == {"s": 0}


@pytest.mark.parametrize("seed", range(8))
def test_refresh_finds_everything_when_everything_goes_wrong_and_then_heals(seed: int) -> None:
    world = RefreshWorld(BRISK, faults=ROUGH, seed=seed)
    world.a._dice.faults = world.b._dice.faults = ROUGH
    with world.timeline:
        candidates = [world.candidate(f"c{number}") for number in range(3)]
        for number in range(60):
            publish(world.a, f"s{number % 20}", number // 20)
            publish(world.b, f"t{number}", 0)
            world.run(world.dice.random.randrange(400))
            if number in (20, 40):
                leading = [each for each in candidates if each.leads]
                for each in leading[:1]:
                    each.process.kill()
                    candidates.append(world.candidate(f"d{number}"))
        world.dice.faults = STEADY
        world.a._dice.faults = world.b._dice.faults = CALM
        for _ in range(HEALED_WITHIN_S):
            world.run(1_000)
            if world.marks().get("a", Mark()).watermark == "60" and len(world.pinged("b")) == 60:
                break

        assert world.pinged("a") == {f"s{number}": 2 for number in range(20)}
        assert world.pinged("b") == {f"t{number}": 0 for number in range(60)}
        assert world.marks()["a"].watermark == "60"
        assert [each.leads for each in candidates].count(True) == 1
