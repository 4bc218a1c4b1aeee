"""The listening side of channels on Valkey: pub/sub for what happens, scripts for what happened.

One connection carries all subscriptions, so messages of a realm arrive in the order of their
sequences. It is asked for a sign of life; when it is lost a new one takes all subscriptions over,
and `LinkRestored` tells the reader to fetch what happened in between.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Collection, Sequence
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry as ClientRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cape_stream.errors import CapeError, Reject
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
from cape_stream.realtime.scripts import MARK, OPEN, PUBLISH_LIMITED, Names
from cape_stream.realtime.subscriptions import Subscriptions
from cape_stream.realtime.valkey_openings import SharedScript
from cape_stream.realtime.valkey_writer import client_url, store_errors

logger = logging.getLogger(__name__)

SIGNALS_MAX = 10_000
"""Signals that wait to be fanned out. Beyond, the connection is not read; the server cuts it when
its own bound is reached, and what was missed is read from the history, or told as a gap."""
RECONNECT_MS_MAX = 2_000
CONNECTIONS_MAX = 16
CONNECTION_WAIT_S = 20
"""Reconnects of all clients at once take so long to be served, rather than be refused."""
EPOCH_BYTES = 8
NOBODY = GrantKey("-", "-", 1 << 50)


class ValkeyChannelFeed:
    """See `cape_stream.ports.channels.ChannelFeed`; made inside a running event loop."""

    def __init__(self, url: str, retention: Retention, timeout_ms: int) -> None:
        """Begin to connect.

        Args:
            url: ``valkey://``, ``valkeys://`` (TLS) or ``unix://``.
            retention: how much is kept; as the writers have it.
            timeout_ms: of one call, and the time in which a silent link counts as lost.
        """
        options: dict[str, Any] = {
            "socket_timeout": timeout_ms / 1_000,
            "socket_connect_timeout": timeout_ms / 1_000,
            "retry": ClientRetry(NoBackoff(), 0),
        }
        # Who finds all connections taken waits: a thousand streams may open at once.
        pool = redis.BlockingConnectionPool.from_url(
            client_url(url),
            max_connections=CONNECTIONS_MAX,
            timeout=CONNECTION_WAIT_S,
            **options,
        )
        self._client = redis.Redis.from_pool(pool)
        self._links = redis.ConnectionPool.from_url(client_url(url), protocol=2, **options)
        self._timeout_s = timeout_ms / 1_000
        self._retention = retention
        self._open = SharedScript(self._client, OPEN)
        self._mark = self._client.register_script(MARK)
        self._publish = self._client.register_script(PUBLISH_LIMITED)
        self._topics = Subscriptions(self._timeout_s)
        self._where: dict[str, tuple[Realm, str | None]] = {}
        """Topic → realm and channel; no channel for the control topic."""
        self._watched: dict[Realm, set[str]] = {}
        self._signals: asyncio.Queue[Signal] = asyncio.Queue(SIGNALS_MAX)
        self._reader = asyncio.create_task(self._stay_linked())
        self.malformed = 0
        """Things on our topics that nobody of us wrote; they are dropped."""

    @property
    def is_linked(self) -> bool:
        """See `ChannelFeed.is_linked`."""
        return self._topics.connection is not None

    async def watch(self, realm: Realm, channels: Collection[str]) -> None:
        """See `ChannelFeed.watch`."""
        names = Names(realm)
        self._where[names.control] = (realm, None)
        for channel in channels:
            self._where[names.topic(channel)] = (realm, channel)
        self._watched.setdefault(realm, set()).update(channels)
        await self._topics.add([names.control, *map(names.topic, channels)])

    async def unwatch(self, realm: Realm, channels: Collection[str]) -> None:
        """See `ChannelFeed.unwatch`."""
        names = Names(realm)
        gone = [names.topic(channel) for channel in channels]
        left = self._watched.get(realm, set())
        left.difference_update(channels)
        if not left:
            self._watched.pop(realm, None)
            gone.append(names.control)
        for topic in gone:
            self._where.pop(topic, None)
        await self._topics.remove(gone)

    async def open(
        self,
        realm: Realm,
        channels: Collection[str],
        since: Position | None,
        grant: GrantKey | None = None,
    ) -> Opening:
        """See `ChannelFeed.open`."""
        names, who, ordered = Names(realm), grant or NOBODY, list(channels)
        keys = [names.place, names.grant(who.grant_id), names.holder(who.holder)]
        for channel in ordered:
            keys += [names.history(channel), names.last(channel)]
        position = since or Position("", 0)
        with store_errors("open"):
            answer = await self._open.call(
                keys,
                [
                    secrets.token_hex(EPOCH_BYTES),
                    position.epoch,
                    position.sequence,
                    self._retention.age_ms,
                    self._retention.catch_up_bytes,
                    who.issued_ms,
                ],
            )
        return _opening(realm, ordered, answer)

    async def mark(self, realm: Realm) -> None:
        """See `ChannelFeed.mark`."""
        names = Names(realm)
        with store_errors("mark"):
            await self._mark(
                keys=[names.place], args=[secrets.token_hex(EPOCH_BYTES), names.control]
            )

    async def revoked(self, realm: Realm, grants: Sequence[GrantKey]) -> Sequence[bool]:
        """See `ChannelFeed.revoked`."""
        names = Names(realm)
        keys = [names.grant(each.grant_id) for each in grants]
        keys += [names.holder(each.holder) for each in grants]
        if not keys:
            return []
        with store_errors("revoked"):
            found = await self._client.mget(keys)
        ids, holders = found[: len(grants)], found[len(grants) :]
        return [
            gone is not None or (before is not None and each.issued_ms <= int(before))
            for each, gone, before in zip(grants, ids, holders, strict=True)
        ]

    async def publish(self, realm: Realm, channel: str, body: bytes, limit: RateLimit) -> bool:
        """See `ChannelFeed.publish`."""
        names = Names(realm)
        with store_errors("publish"):
            told = await self._publish(
                keys=[names.place, names.rate(limit.name)],
                args=[body, limit.publishes, names.topic(channel)],
            )
        return bool(told)

    async def receive(self) -> Sequence[Signal]:
        """See `ChannelFeed.receive`."""
        signals = [await self._signals.get()]
        while not self._signals.empty():
            signals.append(self._signals.get_nowait())
        return signals

    async def close(self) -> None:
        """See `ChannelFeed.close`."""
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        await self._topics.detach()
        await self._open.close()
        await self._client.aclose()
        await self._links.aclose()

    async def _stay_linked(self) -> None:
        failures = 0
        was_linked = False
        while True:
            try:
                link = self._links.connection_class(**self._links.connection_kwargs)
                await link.connect()
                await self._topics.attach(link)
                if was_linked:
                    await self._signals.put(LinkRestored())
                was_linked, failures = True, 0
                await self._read()
            except (RedisError, OSError, CapeError, TimeoutError) as error:
                failures += 1
                logger.warning("the link to the channel store is down: %s", error)
            finally:
                await self._topics.detach()
            bound_ms = min(RECONNECT_MS_MAX, 50 << min(failures, 10))
            await asyncio.sleep(random.uniform(0, bound_ms) / 1_000)

    async def _read(self) -> None:
        """Read until the link breaks, or is silent though it was asked to speak."""
        pinging = asyncio.create_task(self._ask_for_life())
        try:
            while True:
                topic, payload = await self._topics.read()
                if topic and (signal := self._signal(topic, payload)) is not None:
                    await self._signals.put(signal)
        finally:
            pinging.cancel()

    async def _ask_for_life(self) -> None:
        with contextlib.suppress(CapeError):  # the reader sees that it broke
            while True:
                await asyncio.sleep(self._timeout_s / 3)
                await self._topics.ping()

    def _signal(self, topic: str, payload: bytes) -> Signal | None:
        where = self._where.get(topic)
        if where is None:
            return None  # a last message of what was just unwatched
        realm, channel = where
        try:
            return _parsed(realm, channel, payload)
        except ValueError:
            self.malformed += 1
            return None


def _parsed(realm: Realm, channel: str | None, payload: bytes) -> Signal:
    """What a payload means; ValueError if it is not one of ours."""
    kind, _, rest = payload.partition(b" ")
    if kind == b"m" and channel is not None:
        epoch, sequence, previous, body = rest.split(b" ", 3)
        name = _epoch(epoch) if sequence != b"0" else ""
        return Message(realm, channel, int(sequence), int(previous), name, body)
    if channel is None and kind == b"k":
        epoch, sequence = rest.split(b" ", 1)
        return Mark(realm, _epoch(epoch), int(sequence))
    if channel is None and kind == b"g":
        return Revocation(realm, rest.decode(), "", 0)
    if channel is None and kind == b"h":
        before_ms, holder = rest.split(b" ", 1)
        return Revocation(realm, "", holder.decode(), int(before_ms))
    raise ValueError("not one of ours")


def _epoch(raw: bytes) -> str:
    """The epoch, which is eight bytes in hexadecimal."""
    if len(bytes.fromhex(raw.decode())) != EPOCH_BYTES:
        raise ValueError("an epoch has eight bytes")
    return raw.decode()


def _opening(realm: Realm, channels: Sequence[str], answer: Any) -> Opening:
    is_revoked, epoch, here, gaps, missed = answer
    try:
        position = Position(_epoch(epoch), int(here))
    except ValueError as error:
        raise Reject(f"something else stands under {Names(realm).place}; delete it") from error
    if is_revoked:
        return Opening(position, is_revoked=True)
    if gaps is None:
        return Opening(position, gaps=frozenset(channels))
    messages = []
    for channel, entries in zip(channels, missed, strict=False):
        for entry_id, fields in entries:
            sequence = int(entry_id.split(b"-")[0])
            messages.append(
                Message(realm, channel, sequence, int(fields[1]), position.epoch, fields[3])
            )
    messages.sort(key=lambda each: each.sequence)
    lost = frozenset(channel for channel, gap in zip(channels, gaps, strict=False) if gap)
    return Opening(position, messages, lost)
