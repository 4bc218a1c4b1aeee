"""Fans out: takes what arrives from the store and hands it to the streams that may hear it.

One task reads signals and writes to connections; nothing else writes messages, so every client gets
them in the order of their sequences. A stream that opens collects what arrives meanwhile (`early`),
is sent what it missed, then what it collected, and is live from then on.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Sequence
from itertools import groupby

from cape_stream.errors import CapeError, Reject
from cape_stream.ports.channels import (
    ChannelFeed,
    LinkRestored,
    Mark,
    Message,
    Opening,
    Position,
    Realm,
    Revocation,
    Signal,
)
from cape_stream.realtime.counters import Counters
from cape_stream.realtime.framing import Control, is_one_line
from cape_stream.realtime.grants import Grant
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.readers import Readers
from cape_stream.realtime.realms import UNKNOWN, ChannelState, RealmState
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.realtime.streams import Ending, Frames, Stream

logger = logging.getLogger(__name__)

CATCH_UP_PAUSE_S = 0.2
LINGER_TICKS = 5
"""Ticks for which a channel nobody hears stays watched: most who left come back at once."""


class Hub:
    """All streams of a process; made inside the running loop.

    Args:
        feed: what arrives.
        keys: seal cursors.
        settings: limits and intervals.
    """

    def __init__(self, feed: ChannelFeed, keys: GrantKeys, settings: RealtimeSettings) -> None:
        self._feed = feed
        self._keys = keys
        self._settings = settings
        self._realms: dict[Realm, RealmState] = {}
        self.counters = Counters()
        self.readers = Readers(settings, self.counters)
        self._tick_s = min(1.0, settings.heartbeat_interval_ms / 4_000)
        slots = max(1, round(settings.heartbeat_interval_ms / 1_000 / self._tick_s))
        self._wheel: list[set[Stream]] = [set() for _ in range(slots)]
        self._tasks = [
            asyncio.create_task(self._fan_out(), name="fan-out"),
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self._keep_house(), name="keep house"),
        ]
        self._generation = 0
        """Grows with every renewed link."""
        self.is_draining = False

    @property
    def is_ready(self) -> bool:
        """True while streams can be opened."""
        return self._feed.is_linked and not self.is_draining and self.failure is None

    @property
    def failure(self) -> BaseException | None:
        """What ended one of the tasks, if anything did: a defect of ours."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return next((task.exception() for task in done), None)

    def realm(self, realm: Realm) -> RealmState:
        """State of a realm, made when first asked for."""
        found = self._realms.get(realm)
        if found is None:
            found = self._realms[realm] = RealmState(realm, self._keys)
        return found

    # --- streams come and go ----------------------------------------------------------------------

    async def join(self, stream: Stream, cursor: str) -> Opening:
        """Make a stream hear its channels, and tell where it begins; `begin` sends that.

        It may have ended when this returns: look at `ending`.

        Raises:
            Retry: the store does not answer.
        """
        state = self.realm(stream.grant.realm)
        position = (state.seal.read(cursor) or UNKNOWN) if cursor else None
        for name in stream.channels:
            state.channels.setdefault(name, ChannelState()).streams.add(stream)
        state.streams.add(stream)
        self._set_timer(stream)
        try:
            opening = await self._open(stream, position)
        except BaseException:
            self.leave(stream)
            raise
        state.epoch = state.epoch or opening.position.epoch
        stream.start = opening.position.sequence
        for name in stream.channels:
            channel = state.channels[name]
            channel.since = channel.since or opening.position.sequence
        return opening

    async def _open(self, stream: Stream, position: Position | None) -> Opening:
        grant = stream.grant
        while True:
            generation = self._generation
            await self._feed.watch(grant.realm, stream.channels)
            opening = await self._feed.open(grant.realm, stream.channels, position, grant.key)
            # If the link was renewed meanwhile, what was published in between reached nobody.
            if generation == self._generation:
                return opening

    def _set_timer(self, stream: Stream) -> None:
        """A stream ends with its grant, or when it is old, whichever is first."""
        age_max_ms = self._settings.stream_age_max_ms * random.uniform(0.9, 1)
        loop = asyncio.get_running_loop()
        if stream.life_ms <= age_max_ms:
            due, at_ms = self._expire, float(stream.life_ms)
        else:
            due, at_ms = self._grow_old, age_max_ms
        stream.timer = loop.call_later(at_ms / 1_000, due, stream)

    async def begin(self, stream: Stream, opening: Opening, *, is_resumed: bool) -> None:
        """Send what was missed, then what came meanwhile; from here on the stream is live."""
        state = self.realm(stream.grant.realm)
        wire, retry_ms = stream.wire, self._retry_ms()
        stream.is_begun = True
        self.counters.streams += 1
        self.counters.opened += 1
        self.counters.resumed += is_resumed
        head = wire.retry(retry_ms)  # goes with the first thing that is written: one packet less
        if opening.gaps:
            self.counters.resets += 1
            lost = [name for name in stream.channels if name in opening.gaps]
            head += wire.control(Control.RESET, "", {"channels": lost})
        for message in opening.missed:
            if is_one_line(message.body):
                frames = Frames(message.sequence, state.seal.seal(_place(message)), message.body)
                await self.readers.write_patiently(stream, head + frames.on(stream.at))
                head = b""
            if stream.ending is not None:
                return
        ready: dict[str, object] = {
            "expires_in_ms": stream.life_ms,
            "resumed": is_resumed and not opening.gaps,
            "retry_ms": retry_ms,
        }
        cursor = state.seal.seal(opening.position)
        self.readers.write(stream, head + wire.control(Control.READY, cursor, ready))
        self._go_live(stream)

    def _go_live(self, stream: Stream) -> None:
        """One step, without a pause in which a message could slip between."""
        early, stream.early = stream.early or [], None
        for frames in early:
            if frames.sequence == 0 or frames.sequence > stream.start:
                stream.start = max(stream.start, frames.sequence)
                self.readers.write(stream, frames.on(stream.at))
                self.counters.deliveries += 1
        stream.slot = random.randrange(len(self._wheel))
        self._wheel[stream.slot].add(stream)

    def leave(self, stream: Stream) -> None:
        """Forget a stream; harmless when it is forgotten already."""
        state = self._realms.get(stream.grant.realm)
        if state is None or stream not in state.streams:
            return
        state.streams.discard(stream)
        for name in stream.channels:
            state.channels[name].streams.discard(stream)
        self._wheel[stream.slot].discard(stream)
        if stream.timer is not None:
            stream.timer.cancel()
        if stream.is_begun:
            self.counters.streams -= 1
            self.counters.end((stream.ending or Ending.LOST).value)

    def end(self, stream: Stream, event: Control, **fields: object) -> None:
        """Say why, and end it; nothing is sent to it after that."""
        if stream.ending is not None:
            return
        stream.ending = Ending(event.value)
        if stream.is_begun:
            state = self.realm(stream.grant.realm)
            is_live = stream.early is None
            cursor = state.cursor(max(stream.start, state.delivered)) if is_live else ""
            self.readers.write(stream, stream.wire.control(event, cursor, dict(fields)))
        self.leave(stream)
        self.readers.watch_end(stream)
        stream.finish(stream.ending)

    def _expire(self, stream: Stream) -> None:
        self.end(stream, Control.EXPIRED, reason="expired")

    def _grow_old(self, stream: Stream) -> None:
        self.end(stream, Control.RECONNECT, reason="age", retry_ms=self._retry_ms())

    async def drain(self, duration_ms: int) -> None:
        """Ask every stream to reconnect, one by one over so long."""
        self.is_draining = True
        streams = [each for state in self._realms.values() for each in state.streams]
        random.shuffle(streams)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for number, stream in enumerate(streams, 1):
            if stream.early is None:
                self.end(stream, Control.RECONNECT, reason="restart", retry_ms=self._retry_ms())
            due_s = began_s + duration_ms / 1_000 * number / len(streams)
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    async def close(self) -> None:
        """Stop; streams that are still there are cut off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for state in self._realms.values():
            for stream in list(state.streams):
                stream.link.abort()

    def _retry_ms(self) -> int:
        return round(self._settings.retry_ms * random.uniform(1, 2))

    # --- what arrives -----------------------------------------------------------------------------

    async def _fan_out(self) -> None:
        while True:
            signals = await self._feed.receive()
            for key, run in groupby(signals, _run_of):
                if isinstance(key, tuple):
                    await self._messages([each for each in run if isinstance(each, Message)])
                else:
                    for signal in run:
                        await self._handle(signal)
            await asyncio.sleep(0)  # let clients in between two batches

    async def _handle(self, signal: Signal) -> None:
        if isinstance(signal, LinkRestored):
            self._generation += 1
            for state in list(self._realms.values()):
                await self._catch_up(state)
        elif isinstance(signal, Mark):
            await self._note(signal)
        elif isinstance(signal, Revocation):
            self._revoke(signal)

    async def _note(self, mark: Mark) -> None:
        """How far the realm is; a store that lost data or went back says so by this."""
        state = self._realms.get(mark.realm)
        if state is None or not state.epoch:
            return
        went_back = state.floor <= mark.sequence < state.delivered
        if mark.epoch != state.epoch or went_back:
            await self._catch_up(state)
        elif mark.sequence > state.delivered:
            state.delivered = mark.sequence

    async def _messages(self, run: Sequence[Message]) -> None:
        """Consecutive messages of one channel; each client gets them in one write."""
        state = self._realms.get(run[0].realm)
        channel = state.channels.get(run[0].channel) if state is not None else None
        self.counters.messages += len(run)
        if state is None or channel is None:
            return
        fresh: list[Frames] = []
        for message in run:
            if message.sequence:
                if self._is_hole(state, channel, message):
                    self._pass_on(state, channel, fresh)
                    fresh = []
                    await self._catch_up(state)
                if message.sequence <= state.floor:
                    continue
                state.delivered = max(state.delivered, message.sequence)
            if is_one_line(message.body):
                cursor = state.seal.seal(_place(message)) if message.sequence else ""
                fresh.append(Frames(message.sequence, cursor, message.body))
            else:
                self.counters.malformed += 1
        self._pass_on(state, channel, fresh)

    def _is_hole(self, state: RealmState, channel: ChannelState, message: Message) -> bool:
        """True if something that should have arrived before this message did not."""
        if state.epoch and message.epoch != state.epoch:
            return True
        if not state.epoch or channel.since is None:
            return False
        return message.previous > max(state.delivered, channel.since)

    def _pass_on(self, state: RealmState, channel: ChannelState, run: Sequence[Frames]) -> None:
        """Hand messages to everybody who hears the channel."""
        if not run:
            return
        oldest = min((each.sequence for each in run if each.sequence), default=state.delivered + 1)
        joined: list[bytes] = [b"", b""]
        write, count = self.readers.write, 0
        for stream in list(channel.streams):
            if stream.early is not None:
                self._collect(stream, run)
            elif oldest > stream.start:
                data = joined[stream.at]
                if not data:
                    data = joined[stream.at] = b"".join([each.on(stream.at) for each in run])
                write(stream, data)
                count += len(run)
            else:
                self._pass_on_late(stream, run)
        self.counters.deliveries += count

    def _pass_on_late(self, stream: Stream, run: Sequence[Frames]) -> None:
        """Only what is newer than the stream's beginning."""
        for each in run:
            if each.sequence == 0 or each.sequence > stream.start:
                self.readers.write(stream, each.on(stream.at))
                self.counters.deliveries += 1

    def _collect(self, stream: Stream, run: Sequence[Frames]) -> None:
        assert stream.early is not None, "it is not live"
        stream.early += run
        stream.early_bytes += sum(len(each.on(stream.at)) for each in run)
        if stream.early_bytes > self._settings.reader_bytes_max:
            self.readers.cut(stream)

    def _revoke(self, revocation: Revocation) -> None:
        state = self._realms.get(revocation.realm)
        for stream in list(state.streams) if state is not None else ():
            grant = stream.grant
            is_meant = (
                grant.grant_id == revocation.grant_id
                if revocation.grant_id
                else grant.holder == revocation.holder and grant.issued_ms <= revocation.before_ms
            )
            if is_meant:
                self.end(stream, Control.REVOKED, reason="revoked")

    # --- the link was down ------------------------------------------------------------------------

    async def _catch_up(self, state: RealmState) -> None:
        """Read what the link did not bring; whoever cannot be served whole is told of the gap."""
        starts = [stream.start for stream in state.streams if stream.start]
        if not starts:
            state.epoch, state.delivered, state.floor = "", 0, 0
            return
        self.counters.catch_ups += 1
        since = state.delivered or min(starts)
        grants = [stream.grant for stream in state.streams]
        opening, revoked = await self._read_up(state, Position(state.epoch, since), grants)
        state.epoch = opening.position.epoch
        for message in opening.missed:
            channel = state.channels.get(message.channel)  # nobody may hear it any more
            if channel is not None and is_one_line(message.body):
                frames = Frames(message.sequence, state.seal.seal(_place(message)), message.body)
                self._pass_on(state, channel, [frames])
        state.delivered = state.floor = opening.position.sequence
        self._reset(state, opening)
        gone = {each.grant_id for each, is_gone in zip(grants, revoked, strict=True) if is_gone}
        for stream in [each for each in state.streams if each.grant.grant_id in gone]:
            self.end(stream, Control.REVOKED, reason="revoked")

    async def _read_up(
        self, state: RealmState, since: Position, grants: Sequence[Grant]
    ) -> tuple[Opening, Sequence[bool]]:
        """What happened since, and which grants were revoked; waits until the store says so."""
        keys = [each.key for each in grants]
        while True:
            names = list(state.channels)
            try:
                try:
                    opening = await self._feed.open(state.realm, names, since)
                except Reject as error:
                    # Another program spoiled a key of ours: what cannot be read is a gap.
                    logger.warning("%s cannot be read: %s", state.realm, error)
                    here = (await self._feed.open(state.realm, (), None)).position
                    opening = Opening(here, gaps=frozenset(names))
                return opening, await self._feed.revoked(state.realm, keys)
            except CapeError as error:
                logger.warning("catching up with %s waits: %s", state.realm, error)
                await asyncio.sleep(CATCH_UP_PAUSE_S)

    def _reset(self, state: RealmState, opening: Opening) -> None:
        """Tell everybody who hears a channel with a gap; who is just opening asks by itself."""
        cursor = state.cursor(opening.position.sequence)
        for stream in list(state.streams):
            lost = [name for name in stream.channels if name in opening.gaps]
            if lost and stream.early is None:
                stream.start = opening.position.sequence
                self.counters.resets += 1
                fields: dict[str, object] = {"channels": lost}
                self.readers.write(stream, stream.wire.control(Control.RESET, cursor, fields))

    # --- time passes ------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Heartbeats and deadlines; waits for nobody, so a frozen store cannot stop it."""
        beat = 0
        while True:
            await asyncio.sleep(self._tick_s)
            beat = (beat + 1) % len(self._wheel)
            for stream in list(self._wheel[beat]):
                state = self.realm(stream.grant.realm)
                self.readers.write(stream, state.heartbeat(stream))
            self.readers.sweep()

    async def _keep_house(self) -> None:
        """What needs the store now and then."""
        ticks_a_mark = max(1, len(self._wheel) // 2)
        for tick in itertools.count():
            if tick % ticks_a_mark == 0:
                await self._mark()
            await self._forget_idle()
            await asyncio.sleep(self._tick_s)

    async def _mark(self) -> None:
        """Learn how far each realm is, so that silent streams get fresh cursors."""
        for state in list(self._realms.values()):
            if state.streams and self._feed.is_linked:
                try:
                    await self._feed.mark(state.realm)
                except CapeError as error:
                    logger.warning("no mark of %s: %s", state.realm, error)

    async def _forget_idle(self) -> None:
        for state in list(self._realms.values()):
            idle = []
            for name, channel in list(state.channels.items()):
                channel.idle_ticks = 0 if channel.streams else channel.idle_ticks + 1
                if channel.idle_ticks > LINGER_TICKS:
                    idle.append(name)
                    del state.channels[name]
            if not state.channels:
                self._realms.pop(state.realm, None)
            if idle:
                await self._feed.unwatch(state.realm, idle)


def _run_of(signal: Signal) -> object:
    """What consecutive signals have to share to be handled together."""
    return (signal.realm, signal.channel) if isinstance(signal, Message) else None


def _place(message: Message) -> Position:
    return Position(message.epoch, message.sequence)
