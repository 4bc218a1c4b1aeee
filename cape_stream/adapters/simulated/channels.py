"""Channels in memory: the twin of the store that realtime servers share."""

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cape_stream.errors import Retry
from cape_stream.ports.channels import (
    GrantKey,
    LinkRestored,
    Mark,
    Message,
    Opening,
    Position,
    RateLimit,
    Realm,
    Retention,
    Revocation,
    Signal,
)

REVOCATION_LIFE_MS = 3_660_000


@dataclass(slots=True)
class _Channel:
    history: deque[Message] = field(default_factory=deque)
    last: int = 0


@dataclass(slots=True)
class _RealmState:
    epoch: str
    sequence: int = 0
    channels: dict[str, _Channel] = field(default_factory=dict)
    revocations: list[tuple[int, Revocation]] = field(default_factory=list)
    rates: dict[str, tuple[int, int]] = field(default_factory=dict)


class MemoryChannelStore:
    """The data, shared by writers and feeds; also what a test does to it from outside."""

    def __init__(self, now_us: Callable[[], int], retention: Retention | None = None) -> None:
        self.retention = retention or Retention()
        self.now_us = now_us
        self.lock = threading.RLock()
        self.feeds: list[MemoryChannelFeed] = []
        self._realms: dict[Realm, _RealmState] = {}

    def flush(self) -> None:
        """Lose all data."""
        with self.lock:
            self._realms.clear()

    def state(self, realm: Realm) -> _RealmState:
        """Data of a realm, fresh if there is none."""
        if realm not in self._realms:
            self._realms[realm] = _RealmState(secrets.token_hex(8))
        return self._realms[realm]

    def advance(self, state: _RealmState, step: int) -> int:
        """The next sequence (step 1), or a position nothing later falls short of (step 0)."""
        state.sequence = max(self.now_us(), state.sequence + step)
        return state.sequence

    def tell(self, realm: Realm, channel: str | None, signal: Signal) -> None:
        """Hand a signal to every feed that watches."""
        for feed in self.feeds:
            watched = feed.watched.get(realm, set())
            if watched if channel is None else channel in watched:
                feed.deliver(signal)

    def publish(self, realm: Realm, channel: str, body: bytes, *, is_ephemeral: bool) -> int:
        """See `ChannelWriter.publish`."""
        with self.lock:
            state = self.state(realm)
            if is_ephemeral:
                self.tell(realm, channel, Message(realm, channel, 0, 0, state.epoch, body))
                return 0
            sequence = self.advance(state, 1)
            self._drop_old(state, sequence)
            found = state.channels.setdefault(channel, _Channel())
            message = Message(realm, channel, sequence, found.last, state.epoch, body)
            found.last = sequence
            found.history.append(message)
            while len(found.history) > self.retention.messages:
                found.history.popleft()
            self.tell(realm, channel, message)
            return sequence

    def open(self, realm: Realm, channels: Collection[str], since: Position | None) -> Opening:
        """See `ChannelFeed.open`."""
        state = self.state(realm)
        now = self.advance(state, 0)
        here = Position(state.epoch, now)
        if since is None:
            return Opening(here)
        if since.epoch != state.epoch or since.sequence > now:
            return Opening(here, gaps=frozenset(channels))
        self._drop_old(state, now)
        missed: list[Message] = []
        gaps = set()
        for name in channels:
            found = state.channels.get(name, _Channel())
            newer = [each for each in found.history if each.sequence > since.sequence]
            if self._has_gap(newer, found.last, since.sequence, now):
                gaps.add(name)
            else:
                missed += newer
        if sum(len(each.body) for each in missed) > self.retention.catch_up_bytes:
            return Opening(here, gaps=frozenset(channels))
        return Opening(here, sorted(missed, key=lambda each: each.sequence), frozenset(gaps))

    def _has_gap(self, newer: list[Message], last: int, since: int, now: int) -> bool:
        age_us = (self.retention.age_ms - 1_000) * 1_000
        if newer:
            before = newer[0].previous
            return before > since if before else since <= newer[0].sequence - age_us
        return last > since if last else since <= now - age_us

    def _drop_old(self, state: _RealmState, now: int) -> None:
        oldest = now - self.retention.age_ms * 1_000
        for name, channel in list(state.channels.items()):
            while channel.history and channel.history[0].sequence < oldest:
                channel.history.popleft()
            if channel.last < oldest:
                del state.channels[name]

    def revoke(self, revocation: Revocation) -> None:
        """See `ChannelWriter.revoke`."""
        with self.lock:
            state = self.state(revocation.realm)
            until = self.now_us() + REVOCATION_LIFE_MS * 1_000
            state.revocations.append((until, revocation))
            self.tell(revocation.realm, None, revocation)

    def is_revoked(self, realm: Realm, grant: GrantKey) -> bool:
        """Whether a grant was revoked."""
        return any(
            until > self.now_us() and covers(each, grant)
            for until, each in self.state(realm).revocations
        )

    def take_from(self, realm: Realm, limit: RateLimit) -> bool:
        """Use one publish of a budget, if there is one left this second."""
        rates = self.state(realm).rates
        second = self.now_us() // 1_000_000
        at, used = rates.get(limit.name, (second, 0))
        used = used + 1 if at == second else 1
        rates[limit.name] = (second, used)
        return used <= limit.publishes


