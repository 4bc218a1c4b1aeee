"""The progress and results ports: in memory, in a file, and in a real Valkey."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cape_stream.adapters.local import MemoryProgress, MemoryResults, SqliteProgress
from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.ports.progress import Progress
from cape_stream.ports.results import Results
from cape_stream.roles.fleet_valkey import ValkeyProgress, ValkeyResults

PROGRESS = ["memory", "sqlite", "valkey"]
RESULTS = ["memory", "valkey"]


@asynccontextmanager
async def two_of(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, Any]]:
    """Progress and results as one process has them, and as another one does."""
    folder: Path = request.getfixturevalue("tmp_path")
    if kind == "memory":
        one = MemoryProgress(), MemoryResults()
        yield one, one
    elif kind == "sqlite":
        files = [SqliteProgress(folder / "progress.db") for _ in range(2)]
        yield (files[0], None), (files[1], None)
        for file in files:
            file.close()
    else:
        settings = ValkeySettings(url=request.getfixturevalue("valkey").url)
        stores = [AsyncStore(settings) for _ in range(2)]
        first, second = ((ValkeyProgress(store), ValkeyResults(store)) for store in stores)
        yield first, second
        for store in stores:
            await store.close()


def play(
    kind: str,
    request: pytest.FixtureRequest,
    scene: Callable[[Any, Any], Coroutine[Any, Any, None]],
) -> None:
    if kind == "valkey":
        request.getfixturevalue("valkey")

    async def whole() -> None:
        async with two_of(kind, request) as (one, other):
            await scene(one, other)

    asyncio.run(whole())


@pytest.mark.parametrize("kind", PROGRESS)
def test_progress_grows_for_all_and_never_goes_back(
    kind: str, request: pytest.FixtureRequest
) -> None:
    async def scene(one: tuple[Progress, Any], other: tuple[Progress, Any]) -> None:
        name = f"batch/{uuid4().hex}"
        assert await one[0].read(name) == 0
        assert await one[0].advance(name, 5) == 5
        assert await other[0].advance(name, 3) == 5
        assert await other[0].read(name) == 5
        await other[0].forget(name)
        assert await one[0].read(name) == 0

    play(kind, request, scene)


@pytest.mark.parametrize("kind", PROGRESS)
def test_progress_counts_every_addition_of_all(kind: str, request: pytest.FixtureRequest) -> None:
    async def scene(one: tuple[Progress, Any], other: tuple[Progress, Any]) -> None:
        name = f"interrupted/{uuid4().hex}"
        await asyncio.gather(*(each[0].add(name) for each in (one, other) for _ in range(10)))

        assert await one[0].read(name) == 20
        assert await other[0].add(name) == 21

    play(kind, request, scene)


@pytest.mark.parametrize("kind", RESULTS)
def test_answer_reaches_who_waits_and_who_comes_later(
    kind: str, request: pytest.FixtureRequest
) -> None:
    async def scene(one: tuple[Any, Results], other: tuple[Any, Results]) -> None:
        early, late = uuid4().hex, uuid4().hex
        waiting = asyncio.ensure_future(one[1].wait(early, 30_000))
        await asyncio.sleep(0.05)
        await other[1].put(early, b"first", 60_000)
        await other[1].put(early, b"second", 60_000)
        assert await waiting == b"first"

        await other[1].put(late, b"\x00\xff", 60_000)
        assert await one[1].wait(late, 30_000) == b"\x00\xff"

    play(kind, request, scene)


@pytest.mark.parametrize("kind", RESULTS)
def test_wait_without_an_answer_ends(kind: str, request: pytest.FixtureRequest) -> None:
    async def scene(one: tuple[Any, Results], _: Any) -> None:
        assert await one[1].wait(uuid4().hex, 50) is None

    play(kind, request, scene)


def test_waiter_outlives_a_server_that_is_away_for_a_while(valkey_server: Any) -> None:
    async def scene() -> bytes | None:
        one, other = (AsyncStore(ValkeySettings(url=valkey_server.url)) for _ in range(2))
        request = uuid4().hex
        waiting = asyncio.ensure_future(ValkeyResults(one).wait(request, 60_000))
        await asyncio.sleep(0.2)

        await asyncio.to_thread(valkey_server.kill)
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await asyncio.to_thread(valkey_server.start)
        await ValkeyResults(other).put(request, b"late", 60_000)

        found = await waiting
        for store in (one, other):
            await store.close()
        return found

    assert asyncio.run(scene()) == b"late"


def test_wait_on_a_server_that_stays_away_ends_without_an_answer(valkey_server: Any) -> None:
    valkey_server.kill()

    async def scene() -> bytes | None:
        store = AsyncStore(ValkeySettings(url=valkey_server.url))
        found = await ValkeyResults(store).wait(uuid4().hex, 300)
        await store.close()
        return found

    assert asyncio.run(scene()) is None
