"""Slow readers: what waits for a client is bounded in bytes and in time, heartbeats included."""

import asyncio
import logging
import time

from cape_stream.realtime.counters import Counters
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.realtime.streams import Ending, Stream

logger = logging.getLogger(__name__)

PATIENCE_S = 0.02


class Readers:
    """Writes to streams, and watches those that do not take what is written.

    A client that is cut off learns nothing, for nothing reaches it; it resumes from its cursor.
    """

    def __init__(self, settings: RealtimeSettings, counters: Counters) -> None:
        self._bytes_max = settings.reader_bytes_max
        self._all_bytes_max = settings.readers_bytes_max
        self._deadline_s = settings.send_deadline_ms / 1_000
        self._counters = counters
        self._slow: set[Stream] = set()
        self._waiting = 0
        """Bytes for all of them; exact after a sweep, and never too low."""

    def write(self, stream: Stream, data: bytes) -> None:
        """Hand bytes to a client; cut it off if too much waits for it."""
        waiting = stream.write(data)
        if waiting:
            self._notice(stream, waiting, len(data))

    def _notice(self, stream: Stream, waiting: int, added: int) -> None:
        if waiting > self._bytes_max + added:
            self.cut(stream)
            return
        if stream not in self._slow:
            self._slow.add(stream)
            stream.begin_watch()
            added = waiting
        self._waiting += added
        if self._waiting > self._all_bytes_max:
            self.sweep()

    async def write_patiently(self, stream: Stream, data: bytes) -> None:
        """The same for a stream that catches up: waits until there is room; the deadline holds."""
        self.write(stream, data)
        while True:
            if stream.ending is not None or stream.link.waiting <= self._bytes_max // 2:
                return
            await asyncio.sleep(PATIENCE_S)

    def watch_end(self, stream: Stream) -> None:
        """A stream was ended: see that its connection is, too, even if nobody reads the rest."""
        if not stream.link.is_lost and stream not in self._slow:
            self._slow.add(stream)
            stream.begin_watch()

    def cut(self, stream: Stream, why: Ending = Ending.SLOW) -> None:
        """End a connection now; the stream is over once the connection is."""
        stream.ending = stream.ending or why
        self._slow.discard(stream)
        stream.link.abort()

    def sweep(self) -> None:
        """Look at everybody who is behind: who is stuck is cut off, and who is most behind, too,
        while all together are over their bound."""
        now_s = time.monotonic()
        found: list[tuple[int, int, Stream]] = []
        for number, stream in enumerate(list(self._slow)):
            waiting = stream.link.waiting
            if stream.link.is_lost or (not waiting and stream.ending is None):
                self._slow.discard(stream)
            elif stream.is_stuck(now_s, self._deadline_s):
                self.cut(stream, Ending.STUCK)
            else:
                found.append((waiting, number, stream))
        self._waiting = sum(waiting for waiting, _, _ in found)
        for waiting, _, stream in sorted(found, reverse=True):
            if self._waiting <= self._all_bytes_max:
                break
            self._waiting -= waiting
            self.cut(stream)
        self._counters.waiting_bytes = self._waiting
