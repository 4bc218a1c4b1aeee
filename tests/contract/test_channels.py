"""What every store of channels does: history, order, gaps, links, revocations, budgets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from itertools import pairwise

import pytest

from cape_stream.errors import Retry
from cape_stream.ports.channels import (
    ChannelFeed,
    ChannelWriter,
    GrantKey,
    LinkRestored,
    Mark,
    Message,
    Position,
    RateLimit,
    Realm,
    Retention,
    Revocation,
    Signal,
)
from tests.contract.channel_implementations import (
    CHANNELS,
    ChannelImplementation,
    ChannelsUnderTest,
)
from tests.contract.implementations import expect_what_is_declared, needs
from tests.eventually import WAIT_S, until

LIVE, DEV, OTHER_APP = Realm("live", "app"), Realm("dev-7", "app"), Realm("live", "other")
GRANT = GrantKey("g-1", "user-7", 1_000_000)


@pytest.fixture(params=CHANNELS)
def channels(request: pytest.FixtureRequest) -> Iterator[ChannelsUnderTest]:
    """A store of every implementation."""
    implementation: ChannelImplementation = request.param
    expect_what_is_declared(request, implementation)
    with implementation.open(request) as under_test:
        yield under_test


Play = Callable[[ChannelWriter, ChannelFeed], Awaitable[None]]


def play(channels: ChannelsUnderTest, scene: Play, retention: Retention | None = None) -> None:
    """Run a scene with one writer and one feed."""
    kept = retention or Retention()

    async def run() -> None:
        feed = channels.feed(kept)
        try:
            with closing(channels.writer(kept)) as writer:
                await until(lambda: feed.is_linked)
                await asyncio.wait_for(scene(writer, feed), 50)
        finally:
            await feed.close()

    asyncio.run(run())


async def hear(feed: ChannelFeed, wanted: Callable[[list[Signal]], bool]) -> list[Signal]:
    """Collect signals until enough is there."""
    found: list[Signal] = []
    async with asyncio.timeout(WAIT_S):
        while not wanted(found):
            found += await feed.receive()
    return found


def bodies(signals: list[Signal]) -> list[bytes]:
    return [each.body for each in signals if isinstance(each, Message)]


def test_a_publish_reaches_who_watches_its_channel_only(channels: ChannelsUnderTest) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, ["room"])
        writer.publish(LIVE, "other", b"1")
        writer.publish(DEV, "room", b"2")
        writer.publish(OTHER_APP, "room", b"3")
        writer.publish(LIVE, "room*", b"4")
        sequence = writer.publish(LIVE, "room", b"5")

        heard = await hear(feed, lambda found: len(found) >= 1)

        assert [(each.channel, each.body) for each in heard if isinstance(each, Message)] == [
            ("room", b"5")
        ]
        assert isinstance(heard[0], Message)
        assert heard[0].sequence == sequence
        assert heard[0].realm == LIVE

    play(channels, scene)


def test_sequences_grow_over_all_channels_of_a_realm_and_name_their_predecessor(
    channels: ChannelsUnderTest,
) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, ["a", "b"])
        sent = [writer.publish(LIVE, "ab"[number % 2], b"%d" % number) for number in range(50)]

        heard = await hear(feed, lambda found: len(found) >= 50)

        messages = [each for each in heard if isinstance(each, Message)]
        assert [each.sequence for each in messages] == sent
        assert all(one < two for one, two in pairwise(sent))
        for channel in "ab":
            own = [each for each in messages if each.channel == channel]
            assert own[0].previous == 0
            assert [each.previous for each in own[1:]] == [each.sequence for each in own[:-1]]

    play(channels, scene)


def test_open_without_a_position_misses_nothing_and_tells_where_it_is(
    channels: ChannelsUnderTest,
) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        before = writer.publish(LIVE, "room", b"old")

        opening = await feed.open(LIVE, ["room"], None)
        after = writer.publish(LIVE, "room", b"new")

        assert not opening.missed
        assert not opening.gaps
        assert before <= opening.position.sequence < after

    play(channels, scene)


def test_open_returns_what_was_missed_in_order_over_channels(channels: ChannelsUnderTest) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        writer.publish(LIVE, "a", b"known")
        start = (await feed.open(LIVE, ["a", "b", "c"], None)).position
        for number in range(30):
            writer.publish(LIVE, "abx"[number % 3], b"%d" % number)

        opening = await feed.open(LIVE, ["a", "b", "c"], start)

        assert [each.body for each in opening.missed] == [
            b"%d" % number for number in range(30) if number % 3 != 2
        ]
        assert not opening.gaps
        again = await feed.open(LIVE, ["a", "b", "c"], opening.position)
        assert not again.missed
        assert not again.gaps

    play(channels, scene)


def test_a_trimmed_history_is_a_gap_of_that_channel_alone(channels: ChannelsUnderTest) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        start = (await feed.open(LIVE, ["busy", "calm"], None)).position
        writer.publish(LIVE, "calm", b"c")
        first = writer.publish(LIVE, "busy", b"0")
        for number in range(1, 6):
            writer.publish(LIVE, "busy", b"%d" % number)

        opening = await feed.open(LIVE, ["busy", "calm"], start)
        covered = await feed.open(LIVE, ["busy"], Position(start.epoch, first))

        assert set(opening.gaps) == {"busy"}
        assert [each.body for each in opening.missed] == [b"c"]
        assert not covered.gaps
        assert [each.body for each in covered.missed] == [b"1", b"2", b"3", b"4", b"5"]

    play(channels, scene, Retention(messages=5))


def test_an_unknown_epoch_or_a_position_of_the_future_is_a_gap(
    channels: ChannelsUnderTest,
) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        here = (await feed.open(LIVE, ["room"], None)).position

        strange = await feed.open(LIVE, ["room"], Position("ffff", here.sequence))
        ahead = await feed.open(LIVE, ["room"], Position(here.epoch, here.sequence + 10**12))

        assert set(strange.gaps) == {"room"}
        assert set(ahead.gaps) == {"room"}

    play(channels, scene)


def test_lost_data_is_a_gap_and_positions_still_grow(channels: ChannelsUnderTest) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        old = writer.publish(LIVE, "room", b"1")
        here = (await feed.open(LIVE, ["room"], None)).position

        channels.lose_data()
        new = writer.publish(LIVE, "room", b"2")
        opening = await feed.open(LIVE, ["room"], here)

        assert set(opening.gaps) == {"room"}
        assert opening.position.epoch != here.epoch
        assert new > old

    play(channels, scene)


def test_a_position_older_than_the_history_is_a_gap_even_if_nothing_is_kept(
    channels: ChannelsUnderTest,
) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        start = (await feed.open(LIVE, ["room", "quiet"], None)).position
        writer.publish(LIVE, "room", b"gone")

        channels.pass_time(2_200)
        opening = await feed.open(LIVE, ["room", "quiet"], start)
        fresh = await feed.open(LIVE, ["room", "quiet"], opening.position)

        assert set(opening.gaps) == {"room", "quiet"}
        assert not opening.missed
        assert not fresh.gaps

    play(channels, scene, Retention(age_ms=2_000))


def test_too_much_to_catch_up_with_is_a_gap(channels: ChannelsUnderTest) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        start = (await feed.open(LIVE, ["room"], None)).position
        for _ in range(5):
            writer.publish(LIVE, "room", b"x" * 1_000)

        opening = await feed.open(LIVE, ["room"], start)

        assert set(opening.gaps) == {"room"}
        assert not opening.missed

    play(channels, scene, Retention(catch_up_bytes=4_999))


def test_ephemeral_messages_arrive_and_leave_no_trace(channels: ChannelsUnderTest) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, ["room"])
        start = (await feed.open(LIVE, ["room"], None)).position
        one = writer.publish(LIVE, "room", b"kept")

        told = writer.publish(LIVE, "room", b"typing", is_ephemeral=True)
        two = writer.publish(LIVE, "room", b"kept too")

        heard = await hear(feed, lambda found: len(found) >= 3)
        opening = await feed.open(LIVE, ["room"], start)
        assert told == 0
        assert bodies(heard) == [b"kept", b"typing", b"kept too"]
        assert [each.sequence for each in opening.missed] == [one, two]
        assert opening.missed[1].previous == one

    play(channels, scene)


def test_a_mark_follows_everything_before_it(channels: ChannelsUnderTest) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, ["room"])
        sequence = writer.publish(LIVE, "room", b"1")
        await feed.mark(LIVE)
        after = writer.publish(LIVE, "room", b"2")

        heard = await hear(feed, lambda found: len(found) >= 3)

        assert isinstance(heard[1], Mark)
        assert sequence <= heard[1].sequence < after

    play(channels, scene)


def test_revocations_are_told_and_kept(channels: ChannelsUnderTest) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, ["room"])
        younger = GrantKey("g-2", "user-7", 2_000_000)
        stranger = GrantKey("g-3", "user-8", 1_000_000)
        everybody = [GRANT, younger, stranger]
        assert not any(await feed.revoked(LIVE, everybody))

        writer.revoke(Revocation(LIVE, "", "user-7", 1_500_000))
        writer.revoke(Revocation(LIVE, "g-3", "", 0))

        heard = await hear(feed, lambda found: len(found) >= 2)
        assert heard == [
            Revocation(LIVE, "", "user-7", 1_500_000),
            Revocation(LIVE, "g-3", "", 0),
        ]
        assert list(await feed.revoked(LIVE, everybody)) == [True, False, True]
        assert list(await feed.revoked(DEV, everybody)) == [False, False, False]
        assert [(await feed.open(LIVE, ["room"], None, each)).is_revoked for each in everybody] == [
            True,
            False,
            True,
        ]

    play(channels, scene)


def test_a_later_revocation_of_a_holder_never_reaches_less_far(
    channels: ChannelsUnderTest,
) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        writer.revoke(Revocation(LIVE, "", "user-7", 1_500_000))
        writer.revoke(Revocation(LIVE, "", "user-7", 500_000))

        assert list(await feed.revoked(LIVE, [GRANT])) == [True]

    play(channels, scene)


def test_a_client_is_held_to_its_rate(channels: ChannelsUnderTest) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, ["room"])
        limit = RateLimit("g-1", 3)

        taken = [await feed.publish(LIVE, "room", b"%d" % n, limit) for n in range(100)]
        others = await feed.publish(LIVE, "room", b"other", RateLimit("g-2", 3))

        # A second may turn while this runs, and on a slow machine several may.
        assert 3 <= sum(taken) < 100
        assert others
        assert taken[:3] == [True, True, True]
        heard = await hear(feed, lambda found: len(found) >= sum(taken) + 1)
        assert all(isinstance(each, Message) and each.sequence == 0 for each in heard)

    play(channels, scene)


def test_unwatched_channels_are_silent_and_can_be_watched_again(
    channels: ChannelsUnderTest,
) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, ["a", "b"])
        await feed.unwatch(LIVE, ["a"])
        await feed.watch(LIVE, ["a"])
        writer.publish(LIVE, "a", b"1")
        await hear(feed, lambda found: len(found) >= 1)

        await feed.unwatch(LIVE, ["a"])
        writer.publish(LIVE, "a", b"2")
        writer.publish(LIVE, "b", b"3")
        heard = await hear(feed, lambda found: b"3" in bodies(found))

        assert bodies(heard) in ([b"3"], [b"2", b"3"])  # a message may have been on its way
        await feed.unwatch(LIVE, ["b"])
        await feed.watch(LIVE, ["b"])
        writer.publish(LIVE, "b", b"4")
        assert bodies(await hear(feed, lambda found: len(found) >= 1)) == [b"4"]

    play(channels, scene)


def test_a_broken_link_is_told_and_heals_with_its_subscriptions(
    channels: ChannelsUnderTest,
) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, ["room"])
        start = (await feed.open(LIVE, ["room"], None)).position

        channels.cut()
        await until(lambda: not feed.is_linked)
        writer.publish(LIVE, "room", b"missed")
        with pytest.raises(Retry):
            await feed.watch(LIVE, ["room"])
        with pytest.raises(Retry):
            await feed.open(LIVE, ["room"], None)
        channels.heal()

        heard = await hear(feed, lambda found: LinkRestored() in found)
        assert bodies(heard) == []
        await feed.watch(LIVE, ["room"])
        opening = await feed.open(LIVE, ["room"], start)
        assert [each.body for each in opening.missed] == [b"missed"]
        writer.publish(LIVE, "room", b"live")
        assert bodies(await hear(feed, lambda found: b"live" in bodies(found))) == [b"live"]

    play(channels, scene)


@pytest.mark.parametrize(
    "channel",
    [
        "a:b",
        "a/b",
        "a b",
        "{x}",
        "a}b{",
        "*",
        "?",
        "[ab]",
        "#",
        "Zürich",
        "🚀",
        "a\\b",
        "'\"",
        "%41",
    ],
)
def test_channel_names_are_taken_literally(channels: ChannelsUnderTest, channel: str) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, [channel])
        start = (await feed.open(LIVE, [channel], None)).position
        for other in ("a", "b", "abc", "A"):
            writer.publish(LIVE, other, b"other")
        writer.publish(LIVE, channel, b"own")

        heard = await hear(feed, lambda found: len(found) >= 1)
        opening = await feed.open(LIVE, [channel], start)

        assert bodies(heard) == [b"own"]
        assert [each.body for each in opening.missed] == [b"own"]

    play(channels, scene)


@pytest.mark.parametrize(
    "realm", [Realm("a}b", "c"), Realm("a", "}b{"), Realm("a/b", "c"), Realm("a", "b/c")]
)
def test_realms_whose_names_look_alike_stay_apart(
    channels: ChannelsUnderTest, realm: Realm
) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        twins = {Realm("a", "c/b"), Realm("c", "a/b"), Realm("b", "c"), Realm("a}b", "d")}
        await feed.watch(realm, ["room"])
        for twin in twins - {realm}:
            writer.publish(twin, "room", b"theirs")
        writer.publish(realm, "room", b"ours")

        assert bodies(await hear(feed, lambda found: len(found) >= 1)) == [b"ours"]

    play(channels, scene)


@needs("strangers")
@pytest.mark.parametrize("payload", [b"", b"m", b"m a b c d", b"\xff\xfe", b"k a 1", b"m e 1 x b"])
def test_foreign_payloads_are_dropped_and_the_next_is_served(
    channels: ChannelsUnderTest, payload: bytes
) -> None:
    async def scene(writer: ChannelWriter, feed: ChannelFeed) -> None:
        await feed.watch(LIVE, ["room"])

        channels.spoil("room", payload)
        writer.publish(LIVE, "room", b"next")

        assert bodies(await hear(feed, lambda found: len(found) >= 1)) == [b"next"]

    play(channels, scene)