def covers(revocation: Revocation, grant: GrantKey) -> bool:
    """Tell whether a revocation means this grant."""
    if revocation.grant_id:
        return revocation.grant_id == grant.grant_id
    return revocation.holder == grant.holder and grant.issued_ms <= revocation.before_ms


class MemoryChannelWriter:
    """See `cape_stream.ports.channels.ChannelWriter`."""

    def __init__(self, store: MemoryChannelStore) -> None:
        self._store = store

    def publish(
        self, realm: Realm, channel: str, body: bytes, *, is_ephemeral: bool = False
    ) -> int:
        """See `ChannelWriter.publish`."""
        return self._store.publish(realm, channel, body, is_ephemeral=is_ephemeral)

    def revoke(self, revocation: Revocation) -> None:
        """See `ChannelWriter.revoke`."""
        self._store.revoke(revocation)

    def close(self) -> None:
        """See `ChannelWriter.close`."""


class MemoryChannelFeed:
    """See `cape_stream.ports.channels.ChannelFeed`; made inside a running event loop."""

    def __init__(self, store: MemoryChannelStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._signals: asyncio.Queue[Signal] = asyncio.Queue()
        self.watched: dict[Realm, set[str]] = {}
        self._is_linked = True
        store.feeds.append(self)

    def cut(self) -> None:
        """Break the link of this feed."""
        self._is_linked = False

    def heal(self) -> None:
        """Bring it back; whoever reads learns that it was gone."""
        self._is_linked = True
        self.deliver(LinkRestored())

    def deliver(self, signal: Signal) -> None:
        """Put a signal in line, from any thread; without a link it is lost."""
        if self._is_linked:
            self._loop.call_soon_threadsafe(self._signals.put_nowait, signal)

    @contextmanager
    def _store_lock(self) -> Iterator[None]:
        if not self._is_linked:
            raise Retry("the channel store cannot be reached")
        with self._store.lock:
            yield

    async def watch(self, realm: Realm, channels: Collection[str]) -> None:
        """See `ChannelFeed.watch`."""
        with self._store_lock():
            self.watched.setdefault(realm, set()).update(channels)

    async def unwatch(self, realm: Realm, channels: Collection[str]) -> None:
        """See `ChannelFeed.unwatch`."""
        with self._store.lock:
            left = self.watched.get(realm, set()).difference(channels)
            if left:
                self.watched[realm] = left
            else:
                self.watched.pop(realm, None)

    async def open(
        self,
        realm: Realm,
        channels: Collection[str],
        since: Position | None,
        grant: GrantKey | None = None,
    ) -> Opening:
        """See `ChannelFeed.open`."""
        with self._store_lock():
            if grant is not None and self._store.is_revoked(realm, grant):
                here = self._store.open(realm, (), None).position
                return Opening(here, is_revoked=True)
            return self._store.open(realm, channels, since)

    async def mark(self, realm: Realm) -> None:
        """See `ChannelFeed.mark`."""
        with self._store_lock():
            here = self._store.open(realm, (), None).position
            self._store.tell(realm, None, Mark(realm, here.epoch, here.sequence))

    async def revoked(self, realm: Realm, grants: Sequence[GrantKey]) -> Sequence[bool]:
        """See `ChannelFeed.revoked`."""
        with self._store_lock():
            return [self._store.is_revoked(realm, grant) for grant in grants]

    async def publish(self, realm: Realm, channel: str, body: bytes, limit: RateLimit) -> bool:
        """See `ChannelFeed.publish`."""
        with self._store_lock():
            if not self._store.take_from(realm, limit):
                return False
            self._store.publish(realm, channel, body, is_ephemeral=True)
            return True

    async def receive(self) -> Sequence[Signal]:
        """See `ChannelFeed.receive`."""
        signals = [await self._signals.get()]
        while not self._signals.empty():
            signals.append(self._signals.get_nowait())
        return signals

    @property
    def is_linked(self) -> bool:
        """See `ChannelFeed.is_linked`."""
        return self._is_linked

    async def close(self) -> None:
        """See `ChannelFeed.close`."""
        with self._store.lock:
            self._store.feeds.remove(self)
