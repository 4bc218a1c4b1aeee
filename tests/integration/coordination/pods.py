"""Processes, as far as a cache is concerned."""

from collections.abc import Callable
from typing import Any

from cape_stream.coordination.cache import Cache, CacheSettings
from cape_stream.coordination.codecs import JsonCodec
from cape_stream.coordination.listener import Listener
from cape_stream.coordination.store import Store
from tests.waiting import eventually

MINUTE_MS = 60_000


class Pod:
    """One process, as far as the cache is concerned: a store, a listener, a namespace."""

    def __init__(self, store: Store, *, near: bool = True, **settings: Any) -> None:
        self.store = store
        self.listener = Listener(store)
        given: dict[str, Any] = {"name": "users", "version": 1, "ttl_ms": MINUTE_MS} | settings
        self.cache: Cache[Any] = Cache(
            store, CacheSettings(**given), JsonCodec(), self.listener if near else None
        )
        self.loads = 0
        if near:
            eventually(lambda: self.listener.staleness_ms() < 1_000)

    def get(self, key: str, value: Any, *tags: str) -> Any:
        def load() -> Any:
            self.loads += 1
            return value() if callable(value) else value

        return self.cache.get(key, load, tags)


OpenPod = Callable[..., Pod]
