"""The parts that only decide: the wheel, the slots, the backoff and the books."""

import itertools
import random

import pytest

from cape_stream.ports.queue import VISIBILITY_S_MAX, QueueMessage
from cape_stream.queues.backoff import Backoff, within_lease_s
from cape_stream.queues.context import Loss
from cape_stream.queues.held import Fate, Held
from cape_stream.queues.ledger import TYPES_MAX, Ledger
from cape_stream.queues.settings import LaneSettings, ProcessorSettings
from cape_stream.queues.slots import LaneBook, Slots
from cape_stream.queues.wheel import HeartbeatWheel


def held(name: str = "m", visibility_ms: int = 30_000, group: str | None = None) -> Held:
    message = QueueMessage(name, f"{name}#1", "{}", group=group)
    return Held("work", message, visibility_ms, received_ms=0)


def test_renewal_is_due_at_a_third_and_again_a_third_after_each() -> None:
    wheel, one = HeartbeatWheel(), held()
    wheel.add(one)

    assert wheel.next_ms == 10_000
    assert wheel.due(9_999).beats == []
    assert wheel.due(10_000).beats == [one]
    wheel.renewed(one, 10_000, 30)
    assert wheel.next_ms == 20_000


def test_renewal_under_way_is_not_begun_again_and_loses_in_time() -> None:
    wheel, one = HeartbeatWheel(), held()
    wheel.add(one)
    assert wheel.due(10_000).beats == [one]

    assert wheel.due(24_999).beats == []
    assert wheel.due(25_000).losses == [(one, Loss.UNRENEWED)]
    assert one not in wheel


def test_two_failures_in_a_row_lose_and_a_success_between_forgives() -> None:
    wheel, one = HeartbeatWheel(), held()
    wheel.add(one)

    assert wheel.failed(one, 10_000) is None
    wheel.renewed(one, 12_000, 30)
    assert wheel.failed(one, 22_000) is None
    assert wheel.failed(one, 25_000) is Loss.UNRENEWED


def test_ceiling_comes_before_the_next_renewal_if_it_is_nearer() -> None:
    wheel, one = HeartbeatWheel(), held()
    wheel.add(one)
    wheel.started(one, 5_000)

    assert wheel.next_ms == 5_000
    assert wheel.due(5_000).losses == [(one, Loss.CEILING)]


def test_message_whose_ceiling_is_near_keeps_its_place_on_the_wheel() -> None:
    wheel, first, second = HeartbeatWheel(), held("a"), held("b")
    wheel.add(first)
    wheel.add(second)
    wheel.started(second, 11_000)

    assert wheel.due(10_000).beats == [first, second]
    wheel.renewed(first, 10_000, 30)
    wheel.renewed(second, 10_000, 30)
    assert wheel.due(11_000).losses == [(second, Loss.CEILING)]


def test_message_that_waits_till_its_twelfth_hour_is_renewed_seldom_and_lost_in_time() -> None:
    wheel, one = HeartbeatWheel(), held()
    wheel.add(one)
    beats: list[int] = []

    while one in wheel:
        assert wheel.next_ms is not None
        now_ms = wheel.next_ms
        for each in wheel.due(now_ms).beats:
            beats.append(now_ms)
            wheel.renewed(each, now_ms, within_lease_s(30, now_ms))

    assert VISIBILITY_S_MAX * 1_000 - 10_000 < now_ms < VISIBILITY_S_MAX * 1_000
    assert min(later - earlier for earlier, later in itertools.pairwise(beats)) >= 2_500


def test_those_due_soon_share_the_call() -> None:
    wheel = HeartbeatWheel()
    many = [held(f"m{n}") for n in range(5)]
    for number, each in enumerate(many):
        each.received_ms = number * 500
        wheel.add(each)

    assert wheel.due(10_000).beats == many


