"""The hub where chance seldom leads: answers that come too late, messages that never come."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection

from cape_stream.adapters.simulated.channels import (
    MemoryChannelFeed,
    MemoryChannelStore,
    MemoryChannelWriter,
)
from cape_stream.ports.channels import GrantKey, Mark, Message, Opening, Position, Realm, Signal
from cape_stream.realtime.framing import message_body
from cape_stream.realtime.hub import Hub
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.settings import RealtimeSettings
from tests.eventually import until
from tests.property.hub_clients import REALM, Client


class Feed(MemoryChannelFeed):
    """Holds the answer to an open back, and loses messages, when told to."""

    def __init__(self, store: MemoryChannelStore) -> None:
        super().__init__(store)
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0
        self.loses = False

    async def open(
        self,
        realm: Realm,
        channels: Collection[str],
        since: Position | None,
        grant: GrantKey | None = None,
    ) -> Opening:
        opening = await super().open(realm, channels, since, grant)
        self.asked += 1
        if grant is not None:
            await self.answers.wait()
        return opening

    def deliver(self, signal: Signal) -> None:
        if not (self.loses and isinstance(signal, Message | Mark)):
            super().deliver(signal)


class Stage:
    """A store, a hub that hears it, and a page."""

    def __init__(self) -> None:
        store = MemoryChannelStore(lambda: time.time_ns() // 1_000)
        self.feed = Feed(store)
        self._writer = MemoryChannelWriter(store)
        settings = RealtimeSettings(heartbeat_interval_ms=60_000)
        self.hub = Hub(self.feed, GrantKeys.ephemeral(), settings)
        self.client = Client(1, ["room"])

    def publish(self, number: int) -> None:
        self._writer.publish(REALM, "room", message_body("room", "message", number, 100))

    def heard(self) -> list[int]:
        self.client.read()
        return [data["data"] for event, data in self.client.heard if event == "message"]


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        stage = Stage()
        await asyncio.wait_for(scene(stage), 30)
        assert stage.hub.failure is None
        await stage.hub.close()
        await stage.feed.close()

    asyncio.run(run())


def test_an_answer_from_before_a_broken_link_is_asked_for_again() -> None:
    """Else what was published while the link was down would reach nobody, in silence."""

    async def scene(stage: Stage) -> None:
        await stage.client.connect(stage.hub)
        stage.client.leave(stage.hub)
        stage.feed.answers.clear()
        joining = asyncio.create_task(stage.client.connect(stage.hub))
        await until(lambda: stage.feed.asked == 2)

        stage.feed.cut()
        stage.publish(1)
        stage.feed.heal()
        await until(lambda: stage.hub._generation == 1)
        stage.feed.answers.set()
        await joining

        await until(lambda: stage.heard() == [1])  # and not only when a next one tells of it

    play(scene)


def test_a_message_that_never_came_is_noticed_by_the_next_one() -> None:
    async def scene(stage: Stage) -> None:
        await stage.client.connect(stage.hub)
        stage.publish(1)
        await until(lambda: stage.heard() == [1])

        stage.feed.loses = True
        stage.publish(2)
        stage.feed.loses = False
        stage.publish(3)

        await until(lambda: 3 in stage.heard())
        assert stage.heard() == [1, 2, 3]
        assert stage.hub.counters.catch_ups == 1

    play(scene)


def test_a_stream_whose_server_fails_to_open_it_is_forgotten() -> None:
    async def scene(stage: Stage) -> None:
        stage.feed.cut()
        await stage.client.connect(stage.hub)

        assert stage.client.stream is None
        assert stage.hub.realm(REALM).streams == set()

    play(scene)
