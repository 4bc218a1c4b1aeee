"""Cache namespaces: what is expensive is computed once in the fleet, and never served stale."""

import random
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.cache_scripts import ABANDON, FILL_MAX_MS, GET, INVALIDATE, PUT
from cape_stream.coordination.codecs import CacheCodec
from cape_stream.coordination.events import channel_name, log_key, request_id
from cape_stream.coordination.keys import Name, encoded
from cape_stream.coordination.leases import LOGGER
from cape_stream.coordination.listener import Listener, Watch
from cape_stream.coordination.near_cache import NearCache, NearEntry
from cape_stream.coordination.store import Store
from cape_stream.errors import CapeError, Reject

V = TypeVar("V")

TTL_MAX_MS = 30 * 24 * 3_600_000
MARGIN_MS = 60_000
ATTEMPTS = 3
PAYLOAD_BYTES_MAX = 8 << 20
MEMBERS_MAX = 256
WAIT, HIT = 0, 1

_Payload = tuple[bytes, str, int]
"""What is stored of a value: its bytes, its tags, and how long it lives."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What a namespace is like."""

    name: str
    """1 to 512 bytes; with the version it is the prefix of its keys."""
    version: int
    """Raise it when what is cached changes its form: old values are not read, and expire."""
    ttl_ms: int
    """How long a value lives, 1 ms to 30 days."""
    jitter: float = 0.1
    """Each value lives up to this part shorter, so that not all end at once; 0 to 0.9."""
    negative_ttl_ms: int = 0
    """How long it is remembered that there is no value; 0: not at all."""
    near_entries_max: int = 10_000
    """Values in the memory of a process; 0: none."""
    flight_ms: int = 10_000
    """How long others wait for who computes a value before one of them takes over."""

    def __post_init__(self) -> None:
        if not 1 <= self.ttl_ms <= TTL_MAX_MS or not 0 <= self.negative_ttl_ms <= TTL_MAX_MS:
            raise Reject(
                f"cache {self.name!r}: ttl_ms {self.ttl_ms} must be 1 to {TTL_MAX_MS} and"
                f" negative_ttl_ms {self.negative_ttl_ms} 0 to {TTL_MAX_MS}"
            )
        if not 0 <= self.jitter <= 0.9 or self.flight_ms < 1 or self.near_entries_max < 0:
            raise Reject(
                f"cache {self.name!r}: jitter {self.jitter} must be 0 to 0.9, flight_ms"
                f" {self.flight_ms} > 0, near_entries_max {self.near_entries_max} >= 0"
            )
        if not self.name or len(self.name.encode(errors="surrogatepass")) > 512:
            raise Reject(f"the name of a cache has 1 to 512 bytes, not {self.name[:40]!r}")

    @property
    def tag(self) -> str:
        """The slot of the namespace."""
        return encoded(f"{self.name}.{self.version}", "name of a cache")


@dataclass(slots=True)
class _Outcome(Generic[V]):
    """What a computation, or a hit, brought."""

    value: V | None
    is_good_for_all: bool
    """The server has seen no invalidation of it: also those may have it who came later."""


