"""Requests over `cape ws`: real sockets between callers, the relay and workers."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect

from cape_stream.coordination.memory_tokens import MemoryHookTokens
from cape_stream.errors import Fenced, Reject, Retry
from cape_stream.ports.credentials import Scope
from cape_stream.realtime.call_client import Asked, RequestClient, RequestWorker
from cape_stream.realtime.calls import CallServer
from cape_stream.realtime.platform import (
    CONSOLE_CHANNEL,
    PLATFORM,
    PlatformChannels,
    dev_session_channel,
)
from cape_stream.realtime.settings import RealtimeSettings
from tests.eventually import until
from tests.fault_proxy import FaultProxy
from tests.integration.realtime.kit import (
    Installation,
    RunningServer,
    SseClient,
    hear,
    installation,
    of_type,
    settings,
    websocket,
)

SECRET = "s" * 40


class AsyncTokens:
    """The event loop's face of tokens in memory."""

    def __init__(self, tokens: MemoryHookTokens) -> None:
        self._tokens = tokens

    async def check(self, token: str) -> Scope | None:
        return self._tokens.check(token)


class Stage:
    """A relay that runs."""

    def __init__(self, site: Installation, kept: RealtimeSettings) -> None:
        self.site = site
        self.calls = CallServer(AsyncTokens(site.tokens), SECRET, kept)
        self.server = RunningServer(
            site.stage, site.keys, kept, self.calls.routes, kept.call_bytes_max
        )
        self.url = f"ws://127.0.0.1:{self.server.port}"

    def token(self, environment: str = "live") -> str:
        return self.site.tokens.mint(environment, "app", "e-1", "tail-1", 600_000)

    @asynccontextmanager
    async def worker(
        self,
        answer: Callable[[Asked], Awaitable[Any]],
        *,
        window: int = 4,
        url: str = "",
    ) -> Any:
        worker = RequestWorker(url or self.url, "db", SECRET, answer, window=window)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(worker.is_offering.wait(), 20)
        try:
            yield worker
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def client(self, token: str = "") -> RequestClient:
        return RequestClient(self.url, token or self.token())


@contextmanager
def staged(**changes: Any) -> Iterator[Stage]:
    kept = settings(**({"token_check_interval_ms": 100} | changes))
    with installation() as site:
        stage = Stage(site, kept)
        try:
            yield stage
        finally:
            stage.server.stop()


def play(scene: Callable[[Stage], Awaitable[None]], **changes: Any) -> None:
    with staged(**changes) as stage:
        asyncio.run(asyncio.wait_for(scene(stage), 50))


async def echo(asked: Asked) -> Any:
    return {"env": asked.scope.environment, "subject": asked.scope.subject, "body": asked.body}


def test_many_requests_share_a_socket_and_find_their_answers() -> None:
    async def scene(stage: Stage) -> None:
        async def slow_when_even(asked: Asked) -> Any:
            await asyncio.sleep(0.02 if asked.body % 2 else 0)
            return asked.body * 10

        async with (
            stage.worker(slow_when_even),
            stage.worker(slow_when_even),
            stage.client() as client,
        ):
            found = await asyncio.gather(*(client.call("db", n) for n in range(50)))

        assert found == [number * 10 for number in range(50)]

    play(scene)


def test_the_worker_learns_for_whom_from_the_token_and_not_from_the_caller() -> None:
    async def scene(stage: Stage) -> None:
        body = {"environment": "live", "app": "other"}
        async with stage.worker(echo), stage.client(stage.token("dev-7")) as client:
            found = await client.call("db", body)

        assert found == {"env": "dev-7", "subject": "tail-1", "body": body}

    play(scene)