@pytest.mark.parametrize("seed", range(20))
def test_wheel_never_lets_a_message_show_up_unless_it_said_so(seed: int) -> None:
    chance, wheel = random.Random(seed), HeartbeatWheel()
    alive = [held(f"m{n}", chance.choice([1_000, 5_000, 30_000])) for n in range(30)]
    for each in alive:
        wheel.add(each)
    now_ms = 0
    while alive and now_ms < 200_000:
        assert wheel.next_ms is not None
        now_ms = max(now_ms, wheel.next_ms)
        due = wheel.due(now_ms)
        lost = [each for each, _ in due.losses]
        for each in due.beats:
            if chance.random() < 0.8:
                wheel.renewed(each, now_ms, each.visibility_ms // 1_000)
            elif chance.random() < 0.5 and wheel.failed(each, now_ms) is not None:
                wheel.remove(each)
                lost.append(each)
        assert all(each.visible_ms > now_ms for each in lost), "given up too late"
        alive = [each for each in alive if each not in lost]
        assert all(each.visible_ms > now_ms for each in alive)


def test_slot_goes_to_the_lanes_in_turn() -> None:
    books = [LaneBook(name, concurrency=10, prefetch=0, is_fifo=False) for name in "ab"]
    slots = Slots(books, concurrency=4)
    for book in books:
        book.arrived(0, [held(f"{book.name}{n}") for n in range(5)])

    taken = [slots.next() for _ in range(5)]

    assert [each and each.message.message_id for each in taken] == ["a0", "b0", "a1", "b1", None]


def test_room_is_asked_for_in_full_batches_or_for_an_idle_slot() -> None:
    book = LaneBook("a", concurrency=2, prefetch=10, is_fifo=False)

    assert book.reserve() == 10
    assert book.reserve() == 0
    book.arrived(10, [held(f"m{n}") for n in range(10)])
    running = [book.next(), book.next()]
    assert None not in running
    assert book.next() is None
    assert book.reserve() == 0
    book.waiting.clear()
    assert book.reserve() == 10


def test_small_prefetch_is_filled_before_a_slot_is_idle() -> None:
    book = LaneBook("a", concurrency=4, prefetch=3, is_fifo=False)
    book.arrived(0, [held(f"m{n}") for n in range(6)])
    for _ in range(4):
        assert book.next() is not None

    assert (len(book.waiting), book.reserve()) == (2, 0)
    book.waiting.clear()
    assert book.reserve() == 3


def test_group_runs_one_at_a_time_and_is_free_when_settled() -> None:
    book = LaneBook("a", concurrency=5, prefetch=5, is_fifo=True)
    first, second, other = held("1", group="g"), held("2", group="g"), held("3", group="h")
    book.arrived(0, [first, second, other])

    assert [book.next(), book.next(), book.next()] == [first, other, None]
    book.ended(first)
    assert book.next() is None
    book.settled(first)
    assert book.next() is second
    assert book.take_followers(second) == []


def test_backoff_doubles_up_to_its_bound_and_chance_takes_off_at_most_half() -> None:
    backoff = Backoff(first_s=2, max_s=60)

    assert [backoff.wait_s(n, 0.0) for n in range(1, 8)] == [2, 4, 8, 16, 32, 60, 60]
    assert backoff.wait_s(10_000, 1.0) == 30
    assert Backoff(first_s=0, max_s=0).wait_s(3, 0.5) == 0


def test_lease_is_cut_to_twelve_hours_in_all() -> None:
    assert within_lease_s(60, 0) == 60
    assert within_lease_s(VISIBILITY_S_MAX, 3_600_000) == VISIBILITY_S_MAX - 3_601
    assert within_lease_s(60, VISIBILITY_S_MAX * 1_000) == 0


def test_ledger_closes_each_receive_once_and_adds_up_only_then() -> None:
    ledger, one, two = Ledger(), held("a"), held("b")
    ledger.take(one)
    ledger.take(two)

    assert ledger.close(one, Fate.DONE)
    assert not ledger.close(one, Fate.LOST)
    report = ledger.report(polls_abandoned=0, hung=0, duration_ms=1)
    assert (report.adds_up, report.open) == (False, ("b",))
    ledger.close(two, Fate.HANDED_BACK)
    assert ledger.report(polls_abandoned=0, hung=0, duration_ms=1).adds_up
    assert not ledger.report(polls_abandoned=1, hung=0, duration_ms=1).adds_up


def test_types_of_strangers_are_counted_together_beyond_a_bound() -> None:
    ledger = Ledger()
    for number in range(TYPES_MAX + 50):
        ledger.count_stranger("work", f"t{number}")

    assert len(ledger.by_type) == TYPES_MAX + 1
    assert ledger.by_type["work/other"] == 50


@pytest.mark.parametrize(
    ("name", "value"),
    [("ceiling_s", 1_801), ("ceiling_s", 0), ("visibility_s", 43_201), ("concurrency", 0)],
)
def test_lane_setting_out_of_its_range_is_named(name: str, value: int) -> None:
    values: dict[str, int] = {name: value}

    with pytest.raises(ValueError, match=name):
        LaneSettings(**values)  # type: ignore[arg-type]  # a number for a number


def test_grace_period_must_be_longer_than_the_longest_poll() -> None:
    with pytest.raises(ValueError, match="grace_ms must be >= 25000"):
        ProcessorSettings(wait_s=20, grace_ms=20_000)
