"""Whether the topics of an App exist and have the partitions they must have, at start and later.

A subject's partition is its CRC-32 modulo their number. So a number that differs between topics, or
changes while somebody runs, gives a subject two owners: refused, with both numbers.
"""

from collections.abc import Mapping, Sequence

from cape_stream.errors import Fatal, Retry
from cape_stream.ports.background import Pending
from cape_stream.ports.log import Log
from cape_stream.roles.backends import Backend
from cape_stream.roles.topics import topic_specs
from cape_stream.runtime.steady import ThreadBackground
from cape_stream.sdk.app import App


def wanted_counts(app: App) -> dict[str, int]:
    """Topic → number of partitions it must have, for every topic the App reads or writes."""
    return {spec.name: spec.partitions for spec in topic_specs(app)}


def check_counts(log: Log, app: App, topics: Sequence[str] | None = None) -> None:
    """Compare what the App wants with what there is.

    Args:
        log: where the topics are.
        app: whose topics.
        topics: the ones to look at; None: all of them.

    Raises:
        Fatal: a topic is missing, or has another number of partitions.
        Retry: the log is away.
    """
    wanted = wanted_counts(app)
    if topics is not None:
        wanted = {topic: wanted[topic] for topic in topics}
    counts = log.partition_counts(list(wanted))
    missing = [topic for topic in wanted if topic not in counts]
    if missing:
        raise Fatal(
            f"topics do not exist: {', '.join(missing)}; create them with `cape topics apply`"
        )
    differing = _differences(wanted, counts)
    if differing:
        raise Fatal(
            f"{differing}: the subjects of an App keep their partitions for ever; declare"
            f" App({app.name!r}, partitions=...) with the number the topics have, or move to new"
            " topics under a new App name"
        )


def _differences(wanted: Mapping[str, int], counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{topic} has {counts[topic]} partitions where {number} are wanted"
        for topic, number in wanted.items()
        if counts.get(topic, number) != number
    )


class PartitionWatch:
    """Notices growth while a process runs. `turn` never waits.

    Args:
        backend: whose topics.
        app: whose topics.
        interval_ms: how often to look; 0: never.
    """

    def __init__(self, backend: Backend, app: App, interval_ms: int) -> None:
        self._backend = backend
        self._wanted = wanted_counts(app)
        self._interval_ms = interval_ms
        self._background = ThreadBackground(1, "cape-partitions")
        self._look: Pending[dict[str, int]] | None = None
        self._due_ms = backend.clock.now_ms() + interval_ms

    def turn(self, now_ms: int) -> None:
        """Look if it is due.

        Raises:
            Fatal: a topic has another number of partitions than it had at the start.
        """
        if self._look is not None:
            if self._look.done():
                look, self._look = self._look, None
                self._judge(look)
        elif self._interval_ms and now_ms >= self._due_ms:
            self._due_ms = now_ms + self._interval_ms
            topics = list(self._wanted)
            self._look = self._background.submit(lambda: self._backend.log.partition_counts(topics))

    def close(self) -> None:
        """Free all."""
        self._background.close()

    def _judge(self, look: Pending[dict[str, int]]) -> None:
        try:
            counts = look.result()
        except Retry:
            return
        differing = _differences(self._wanted, counts)
        if differing:
            raise Fatal(
                f"partitions were added while this process ran: {differing}; stopping before a"
                " subject gets two owners. Move to new topics under a new App name"
            )