def test_failures_are_told_by_what_the_caller_can_do() -> None:
    async def scene(stage: Stage) -> None:
        async def answer(asked: Asked) -> Any:
            if asked.body == "slow":
                await asyncio.sleep(60)
            if asked.body == "silent":
                return object()
            raise ValueError("no such table")

        async with stage.client() as client:
            with pytest.raises(Retry, match="no_worker"):
                await client.call("db", 1)
            async with stage.worker(answer):
                with pytest.raises(Reject, match="ValueError: no such table"):
                    await client.call("db", 1)
                with pytest.raises(Reject, match="TypeError"):
                    await client.call("db", "silent")
                with pytest.raises(Retry, match="deadline"):
                    await client.call("db", "slow", deadline_ms=100)
                with pytest.raises(Retry, match="no_worker"):
                    await client.call("mail", 1)

    play(scene)


def test_a_lost_worker_is_told_and_the_next_one_serves() -> None:
    async def scene(stage: Stage) -> None:
        begun = asyncio.Event()

        async def hang(_: Asked) -> Any:
            begun.set()
            await asyncio.sleep(60)

        with FaultProxy(stage.server.port) as proxy:
            url = f"ws://127.0.0.1:{proxy.port}"
            async with stage.client() as client, stage.worker(hang, url=url):
                asking = asyncio.create_task(client.call("db", 1))
                await asyncio.wait_for(begun.wait(), 20)
                proxy.refuse()
                with pytest.raises(Retry, match="worker_lost"):
                    await asking
                async with stage.worker(echo):
                    assert (await client.call("db", 2))["body"] == 2

    play(scene)


def test_cancelling_a_call_cancels_it_at_the_worker() -> None:
    async def scene(stage: Stage) -> None:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def hang(_: Asked) -> Any:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with stage.worker(hang), stage.client() as client:
            asking = asyncio.create_task(client.call("db", 1))
            await asyncio.wait_for(begun.wait(), 20)
            asking.cancel()
            await asyncio.wait_for(cancelled.wait(), 20)

    play(scene)


def test_a_caller_that_leaves_cancels_what_it_asked() -> None:
    async def scene(stage: Stage) -> None:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def hang(_: Asked) -> Any:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with stage.worker(hang):
            async with stage.client() as client:
                asking = asyncio.create_task(client.call("db", 1))
                await asyncio.wait_for(begun.wait(), 20)
            await asyncio.wait_for(cancelled.wait(), 20)
            with pytest.raises(Retry, match="closed"):
                await asking

    play(scene)


def test_a_caller_beyond_its_window_is_held_back_and_loses_nothing() -> None:
    async def scene(stage: Stage) -> None:
        under_way = most = 0

        async def answer(asked: Asked) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.005)
            under_way -= 1
            return asked.body

        async with (
            stage.worker(answer, window=100),
            connect(
                f"{stage.url}/v1/call",
                additional_headers={"Authorization": f"Bearer {stage.token()}"},
                proxy=None,
            ) as rude,
        ):
            hello = json.loads(await rude.recv())
            for number in range(60):  # as if there were no window
                request = {"type": "request", "id": number, "service": "db", "body": number}
                await rude.send(json.dumps(request))
            answers = [json.loads(await rude.recv()) for _ in range(60)]

        assert hello["window"] == 5
        assert sorted(each["body"] for each in answers) == list(range(60))
        assert most <= 5

    play(scene, call_window=5)


def test_a_dead_token_ends_the_socket() -> None:
    async def scene(stage: Stage) -> None:
        token = stage.token()
        async with stage.worker(echo), stage.client(token) as client:
            assert await client.call("db", 1)

            stage.site.tokens.revoke(token)

            async def go_on() -> None:
                while True:
                    await client.call("db", 1)
                    await asyncio.sleep(0.02)

            with pytest.raises(Fenced):
                await asyncio.wait_for(go_on(), 20)
        with pytest.raises(Fenced):
            async with stage.client(token):
                pass
        with pytest.raises(Fenced):
            async with stage.client("nonsense"):
                pass

    play(scene)


