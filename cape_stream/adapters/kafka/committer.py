"""The transactional committer: changelog records and consumed offsets, together or not at all.

The order inside a commit matters for whoever takes a partition over:

1. the records are written and *acknowledged*;
2. the offsets are sent with the proof of membership, where an outdated member is refused (KIP-447);
3. the transaction is committed.

Because records are in the log before the offsets are pending, a new owner that waits for stable
offsets and then reads the changelog up to its high watermark misses nothing, even if a stopped
process wakes up between 2 and 3.

A commit whose answer does not come is asked for again until the outcome is known; it is never
reported as refused while it might have happened.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaClient
from confluent_kafka import TopicPartition as KafkaPartition

from cape_stream.adapters.kafka.bounded import run_bounded
from cape_stream.adapters.kafka.client_log import LOGGER, ClientLog
from cape_stream.adapters.kafka.failures import (
    MISCONFIGURED,
    OUTDATED_MEMBERSHIP,
    REFUSED,
    kafka_error,
    typed,
)
from cape_stream.adapters.kafka.ownership import KafkaOwnership
from cape_stream.adapters.kafka.settings import KafkaSettings
from cape_stream.errors import Fatal, Fenced, Retry
from cape_stream.ports.log import Ownership, TopicPartition, Write

ATTEMPT_S = 2.0
"""How long one attempt at a step may take before it is asked for again."""
STUCK_AFTER_S = 3.0
PAUSE_S = 0.05
FULL_QUEUE_WAIT_S = 0.05
STATE_BYTES_MAX = 8_388_608
"""Largest record of a commit: a row of the changelog may be as large as its topic takes, see
`topics/changelog.toml`; a dead letter holds a whole record of another topic."""


class KafkaCommitter:
    """See `cape_stream.ports.log.Committer`. One thread at a time."""

    def __init__(self, settings: KafkaSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._log = ClientLog(f"committer {name}")
        self._client: KafkaClient | None = None
        self._is_closed = False

    def commit(
        self,
        writes: Sequence[Write],
        offsets: Mapping[TopicPartition, int],
        ownership: Ownership,
    ) -> Mapping[TopicPartition, int]:
        """See `Committer.commit`.

        Ownership is proved only by offsets: a commit without any is not fenced.
        """
        assert isinstance(ownership, KafkaOwnership), "a Kafka committer commits for Kafka members"
        if strange := offsets.keys() - ownership.partitions:
            raise Fenced(f"{len(strange)} partitions are not ours, such as {min(strange)}")
        client = self._ready()
        last: dict[TopicPartition, int] = {}
        try:
            client.begin_transaction()
            self._write(client, writes, last)
            self._send_offsets(client, offsets, ownership.metadata)
        except KafkaException as exception:
            self._give_up(client, kafka_error(exception), exception)
        except TimeoutError as error:
            # Its thread may be inside the client for ever: leave both alone. The next client has
            # the same id, so registering it aborts what this one had open.
            self._client = None
            LOGGER.warning("committer %s: the client does not answer, it is replaced", self._name)
            raise Retry("commit: the client does not answer") from error
        self._finish(client)
        return last

    def close(self) -> None:
        """See `Committer.close`."""
        self._is_closed = True
        if self._client is not None:
            self._client.purge()
            self._client = None

    def _ready(self) -> KafkaClient:
        """A client that has registered its transactional id, which ends what the last one left."""
        if self._is_closed:
            raise Fatal(f"committer {self._name} is closed")
        if self._client is None:
            self._client = self._open()
        return self._client

    def _open(self) -> KafkaClient:
        timeout_ms = self._settings.transaction_timeout_ms
        config = {
            **self._settings.producer(),
            "message.max.bytes": max(STATE_BYTES_MAX, 2 * self._settings.record_bytes_max),
            "transactional.id": self._name,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "socket.timeout.ms": timeout_ms,
            # Records leave when the commit says so, in batches as large as can be.
            "linger.ms": 100,
            # The coordinator answers "try again" while it ends the transaction before. Measured:
            # 10 to 15 ms a commit, against 30 with the client's own 100 ms, and 100 back to back.
            "retry.backoff.ms": 10,
            "retry.backoff.max.ms": 100,
        }
        client = KafkaClient({**config, "error_cb": self._on_error}, logger=self._log)
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1_000
        while True:
            try:
                client.init_transactions(ATTEMPT_S)
            except KafkaException as exception:
                error = kafka_error(exception)
                if error.retriable() and time.monotonic() < deadline_s:
                    continue  # A coordinator that is loading answers so: wait for it.
                raise typed(error, f"register {self._name}") from exception
            return client

    def _write(
        self, client: KafkaClient, writes: Sequence[Write], last: dict[TopicPartition, int]
    ) -> None:
        """Append all and wait until they are acknowledged; fills ``last`` with offsets."""
        # Delivery is told in order, so the last record of each partition speaks for the others.
        ends = {(topic, partition): at for at, (topic, partition, _, _) in enumerate(writes)}
        failures: list[KafkaError] = []
        for at, (topic, partition, key, value) in enumerate(writes):
            callback = None
            if ends[topic, partition] == at:
                callback = _recorder(TopicPartition(topic, partition), last, failures)
            while True:
                try:
                    client.produce(topic, value, key, partition, callback)
                except BufferError:
                    client.poll(FULL_QUEUE_WAIT_S)
                else:
                    break
        if client.flush(self._settings.transaction_timeout_ms / 1_000) or failures:
            raise KafkaException(
                failures[0] if failures else KafkaError(KafkaError._TIMED_OUT, "records unanswered")
            )

    def _send_offsets(
        self,
        client: KafkaClient,
        offsets: Mapping[TopicPartition, int],
        metadata: bytes,
    ) -> None:
        positions = [KafkaPartition(*partition, offset) for partition, offset in offsets.items()]
        if positions:
            self._insist(
                lambda: run_bounded(
                    lambda: client.send_offsets_to_transaction(positions, metadata, ATTEMPT_S),
                    STUCK_AFTER_S,
                )
            )

    def _insist(self, step: Callable[[], None]) -> None:
        """Ask again while the client says that this may help, for a bounded time."""
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1_000
        while True:
            try:
                return step()
            except KafkaException as exception:
                error = kafka_error(exception)
                if not error.retriable() or time.monotonic() >= deadline_s:
                    raise
                time.sleep(PAUSE_S)

    def _finish(self, client: KafkaClient) -> None:
        """Commit; returns when it is known to be done, raises when it is known not to be."""
        while True:
            try:
                return client.commit_transaction(ATTEMPT_S)
            except KafkaException as exception:
                error = kafka_error(exception)
                if not error.retriable():
                    self._give_up(client, error, exception)
                if self._is_closed:
                    raise Fatal(f"committer {self._name}: closed, commit unanswered") from exception
                self._log.say(logging.WARNING, error.name(), f"commit unanswered: {error.str()}")
                time.sleep(PAUSE_S)

    def _give_up(
        self, client: KafkaClient, error: KafkaError, exception: KafkaException
    ) -> NoReturn:
        """Abort, so that nothing of it is stored, and say what the caller shall do."""
        if error.fatal() or not self._aborted(client):
            # A new client registers the same id, which aborts what this one left open.
            self._client = None
            client.purge()
        code = error.code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            raise Fatal(
                f"a state record is over {STATE_BYTES_MAX} bytes (or twice record_bytes_max, if"
                " that is more) or over the max.message.bytes of its topic: raise the limit"
            ) from exception
        if code in OUTDATED_MEMBERSHIP or code in REFUSED or code in MISCONFIGURED:
            raise typed(error, "commit") from exception
        raise Retry(f"commit: {error.name()}: {error.str()}") from exception

    def _aborted(self, client: KafkaClient) -> bool:
        try:
            self._insist(lambda: client.abort_transaction(ATTEMPT_S))
        except KafkaException as exception:
            LOGGER.warning("committer %s: abort: %s", self._name, kafka_error(exception).str())
            return False
        return True

    def _on_error(self, error: KafkaError) -> None:
        self._log.say(logging.WARNING, error.name(), error.str())


def _recorder(
    partition: TopicPartition, last: dict[TopicPartition, int], failures: list[KafkaError]
) -> Callable[[KafkaError | None, Message], None]:
    """A delivery callback that notes the offset or the failure of a partition's last record."""

    def record(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
        elif (offset := message.offset()) is not None:
            last[partition] = offset

    return record
