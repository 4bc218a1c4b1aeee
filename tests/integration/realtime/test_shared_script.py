"""A script whose callers share round trips: each gets its own answer, or its own error."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis.asyncio as redis
from redis.exceptions import RedisError, ResponseError

from cape_stream.realtime.valkey_openings import TOGETHER_MAX, SharedScript
from cape_stream.realtime.valkey_writer import client_url
from tests.fault_proxy import FaultProxy
from tests.valkey import LocalValkey

ECHO = "if ARGV[1] == 'bad' then return redis.error_reply('no') end return KEYS[1] .. ARGV[1]"
MANY = 5 * TOGETHER_MAX + 1


def play(url: str, scene: Callable[[SharedScript], Awaitable[None]]) -> None:
    async def run() -> None:
        client = redis.Redis.from_url(client_url(url), socket_timeout=5)
        script = SharedScript(client, ECHO)
        await scene(script)
        await script.close()
        await client.aclose()

    asyncio.run(run())


def test_everybody_gets_an_own_answer_over_few_round_trips(valkey_server: LocalValkey) -> None:
    async def scene(script: SharedScript) -> None:
        asked = [script.call([f"k{number}"], [number]) for number in range(MANY)]
        assert await asyncio.gather(*asked) == [
            f"k{number}{number}".encode() for number in range(MANY)
        ]

    play(valkey_server.url, scene)


def test_a_refusal_is_told_to_who_caused_it_alone(valkey_server: LocalValkey) -> None:
    async def scene(script: SharedScript) -> None:
        found = await asyncio.gather(
            *(script.call(["k"], [word]) for word in ("a", "bad", "b")), return_exceptions=True
        )
        assert [found[0], found[2]] == [b"ka", b"kb"]
        assert isinstance(found[1], ResponseError)

    play(valkey_server.url, scene)


def test_a_server_that_forgot_its_scripts_is_told_again(valkey_server: LocalValkey) -> None:
    async def scene(script: SharedScript) -> None:
        assert await script.call(["k"], ["1"]) == b"k1"
        valkey_server.ask("SCRIPT", "FLUSH")
        assert await script.call(["k"], ["2"]) == b"k2"

    play(valkey_server.url, scene)


def test_who_leaves_takes_nobody_along(valkey_server: LocalValkey) -> None:
    async def scene(script: SharedScript) -> None:
        leaving = asyncio.create_task(script.call(["k"], ["1"]))
        staying = asyncio.create_task(script.call(["k"], ["2"]))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == b"k2"

    play(valkey_server.url, scene)


def test_a_lost_server_is_told_to_all_and_the_next_is_served(fault_proxy: FaultProxy) -> None:
    async def scene(script: SharedScript) -> None:
        await script.call(["k"], ["0"])
        fault_proxy.refuse()
        found = await asyncio.gather(
            *(script.call(["k"], [number]) for number in range(MANY)), return_exceptions=True
        )
        assert all(isinstance(each, RedisError | OSError) for each in found)
        fault_proxy.heal()
        assert await script.call(["k"], ["1"]) == b"k1"

    play(fault_proxy.url, scene)


def test_whoever_waits_at_the_end_is_let_go(fault_proxy: FaultProxy) -> None:
    async def scene(script: SharedScript) -> None:
        await script.call(["k"], ["0"])
        fault_proxy.freeze()
        asked = [asyncio.create_task(script.call(["k"], [number])) for number in range(MANY)]
        await asyncio.sleep(0.05)
        await script.close()
        await asyncio.wait(asked)
        for each in asked:
            with pytest.raises(asyncio.CancelledError):
                each.result()

    play(fault_proxy.url, scene)