@pytest.mark.parametrize("secret", ["", "wrong", SECRET[:-1], f"{SECRET}s"])
def test_a_worker_without_the_secret_is_refused(secret: str) -> None:
    async def scene(stage: Stage) -> None:
        with pytest.raises(Reject, match="secret"):
            await RequestWorker(stage.url, "db", secret, echo).run()

    play(scene)


def test_without_a_secret_no_worker_may_come() -> None:
    async def scene(stage: Stage) -> None:
        stage.calls._worker_token = b""
        with pytest.raises(Reject, match="secret"):
            await RequestWorker(stage.url, "db", "", echo).run()

    play(scene)


@pytest.mark.parametrize(
    "said", ["", "x", "[]", '{"type":"request"}', '{"type":"request","id":"1"}', "[" * 5_000]
)
def test_a_caller_that_talks_nonsense_is_let_go_and_others_are_served(said: str) -> None:
    async def scene(stage: Stage) -> None:
        headers = {"Authorization": f"Bearer {stage.token()}"}
        async with stage.worker(echo), stage.client() as client:
            async with connect(
                f"{stage.url}/v1/call", additional_headers=headers, proxy=None
            ) as rude:
                await rude.recv()
                await rude.send(said)
                await asyncio.wait_for(rude.wait_closed(), 20)
                assert rude.close_code == 4400

            assert (await client.call("db", 1))["body"] == 1

    play(scene)


def test_a_worker_that_does_not_read_is_cut_off() -> None:
    async def scene(stage: Stage) -> None:
        with FaultProxy(stage.server.port) as proxy:
            url = f"ws://127.0.0.1:{proxy.port}"
            async with stage.worker(echo, url=url, window=100), stage.client() as client:
                proxy.freeze()
                calls = [
                    asyncio.create_task(client.call("db", "x" * 500_000, deadline_ms=20_000))
                    for _ in range(20)
                ]
                found = await asyncio.gather(*calls, return_exceptions=True)
                assert all(isinstance(each, Retry) for each in found), found
                proxy.heal()

    play(scene, send_deadline_ms=600, heartbeat_interval_ms=300)


def test_the_platform_has_channels_that_no_app_can_name() -> None:
    with staged() as stage:
        platform = PlatformChannels(stage.site.stage.writer, stage.site.keys, settings())
        console = websocket(
            stage.server.port, platform.grant(CONSOLE_CHANNEL, holder="operator").token
        )
        hear(console, of_type("ready"))
        app = SseClient(stage.server.port, stage.site.context().grant([CONSOLE_CHANNEL]).token)
        app.until_event("ready")

        platform.publish(CONSOLE_CHANNEL, {"jobs": 7}, kind="figures")

        assert hear(console, of_type("message"))["data"] == {"jobs": 7}
        app.until_comments(2)
        assert app.messages == []
        with pytest.raises(Fenced):
            stage.site.context(PLATFORM.environment, "app")
        with pytest.raises(Fenced):
            stage.site.context("live", PLATFORM.app)
        platform.revoke("operator")
        hear(console, of_type("revoked"))


def test_each_dev_session_has_a_channel_of_its_own() -> None:
    with staged() as stage:
        platform = PlatformChannels(stage.site.stage.writer, stage.site.keys, settings())
        mine, other = dev_session_channel("s-1"), dev_session_channel("s-2")
        editor = websocket(stage.server.port, platform.grant(mine, holder="ada").token)
        hear(editor, of_type("ready"))

        platform.publish(other, "theirs")
        platform.publish(mine, "reloaded", kind="build")

        assert hear(editor, of_type("message"))["data"] == "reloaded"


def test_a_worker_comes_back_after_a_cut() -> None:
    async def scene(stage: Stage) -> None:
        with FaultProxy(stage.server.port) as proxy:
            url = f"ws://127.0.0.1:{proxy.port}"
            async with stage.worker(echo, url=url) as worker, stage.client() as client:
                proxy.cut()
                await until(lambda: not worker.is_offering.is_set())
                await until(worker.is_offering.is_set)
                assert (await client.call("db", 3))["body"] == 3

    play(scene)