class _Flight(Generic[V]):
    """One computation in this process, and who waits for it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = threading.Event()
        self.outcome: _Outcome[V] | None = None


class Cache(Generic[V]):
    """One namespace. Threads share it; one per process and namespace.

    Without the server values are computed, once a process at a time, and nothing is stored; the
    near cache is bypassed as soon as its freshness cannot be proven. `get` never fails for want of
    the server; `invalidate` does, for who writes has to know.

    Args:
        store: the server.
        settings: what the namespace is like.
        codec: how values are written.
        listener: hears of invalidations; without one there is no near cache.
    """

    def __init__(
        self,
        store: Store,
        settings: CacheSettings,
        codec: CacheCodec[V],
        listener: Listener | None = None,
    ) -> None:
        self.settings = settings
        self._store = store
        self._codec = codec
        self._tag = settings.tag
        self._keys = store.keys("cache")
        self._state = self._keys.of(self._tag, "state")
        self._log = log_key(self._keys, self._tag)
        self._channel = channel_name(self._keys, self._tag)
        self._kept_ms = max(settings.ttl_ms, settings.negative_ttl_ms) + FILL_MAX_MS + MARGIN_MS
        self._lock = threading.Lock()
        self._flights: dict[Name, _Flight[V]] = {}
        self._number = 0
        self._near: NearCache | None = None
        if listener is not None and settings.near_entries_max:
            self._near = NearCache(settings.near_entries_max, listener.proven_until_ms)
            name = f"{settings.name}.{settings.version}"
            listener.watch(Watch(self._keys, name, self._heard, self._near.flush))

    def get(
        self,
        key: Name,
        load: Callable[[], V | None],
        tags: Sequence[Name] | Callable[[V | None], Sequence[Name]] = (),
    ) -> V | None:
        """The value, from this process, from the server, or computed.

        Args:
            key: 1 to 1,024 bytes.
            load: computes the value; None says that there is none. It runs once in the fleet,
                except where the server is away or it takes longer than ``flight_ms``.
            tags: names that invalidate it, or a function of the value that says them.

        Returns:
            The value; do not change it, for others may be given the same object.

        Raises:
            Reject: the key or a tag cannot be a name, or the value is over 8 MiB.
            Exception: whatever ``load`` raises; nothing is stored, and the next caller tries.
        """
        near = self._near
        if near is not None:
            entry = near.get(key)
            if entry is not None:
                found: V | None = entry.value  # type: ignore[assignment]  # what we put there
                return found
        return self._flown(key, load, tags)

    def invalidate(self, *tags: Name) -> None:
        """Nobody is served a value with one of these tags that was computed before this returns.

        Other processes follow as soon as the event reaches them; none later than 1.5 s.

        Raises:
            Retry: the server cannot be reached. Values with these tags may be served until their
                time to live ends: repeat it, or let what you wrote be undone.
            Reject: a name cannot be one.
        """
        self._invalidate([f"t:{encoded(tag, 'tag')}" for tag in tags])

    def invalidate_keys(self, *keys: Name) -> None:
        """The same for values by their key."""
        self._invalidate([f"k:{encoded(key, 'key')}" for key in keys])

    def clear(self) -> None:
        """The same for all values of the namespace."""
        self._invalidate(["n"])

    def _invalidate(self, members: list[str]) -> None:
        for start in range(0, len(members), MEMBERS_MAX):
            some = members[start : start + MEMBERS_MAX]
            if self._near is not None:
                self._near.invalidate(0, some)
            first = (self._channel, request_id(), self._kept_ms)
            call = INVALIDATE.call([self._state, self._log], *first, *some)
            reply = self._store.call_copied(call)
            self._store.figures.add("cache_invalidations")
            if self._near is not None:
                self._near.invalidate(int(reply), some)

    def _heard(self, payload: bytes) -> None:
        assert self._near is not None, "only a near cache listens"
        sequence, *members = payload.decode().split(" ")
        self._near.invalidate(int(sequence), members)

    def _flown(self, key: Name, load: Callable[[], V | None], tags: Any) -> V | None:
        """Join the computation of this process, or begin one."""
        arrived: int | None = None
        while True:
            with self._lock:
                arrived = self._number if arrived is None else arrived
                flight = self._flights.get(key)
                leads = flight is None
                if flight is None:
                    self._number += 1
                    flight = self._flights[key] = _Flight(self._number)
            if leads:
                return self._lead(key, flight, load, tags)
            flight.ended.wait()
            outcome = flight.outcome
            # A computation that began before we came may be older than an invalidation that we
            # know of; only the server, or having come first, tells that it is not.
            if outcome and (outcome.is_good_for_all or flight.number > arrived):
                return outcome.value

    def _lead(
        self, key: Name, flight: _Flight[V], load: Callable[[], V | None], tags: Any
    ) -> V | None:
        try:
            flight.outcome = _Fill(self, key, load, tags).run()
            return flight.outcome.value
        finally:
            with self._lock:
                del self._flights[key]
            flight.ended.set()


class _Fill(Generic[V]):
    """One visit to the server for one key, with a computation if need be."""

    def __init__(self, cache: Cache[V], key: Name, load: Callable[[], V | None], tags: Any) -> None:
        part = encoded(key, "key")
        keys, tag = cache._keys, cache._tag
        self._cache = cache
        self._store = cache._store
        self._key = key
        self._load = load
        self._tags = tags
        self._own = f"k:{part}"
        self._flight_key = keys.of(tag, f"f:{part}")
        self._wake_key = keys.of(tag, f"w:{part}")
        self._four = [keys.of(tag, f"v:{part}"), cache._state, self._flight_key, self._wake_key]
        self._token = secrets.token_urlsafe(12)
        self._patience_ms = monotonic_ms() + cache.settings.flight_ms

    def run(self) -> _Outcome[V]:
        """The value, from wherever it can be had."""
        value: V | None = None
        for _ in range(ATTEMPTS):
            near = self._cache._near
            generation = 0 if near is None else near.generation
            try:
                reply = self._ask()
            except CapeError as error:
                if isinstance(error, Reject):
                    LOGGER.warning("cache %s: %s", self._cache.settings.name, error)
                self._store.figures.add("cache_bypasses")
                return _Outcome(self._load(), is_good_for_all=False)
            if reply[0] == HIT:
                hit = self._hit(reply, generation)
                if hit is not None:
                    return hit
            value, fill = self._computed()
            if reply[0] == HIT or fill is None:
                return _Outcome(value, is_good_for_all=False)
            is_stored = self._stored(value, fill, reply, generation)
            if is_stored is not False:
                return _Outcome(value, is_good_for_all=bool(is_stored))
        # Invalidated again and again while it was computed. Ours began after we were asked.
        self._store.figures.add("cache_unsettled")
        return _Outcome(value, is_good_for_all=False)

    def _ask(self) -> Any:
        """A hit, or the order to compute; waits while another process computes."""
        while True:
            left_ms = self._patience_ms - monotonic_ms()
            flight_ms = self._cache.settings.flight_ms if left_ms > 0 else 0
            reply = self._store.call(GET.call(self._four, self._own, self._token, flight_ms))
            if reply[0] != WAIT:
                return reply
            self._store.figures.add("cache_waits")
            pause_ms = max(1.0, min(float(reply[1]) + 1, left_ms))
            self._store.wait_together(self._wake_key, pause_ms)

    def _hit(self, reply: Any, generation: int) -> _Outcome[V] | None:
        _, as_of, payload, tags, negative, left_ms = reply
        value: V | None = None
        if negative != b"1":
            try:
                value = self._cache._codec.decode(payload)
            except ValueError as error:
                self._store.figures.add("cache_undecodable")
                LOGGER.warning("cache %s: %r: %s", self._cache.settings.name, self._key, error)
                return None
        self._store.figures.add("cache_hits")
        self._remember(value, int(as_of), tags.decode(), float(left_ms), generation)
        return _Outcome(value, is_good_for_all=True)

    def _computed(self) -> tuple[V | None, _Payload | None]:
        """Compute it. What is not to be stored comes without a payload, and frees the others."""
        self._store.figures.add("cache_loads")
        fill: _Payload | None = None
        try:
            value = self._load()
            fill = self._payload(value)
        finally:
            if fill is None:
                self._abandon()
        return value, fill

    def _abandon(self) -> None:
        with suppress(CapeError):
            self._store.call(ABANDON.call([self._flight_key, self._wake_key], self._token))

    def _payload(self, value: V | None) -> _Payload | None:
        settings = self._cache.settings
        ttl_ms = settings.negative_ttl_ms if value is None else settings.ttl_ms
        data = b"" if value is None else self._cache._codec.encode(value)
        tags = " ".join(self._members(value))
        if len(data) > PAYLOAD_BYTES_MAX:
            self._store.figures.add("cache_oversized")
            LOGGER.warning(
                "cache %s: %r has %d bytes, more than %d; it is not kept",
                *(settings.name, self._key, len(data), PAYLOAD_BYTES_MAX),
            )
            return None
        if ttl_ms == 0:
            return None
        return data, tags, max(1, int(ttl_ms * (1 - settings.jitter * random.random())))

    def _stored(self, value: V | None, fill: _Payload, reply: Any, generation: int) -> bool | None:
        """Store it. False: an invalidation came between. None: the server cannot take it."""
        _, as_of, epoch, started_us, foreign = reply
        self._store.figures.add("cache_foreign", foreign)
        data, tags, ttl_ms = fill
        fixed = (self._own, self._token, as_of, epoch, started_us, tags, int(value is None))
        try:
            call = PUT.call(self._four, *fixed, data, ttl_ms, self._cache._kept_ms)
            is_stored = bool(self._store.call(call))
        except CapeError:
            self._store.figures.add("cache_bypasses")
            return None
        if is_stored:
            self._remember(value, int(as_of), tags, ttl_ms, generation)
        else:
            self._store.figures.add("cache_stale_fills")
        return is_stored

    def _members(self, value: V | None) -> Iterable[str]:
        tags = self._tags(value) if callable(self._tags) else self._tags
        if len(tags) > MEMBERS_MAX:
            raise Reject(f"a value has {len(tags)} tags, at most {MEMBERS_MAX}")
        return [f"t:{encoded(tag, 'tag')}" for tag in tags]

    def _remember(
        self, value: V | None, as_of: int, tags: str, left_ms: float, generation: int
    ) -> None:
        near = self._cache._near
        if near is not None and left_ms > 0:
            until_s = (monotonic_ms() + left_ms) / 1_000
            entry = NearEntry(value, until_s, (self._own, *tags.split()))
            near.put(self._key, entry, as_of, generation)
