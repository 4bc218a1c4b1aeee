"""Kafka as the log: topics, and the factory of members, producers, committers and readers."""

import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from cape_stream.adapters.kafka.client_log import ClientLog
from cape_stream.adapters.kafka.committer import KafkaCommitter
from cape_stream.adapters.kafka.failures import kafka_error, typed
from cape_stream.adapters.kafka.member import KafkaMember
from cape_stream.adapters.kafka.producer import KafkaProducer
from cape_stream.adapters.kafka.reader import KafkaReader
from cape_stream.adapters.kafka.settings import KafkaSettings
from cape_stream.errors import Retry
from cape_stream.ports.log import MemberListener, TopicSpec

LOOK_AGAIN_S = 0.05
METADATA_AGE_MS_MAX = 500
BROKER_DEFAULT = -1
"""Replication factor: as the cluster is set up."""


class KafkaLog:
    """See `cape_stream.ports.log.Log`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._timeout_s = settings.request_timeout_ms / 1_000
        # A cached leader that has changed would be asked in vain until the cache is old: keep none.
        config = {**settings.connection(), "metadata.max.age.ms": METADATA_AGE_MS_MAX}
        self._admin = AdminClient(config, logger=ClientLog("admin"))

    def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        """See `Log.create_topics`; returns when every broker asked knows them.

        Raises:
            Retry: the cluster is away, or still busy creating them.
            Fatal: access refused, or the cluster does not accept such a topic.
        """
        if not topics:
            return
        created = self._admin.create_topics(
            [
                NewTopic(
                    topic.name,
                    topic.partitions,
                    topic.replication or BROKER_DEFAULT,
                    config=dict(topic.config),
                )
                for topic in topics
            ],
            request_timeout=self._timeout_s,
            operation_timeout=self._timeout_s,
        )
        for name, future in created.items():
            try:
                future.result()
            except KafkaException as exception:
                error = kafka_error(exception)
                if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise typed(error, f"create topic {name}") from exception
        self._await_topics([topic.name for topic in topics])

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """See `Log.partition_counts`.

        Raises:
            Retry: the cluster is away.
            Fatal: access refused.
        """
        if not topics:
            return {}
        described = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._timeout_s
        )
        counts = {}
        for name, future in described.items():
            try:
                counts[name] = len(future.result().partitions)
            except KafkaException as exception:
                error = kafka_error(exception)
                if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise typed(error, f"describe topic {name}") from exception
        return counts

    def member(self, group: str, topics: Sequence[str], listener: MemberListener) -> KafkaMember:
        """See `Log.member`."""
        return KafkaMember(self._settings, self._admin, group, topics, listener)

    def producer(self) -> KafkaProducer:
        """See `Log.producer`."""
        return KafkaProducer(self._settings)

    def committer(self, name: str) -> KafkaCommitter:
        """See `Log.committer`."""
        return KafkaCommitter(self._settings, name)

    def reader(self) -> KafkaReader:
        """See `Log.reader`."""
        return KafkaReader(self._settings, self._admin)

    @property
    def session_timeout_ms(self) -> int:
        """See `Log.session_timeout_ms`."""
        return self._settings.session_timeout_ms

    def close(self) -> None:
        """See `Log.close`. The admin client has nothing to close: it ends with its last user."""

    def _await_topics(self, names: Sequence[str]) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while missing := set(names) - set(self.partition_counts(names)):
            if time.monotonic() > deadline_s:
                raise Retry(f"topics not there yet: {', '.join(sorted(missing))}")
            time.sleep(LOOK_AGAIN_S)
