"""Fills, writes, invalidations and flushes, interleaved at random between any two steps."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cape_stream.coordination.cache import Cache, CacheSettings
from cape_stream.coordination.codecs import JsonCodec
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from tests.valkey import World

READERS, WRITERS, FLUSHERS = 3, 2, 1
ROUNDS = 3
LIMIT_S = 40


class Actor:
    """A thread that moves only when it is told to, from one pause to the next."""

    def __init__(self, work: Callable[["Actor"], None]) -> None:
        self._turn = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self.is_done = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def pause(self) -> None:
        self._paused.release()
        assert self._turn.acquire(timeout=LIMIT_S)

    def step(self) -> None:
        if not self.is_done:
            self._turn.release()
            assert self._paused.acquire(timeout=LIMIT_S)

    def join(self) -> None:
        self._thread.join(LIMIT_S)

    def _run(self, work: Callable[["Actor"], None]) -> None:
        assert self._turn.acquire(timeout=LIMIT_S)
        try:
            work(self)
        except BaseException as error:
            self.error = error
        self.is_done = True
        self._paused.release()


class Database:
    """One row, whose value is its version."""

    def __init__(self) -> None:
        self.value = 0
        self.invalidated = 0
        """The newest version whose invalidation has been acknowledged."""


def open_cache(world: World, actor: Actor, stack: ExitStack) -> Cache[int]:
    store = Store(ValkeySettings(url=world.url, prefix=world.prefix, call_timeout_ms=20_000))
    stack.callback(store.close)
    call = store.call

    def paused_call(asked: Any) -> Any:
        actor.pause()
        reply = call(asked)
        actor.pause()
        return reply

    def paused_wait(key: str, wait_ms: float) -> bool:
        actor.pause()
        return False

    store.call = paused_call  # type: ignore[assignment, method-assign]  # the point of the test
    store.wait_together = paused_wait  # type: ignore[method-assign]  # the point of the test
    settings = CacheSettings("machine", 1, 60_000, jitter=0.0)
    return Cache(store, settings, JsonCodec())


def read(world: World, database: Database, stack: ExitStack) -> Callable[[Actor], None]:
    def work(actor: Actor) -> None:
        cache = open_cache(world, actor, stack)

        def load() -> int:
            actor.pause()
            found = database.value
            actor.pause()
            return found

        for _ in range(ROUNDS):
            floor = database.invalidated
            found = cache.get("k", load, ("t",))
            assert found is not None
            assert found >= floor, f"served {found} after {floor} was invalidated"

    return work


def write(world: World, database: Database, stack: ExitStack) -> Callable[[Actor], None]:
    def work(actor: Actor) -> None:
        cache = open_cache(world, actor, stack)
        for _ in range(ROUNDS):
            database.value += 1
            mine = database.value
            cache.invalidate("t")
            database.invalidated = max(database.invalidated, mine)

    return work


def flush(world: World) -> Callable[[Actor], None]:
    parts = ("state", "log", "v:k", "f:k", "w:k")
    keys = [f"{world.prefix}:cache:{{machine.1}}:{part}" for part in parts]

    def work(actor: Actor) -> None:
        for _ in range(ROUNDS):
            world.server.ask("DEL", *keys)
            actor.pause()

    return work


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1 << 32))
def test_nothing_older_than_an_invalidation_is_served_after_it(valkey: World, seed: int) -> None:
    # Not Hypothesis's own chance: how many steps there are depends on the server, too.
    database, chance = Database(), Random(seed)
    with ExitStack() as stack:
        actors = [Actor(read(valkey, database, stack)) for _ in range(READERS)]
        actors += [Actor(write(valkey, database, stack)) for _ in range(WRITERS)]
        actors += [Actor(flush(valkey)) for _ in range(FLUSHERS)]

        while running := [actor for actor in actors if not actor.is_done]:
            actor = chance.choice(running)
            for _ in range(chance.choice((1, 1, 2, 3, 5, 9))):
                actor.step()
        for actor in actors:
            actor.join()

    assert [actor.error for actor in actors if actor.error] == []
