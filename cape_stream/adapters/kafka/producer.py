"""The idempotent producer, with its books: what was sent, settled, given up, and how far it got.

Settled in order. librdkafka answers in the order of sending, except for records it gives up: a
record still waiting in the client can time out while an older one is on its way to the broker. So
sends are counted in *runs*; the first failure ends a run, later sends open the next one, and
nothing after the failure counts as settled until the whole run is.

A record that is given up after it left the client may be in the log all the same: no Kafka client
can know. Whoever sends it again may find it there twice.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaClient

from cape_stream.adapters.kafka.client_log import LOGGER, ClientLog
from cape_stream.adapters.kafka.failures import kafka_error
from cape_stream.adapters.kafka.settings import KafkaSettings
from cape_stream.errors import Reject
from cape_stream.ports.log import FailedSend, TopicPartition

CLOSE_WAIT_MS = 5_000
UNKNOWN_DESTINATION = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""The topic or partition is not there (yet): the record fails, a later one may pass."""


class Run:
    """Sends of one partition up to a failure."""

    __slots__ = ("_channel", "acked", "failed", "in_order", "newest", "on_delivery", "sent")

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self.sent = 0
        self.acked = 0
        self.failed = 0
        self.in_order = 0
        self.newest: Message | None = None
        # Bound once: a bound method made for every record costs 40 ns.
        self.on_delivery = self._delivered

    @property
    def is_settled(self) -> bool:
        """Every record of it is acknowledged or given up."""
        return self.acked + self.failed == self.sent

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acked += 1
            self.newest = message  # read for its offset only when somebody asks
        else:
            self.fail(message.key(), message.value(), error)

    def fail(self, key: bytes | None, value: bytes | None, error: KafkaError) -> None:
        """One of its records was given up; what follows belongs to the next run."""
        if not self.failed:
            self.in_order = self.acked
        self.failed += 1
        self._channel.fail(self, key, value, error)

    @property
    def settled(self) -> int:
        """How many of its records, from the first one on without a gap, are settled."""
        if self.is_settled:
            return self.sent
        return self.in_order if self.failed else self.acked


class Channel:
    """One partition's books."""

    __slots__ = ("_acked_before", "_done", "_ended", "_failures", "_open_runs", "partition")

    def __init__(
        self,
        partition: TopicPartition,
        failures: list[FailedSend],
        open_runs: dict[int, Run],
    ) -> None:
        """Books of ``partition``.

        Args:
            partition: whose books.
            failures: where records that are given up are put.
            open_runs: the open run of every partition of the topic; ours is put there.
        """
        self.partition = partition
        self._failures = failures
        self._open_runs = open_runs
        self._done = 0
        self._ended: deque[Run] = deque()
        self._acked_before: int | None = None
        self._open_runs[partition.partition] = Run(self)

    @property
    def run(self) -> Run:
        """The run that the next record belongs to."""
        return self._open_runs[self.partition.partition]

    def fail(self, run: Run, key: bytes | None, value: bytes | None, error: KafkaError) -> None:
        """Note it, and open the next run."""
        topic, partition = self.partition
        reason = f"{error.name()}: {error.str()}"
        lasting = error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        self._failures.append(FailedSend(topic, partition, key, value, reason, lasting))
        if run is self.run:
            self._ended.append(run)
            self._open_runs[partition] = Run(self)

    @property
    def sent(self) -> int:
        """Records the client took."""
        return self._done + sum(run.sent for run in self._ended) + self.run.sent

    @property
    def settled(self) -> int:
        """Of those, how many are settled, from the first one on without a gap."""
        while self._ended and self._ended[0].is_settled:
            self._acked_before = self.acked_offset
            self._done += self._ended.popleft().sent
        return self._done + (self._ended[0] if self._ended else self.run).settled

    @property
    def acked_offset(self) -> int | None:
        """Offset of the newest acknowledged record; None before the first."""
        newest = [run.newest.offset() for run in (*self._ended, self.run) if run.newest is not None]
        return max((at for at in (self._acked_before, *newest) if at is not None), default=None)


