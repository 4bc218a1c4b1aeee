"""`EmbeddedLog`: the factory, the topics, and the one thread that works when nobody polls."""

import atexit
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, monotonic_ns, time_ns

from cape_stream.adapters.embedded.committer import EmbeddedCommitter
from cape_stream.adapters.embedded.housekeeping import Housekeeping
from cape_stream.adapters.embedded.member import EmbeddedMember
from cape_stream.adapters.embedded.producer import EmbeddedProducer
from cape_stream.adapters.embedded.reader import EmbeddedReader
from cape_stream.adapters.embedded.settings import EmbeddedSettings
from cape_stream.adapters.embedded.state import State
from cape_stream.errors import CapeError, Fatal, Reject
from cape_stream.ports.log import (
    Committer,
    Member,
    MemberListener,
    Producer,
    Reader,
    TopicPartition,
    TopicSpec,
)

HOUSEKEEPING_PERIOD_S = 1.0


class EmbeddedLog:
    """`cape_stream.ports.log.Log` in one folder, for one process. Safe to share by threads.

    What a producer counts as settled, and every commit, survives a kill of the process at any
    moment; a commit is there in full or not at all.

    Args:
        path: folder of the log; made if missing.
        settings: bounds and retention.
        now_ms: Unix milliseconds that never go back; stamps records and times retention.

    Raises:
        Fatal: the folder is in use by another process or log, damaged, or not writable.
    """

    def __init__(
        self,
        path: str | Path,
        settings: EmbeddedSettings | None = None,
        *,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        settings = settings or EmbeddedSettings()
        self._state = State(Path(path), settings, now_ms or _steady_unix_ms())
        self._housekeeping = Housekeeping(self._state)
        self._waiting: list[EmbeddedProducer] = []
        self._work = Event()
        self._closed = False
        self._thread = Thread(target=self._run, name="embedded-log", daemon=True)
        self._thread.start()
        # At the end of the interpreter a thread inside RocksDB would bring the process down.
        atexit.register(self.close)

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        """Create those that do not exist, durably, each at once usable by every member."""
        with self._state.lock:
            for topic in topics:
                self._state.create_topic(topic)

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Number of partitions of each topic that exists."""
        with self._state.lock:
            counts = self._state.partition_counts
        return {topic: counts[topic] for topic in topics if topic in counts}

    def member(self, group: str, topics: Sequence[str], listener: MemberListener) -> Member:
        """Join ``group``; topics that do not exist yet take part once they are created."""
        self._check_usable()
        return EmbeddedMember(self._state, group, topics, listener)

    def producer(self) -> Producer:
        """A new producer."""
        self._check_usable()
        return EmbeddedProducer(self._state, self._nudge)

    def committer(self, name: str) -> Committer:
        """A new committer; the name is not needed within one process."""
        self._check_usable()
        return EmbeddedCommitter(self._state)

    def reader(self) -> Reader:
        """A new reader."""
        self._check_usable()
        return EmbeddedReader(self._state)

    @property
    def session_timeout_ms(self) -> int:
        """How long a silent member keeps its partitions when others wait for them."""
        return self._state.settings.session_timeout_ms

    def close(self) -> None:
        """Stop the thread and free the folder; may be called twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._work.set()
        self._thread.join()
        self._state.store.close()

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Forget what lies below offset ``before`` (at most all), as retention would.

        For operators; members that stood there are told `MemberListener.repositioned`.
        """
        with self._state.lock:
            found = self._state.partitions.get(partition)
            if found is None:
                raise Reject(f"topic {partition.topic} has no partition {partition.partition}")
            low = min(before, found.high)
            if low > found.low:
                self._state.truncate(found, low)

    def housekeep(self) -> None:
        """Retention and silent members, now; the log does it every second by itself."""
        self._housekeeping.run()

    def _check_usable(self) -> None:
        if self._closed:
            raise Fatal("the log was closed")
        self._state.store.check()

    def _nudge(self, producer: EmbeddedProducer) -> None:
        self._waiting.append(producer)
        self._work.set()

    def _run(self) -> None:
        """Write what producers left lying, and keep house; ends at `close` or on a failure,
        which the users of the log meet at their next call."""
        try:
            with suppress(CapeError):
                self._work_until_closed()
        finally:
            if not self._closed:
                self._state.store.fail(Fatal("the thread of the log ended before the log"))

    def _work_until_closed(self) -> None:
        due_s = monotonic()
        while not self._closed:
            self._work.wait(HOUSEKEEPING_PERIOD_S)
            self._work.clear()
            while self._waiting:
                self._waiting.pop().write_buffered()
            if monotonic() >= due_s:
                self._housekeeping.run()
                due_s = monotonic() + HOUSEKEEPING_PERIOD_S


def _steady_unix_ms() -> Callable[[], int]:
    """Unix time as of now, monotonic from here on."""
    start_ns = time_ns() - monotonic_ns()
    return lambda: (start_ns + monotonic_ns()) // 1_000_000
