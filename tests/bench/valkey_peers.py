"""The peers of `bench_valkey`: python-redis-lock, cashews and aiocache on the same server.

Runs under the peers' own interpreter, see `make bench-valkey`. Usage:

    python tests/bench/valkey_peers.py PORT ROUNDS          figures as one JSON object
    python tests/bench/valkey_peers.py PORT stampede NAME   50 callers of one cold key; prints loads
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

CALLERS = 50
LOAD_S = 0.2


def microseconds(work: Callable[[], object], rounds: int) -> float:
    """The mean of one round, after some to warm up."""
    for _ in range(rounds // 10):
        work()
    began_s = time.perf_counter()
    for _ in range(rounds):
        work()
    return round((time.perf_counter() - began_s) * 1e6 / rounds, 1)


async def microseconds_async(work: Callable[[], Awaitable[object]], rounds: int) -> float:
    """The same for an event loop."""
    for _ in range(rounds // 10):
        await work()
    began_s = time.perf_counter()
    for _ in range(rounds):
        await work()
    return round((time.perf_counter() - began_s) * 1e6 / rounds, 1)


def lock_us(port: int, rounds: int) -> float:
    """python-redis-lock: acquire and release."""
    lock_class = import_module("redis_lock").Lock
    client = import_module("redis").Redis(port=port)

    def once() -> None:
        with lock_class(client, "bench-peer", expire=10):
            pass

    return microseconds(once, rounds)


def open_cashews(port: int, *, near: bool) -> Any:
    """A cashews cache, with or without its near cache."""
    cache = import_module("cashews").Cache()
    cache.setup(f"redis://127.0.0.1:{port}/0", client_side=near)
    return cache


async def cashews_us(port: int, rounds: int, *, near: bool) -> float:
    """cashews: a hit."""
    cache = open_cashews(port, near=near)
    await cache.init()
    await cache.set(f"bench-{near}", {"name": "Ann"}, expire=60)
    found = await microseconds_async(lambda: cache.get(f"bench-{near}"), rounds)
    await cache.close()
    return found


def open_aiocache(port: int) -> Any:
    """An aiocache cache, its values as JSON."""
    module = import_module("aiocache")
    serializer = import_module("aiocache.serializers").JsonSerializer()
    if hasattr(module, "RedisCache"):
        return module.RedisCache(endpoint="127.0.0.1", port=port, serializer=serializer)
    return module.Cache(module.Cache.REDIS, endpoint="127.0.0.1", port=port, serializer=serializer)


async def aiocache_us(port: int, rounds: int) -> float:
    """aiocache: a hit."""
    cache = open_aiocache(port)
    await cache.set("bench", {"name": "Ann"}, ttl=60)
    found = await microseconds_async(lambda: cache.get("bench"), rounds)
    await cache.close()
    return found


async def stampede(port: int, name: str) -> None:
    """One of several processes: callers of a cold key, once the parent says so."""
    loads = 0
    cache = open_cashews(port, near=False)
    await cache.init()
    stampeding = import_module("aiocache").cached_stampede

    async def load(key: str) -> str:
        nonlocal loads
        loads += 1
        await asyncio.sleep(LOAD_S)
        return key

    if name == "cashews":
        called = cache(ttl="1m", key="stampede:{key}", lock=True)(load)
    else:
        options = {"lease": 5, "ttl": 60, "key_builder": lambda *_, **__: "stampede-aiocache"}
        try:
            called = stampeding(cache=open_aiocache(port), **options)(load)
        except TypeError:
            backend = import_module("aiocache").Cache.REDIS
            called = stampeding(cache=backend, endpoint="127.0.0.1", port=port, **options)(load)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(called(key="k") for _ in range(CALLERS)))
    print(loads, flush=True)


def main() -> None:
    """See the module."""
    port = int(sys.argv[1])
    if sys.argv[2] == "stampede":
        asyncio.run(stampede(port, sys.argv[3]))
        return
    rounds = int(sys.argv[2])
    figures = {
        "python_redis_lock_us": lock_us(port, rounds),
        "cashews_remote_hit_us": asyncio.run(cashews_us(port, rounds, near=False)),
        "cashews_near_hit_us": asyncio.run(cashews_us(port, rounds, near=True)),
        "aiocache_remote_hit_us": asyncio.run(aiocache_us(port, rounds)),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