class Counters(Mapping[TopicPartition, int]):
    """A live view of one figure of all channels; those that have none are not in it."""

    def __init__(
        self, channels: Mapping[TopicPartition, Channel], figure: Callable[[Channel], int | None]
    ) -> None:
        self._channels = channels
        self._figure = figure

    def __getitem__(self, partition: TopicPartition) -> int:
        value = self._figure(self._channels[partition])
        if value is None:
            raise KeyError(partition)
        return value

    def __iter__(self) -> Iterator[TopicPartition]:
        channels = list(self._channels.values())
        return (channel.partition for channel in channels if self._figure(channel) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class KafkaProducer:
    """See `cape_stream.ports.log.Producer`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._log = ClientLog("producer")
        self._channels: dict[TopicPartition, Channel] = {}
        # By topic and number: two look-ups are cheaper than one by a tuple made for it.
        self._open_runs: dict[str, dict[int, Run]] = {}
        self._failures: list[FailedSend] = []
        self._is_broken = False
        self._is_closed = False
        self.sent: Mapping[TopicPartition, int] = Counters(self._channels, lambda c: c.sent)
        self.settled: Mapping[TopicPartition, int] = Counters(self._channels, lambda c: c.settled)
        self.acked_offset: Mapping[TopicPartition, int] = Counters(
            self._channels, lambda c: c.acked_offset
        )
        self._client = self._open()
        self._produce = self._client.produce

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> bool:
        """See `Producer.send`."""
        try:
            run = self._open_runs[topic][partition]
        except KeyError:
            run = self._channel(TopicPartition(topic, partition)).run
        try:
            self._produce(topic, value, key, partition, run.on_delivery)
        except BufferError:
            return False
        except KafkaException as exception:
            return self._refused(run, TopicPartition(topic, partition), key, value, exception)
        run.sent += 1
        return True

    def poll(self, timeout_ms: int) -> None:
        """See `Producer.poll`."""
        try:
            self._client.poll(timeout_ms / 1_000)
        except KafkaException as exception:
            self._on_error(kafka_error(exception))
        if self._is_broken:
            self._reopen()

    def take_failed(self) -> list[FailedSend]:
        """See `Producer.take_failed`."""
        failed = self._failures.copy()
        self._failures.clear()
        return failed

    def flush(self, timeout_ms: int) -> bool:
        """See `Producer.flush`."""
        deadline_s = time.monotonic() + timeout_ms / 1_000
        while True:
            try:
                left = self._client.flush(max(0.0, deadline_s - time.monotonic()))
            except KafkaException as exception:
                self._on_error(kafka_error(exception))
                left = len(self._client)
            if self._is_broken:
                self._reopen()
            elif left == 0 or time.monotonic() >= deadline_s:
                return left == 0

    def close(self) -> None:
        """See `Producer.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        self.flush(CLOSE_WAIT_MS)
        self._client.purge()
        self._client.flush(0)
        self._client.close()

    def _open(self) -> KafkaClient:
        config = {
            **self._settings.producer(),
            "linger.ms": self._settings.linger_ms,
            "message.timeout.ms": self._settings.give_up_after_ms,
        }
        return KafkaClient({**config, "error_cb": self._on_error}, logger=self._log)

    def _channel(self, partition: TopicPartition) -> Channel:
        open_runs = self._open_runs.setdefault(partition.topic, {})
        channel = self._channels[partition] = Channel(partition, self._failures, open_runs)
        return channel

    def _refused(
        self,
        run: Run,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        exception: KafkaException,
    ) -> bool:
        """The client did not take the record: say what that means for it."""
        error = kafka_error(exception)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            size = len(key or b"") + len(value or b"")
            raise Reject(
                f"a record of {size} bytes for {partition.topic} is over the limit of "
                f"{self._settings.record_bytes_max} bytes (record_bytes_max)"
            ) from exception
        if error.code() in UNKNOWN_DESTINATION:
            run.sent += 1
            run.fail(key, value, error)
            return True
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._reopen()
            return False
        raise Reject(f"{partition.topic} [{partition.partition}]: {error.str()}") from exception

    def _reopen(self) -> None:
        """Replace a client that can send no more; what is outstanding counts as given up."""
        LOGGER.warning("producer: the client is unusable, outstanding records are given up")
        broken = self._client
        broken.purge()
        broken.flush(1)
        self._client = self._open()
        self._produce = self._client.produce
        self._is_broken = False

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._is_broken = True
        self._log.say(logging.WARNING, error.name(), error.str())
