"""The hub against a dumb judge: whatever happens, a client misses nothing it is not told of.

Seeded scenes on the store in memory: publishes on several channels, streams that come, leave and
resume with the cursor they have, links that break and heal, opens whose answers are late, lost
data. The judge knows what was published; it reads the bytes each client got.
"""

import asyncio
import random
import time
from collections.abc import Collection

import pytest

from cape_stream.adapters.simulated.channels import (
    MemoryChannelFeed,
    MemoryChannelStore,
    MemoryChannelWriter,
)
from cape_stream.ports.channels import GrantKey, Opening, Position, Realm, Retention
from cape_stream.realtime.framing import message_body
from cape_stream.realtime.hub import Hub
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.settings import RealtimeSettings
from tests.property.hub_clients import REALM, Client

CHANNELS = ["a", "b", "c"]
KEYS = GrantKeys.ephemeral()
SETTINGS = RealtimeSettings(heartbeat_interval_ms=100, history_messages=500)


class LateFeed(MemoryChannelFeed):
    """A store whose answers may be late, after other things have happened."""

    def __init__(self, store: MemoryChannelStore, chance: random.Random) -> None:
        super().__init__(store)
        self._chance = chance

    async def open(
        self,
        realm: Realm,
        channels: Collection[str],
        since: Position | None,
        grant: GrantKey | None = None,
    ) -> Opening:
        await self._dawdle()
        opening = await super().open(realm, channels, since, grant)
        await self._dawdle()
        return opening

    async def watch(self, realm: Realm, channels: Collection[str]) -> None:
        await self._dawdle()
        await super().watch(realm, channels)
        await self._dawdle()

    async def _dawdle(self) -> None:
        for _ in range(self._chance.choice([0, 0, 1, 3, 9])):
            await asyncio.sleep(0)


class Scene:
    """A seeded run."""

    def __init__(self, seed: int, *, may_lose_data: bool) -> None:
        self.chance = random.Random(seed)
        self.store = MemoryChannelStore(lambda: time.time_ns() // 1_000, Retention(500))
        self.writer = MemoryChannelWriter(self.store)
        self.told: dict[str, list[int]] = {name: [] for name in CHANNELS}
        self.clients = [
            Client(number, self.chance.sample(CHANNELS, self.chance.randint(1, 3)))
            for number in range(5)
        ]
        self._may_lose_data = may_lose_data
        self._joining: list[asyncio.Task[None]] = []

    async def run(self, steps: int) -> None:
        feed = LateFeed(self.store, self.chance)
        hub = Hub(feed, KEYS, SETTINGS)
        for client in self.clients:
            await client.connect(hub)
        for _ in range(steps):
            self._step(hub, feed)
            for _ in range(self.chance.choice([0, 1, 2, 5])):
                await asyncio.sleep(0)
        feed.heal()
        await self._settle(hub)
        assert hub.failure is None
        await hub.close()
        await feed.close()

    def _step(self, hub: Hub, feed: LateFeed) -> None:
        what = self.chance.random()
        client = self.chance.choice(self.clients)
        if what < 0.6:
            self.publish()
        elif what < 0.75:
            if client.stream is not None:
                client.leave(hub)
            elif all(task.done() for task in self._joining):
                self._joining.append(asyncio.create_task(client.connect(hub)))
        elif what < 0.85:
            feed.cut()
        elif what < 0.97:
            feed.heal()
        elif self._may_lose_data:
            self.store.flush()

    def publish(self) -> None:
        name = self.chance.choice(CHANNELS)
        number = sum(len(each) for each in self.told.values())
        self.told[name].append(number)
        self.writer.publish(REALM, name, message_body(name, "message", number, 1_000))

    async def _settle(self, hub: Hub) -> None:
        """Everybody is connected, and one more message of each channel has arrived."""
        await asyncio.gather(*self._joining)
        for client in self.clients:
            while client.stream is None:
                await client.connect(hub)
        last = {}
        for name in CHANNELS:
            last[name] = sum(len(each) for each in self.told.values())
            self.told[name].append(last[name])
            self.writer.publish(REALM, name, message_body(name, "message", last[name], 1_000))
        async with asyncio.timeout(20):
            while True:
                if all(self._has_heard(client, last) for client in self.clients):
                    return
                await asyncio.sleep(0.005)

    def _has_heard(self, client: Client, last: dict[str, int]) -> bool:
        client.read()
        seen = {data["data"] for event, data in client.heard if event == "message"}
        lost = {
            name for event, data in client.heard if event == "reset" for name in data["channels"]
        }
        return all(last[name] in seen or name in lost for name in client.channels)


def judge(scene: Scene) -> int:
    """Check every client against what was told; how many gaps were told."""
    resets = 0
    for client in scene.clients:
        for name in client.channels:
            expected = iter(scene.told[name])
            is_first, may_skip, latest = True, False, -1
            for event, data in client.heard:
                if event == "reset" and name in data["channels"]:
                    may_skip = True
                    resets += 1
                if event != "message" or data["channel"] != name:
                    continue
                number = data["data"]
                assert number > latest, f"{name}: {number} after {latest}"
                latest = number
                if is_first or may_skip:
                    found = next(each for each in expected if each >= number)
                else:
                    found = next(expected)
                assert found == number, f"{name}: {number} came, {found} was missed in silence"
                is_first = may_skip = False
    return resets


def play(seed: int, *, may_lose_data: bool) -> tuple[Scene, int]:
    scene = Scene(seed, may_lose_data=may_lose_data)
    asyncio.run(asyncio.wait_for(scene.run(120), 50))
    return scene, judge(scene)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_missed_or_repeated_while_the_store_keeps_its_data(seed: int) -> None:
    scene, resets = play(seed, may_lose_data=False)

    assert resets == 0
    assert sum(len(client.heard) for client in scene.clients) > 50


@pytest.mark.parametrize("seed", range(100, 125))
def test_what_lost_data_took_is_told(seed: int) -> None:
    play(seed, may_lose_data=True)


def test_scenes_lose_data_and_break_links_at_all() -> None:
    resets = sum(play(seed, may_lose_data=True)[1] for seed in range(100, 106))

    assert resets > 0
