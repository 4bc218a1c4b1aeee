"""The simulated log as one process sees it."""

from __future__ import annotations

from collections.abc import Sequence

from cape_stream.adapters.simulated.broker import Broker
from cape_stream.adapters.simulated.committer import SimCommitter
from cape_stream.adapters.simulated.member import SimMember
from cape_stream.adapters.simulated.process import SimProcess
from cape_stream.adapters.simulated.producer import SimProducer
from cape_stream.adapters.simulated.reader import SimReader
from cape_stream.ports.log import Committer, Member, MemberListener, Producer, Reader, TopicSpec


class SimLog:
    """Implements `Log` on a `Broker`.

    ``SimLog()`` is a plain in-memory twin: no time, no faults, one process that never dies. In a
    simulated world every process gets ``SimLog(broker, process)`` of one shared broker.

    Args:
        broker: the state shared by all processes; None for one of its own.
        process: whose log this is; None for one that never dies.
    """

    def __init__(self, broker: Broker | None = None, process: SimProcess | None = None) -> None:
        self.broker = broker or Broker()
        """The way to look inside and to do harm."""
        self._process = process or SimProcess(self.broker.timeline, "plain")

    def connect(self, process: SimProcess) -> SimLog:
        """The same log for another process."""
        return SimLog(self.broker, process)

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        """See `Log.create_topics`."""
        self._process.touch()
        self.broker.check_up()
        self.broker.create_topics(topics)

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """See `Log.partition_counts`."""
        self._process.touch()
        self.broker.check_up()
        counts = {topic: self.broker.partition_count(topic) for topic in topics}
        return {topic: count for topic, count in counts.items() if count}

    def member(self, group: str, topics: Sequence[str], listener: MemberListener) -> Member:
        """See `Log.member`; it joins with its first poll."""
        self._process.touch()
        return SimMember(self.broker, self._process, group, topics, listener)

    def producer(self) -> Producer:
        """See `Log.producer`."""
        self._process.touch()
        return SimProducer(self.broker, self._process)

    def committer(self, name: str) -> Committer:
        """See `Log.committer`."""
        self._process.touch()
        return SimCommitter(self.broker, self._process, name)

    def reader(self) -> Reader:
        """See `Log.reader`."""
        self._process.touch()
        return SimReader(self.broker, self._process)

    @property
    def session_timeout_ms(self) -> int:
        """See `Log.session_timeout_ms`."""
        return self.broker.settings.session_timeout_ms

    def close(self) -> None:
        """Nothing to free: the broker outlives its processes."""
