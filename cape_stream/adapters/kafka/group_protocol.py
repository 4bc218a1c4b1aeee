"""The two ways of being in a group, and what has to be checked before we trust one.

``consumer`` (KIP-848): the broker assigns; its ``range`` assignor gives the same partition number
of all topics to one member when their counts are equal; partitions move one by one while the others
go on. ``classic`` with librdkafka's ``range`` strategy keeps the partition numbers together too,
but is eager: each change of members takes all partitions from all members for a moment. The
incremental strategy of the classic protocol, ``cooperative-sticky``, does not keep them together,
so it is no choice for us.
"""

from concurrent.futures import Future

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource

from cape_stream.adapters.kafka.client_log import LOGGER
from cape_stream.adapters.kafka.failures import kafka_error
from cape_stream.adapters.kafka.settings import ClientConfig, KafkaSettings
from cape_stream.errors import Fatal

HEARTBEAT_MS_MAX = 3_000
SESSION_TIMEOUT_CONFIG = "consumer.session.timeout.ms"


class ConsumerProtocol:
    """KIP-848."""

    def __init__(self, settings: KafkaSettings, admin: AdminClient, group: str) -> None:
        self._least_ms = settings.session_timeout_ms
        self._group = group
        resource = ConfigResource(ConfigResource.Type.GROUP, group)
        asked = admin.describe_configs(
            [resource], request_timeout=settings.request_timeout_ms / 1_000
        )
        self._session: Future[dict[str, ConfigEntry]] | None = asked[resource]

    def config(self) -> ClientConfig:
        """The client's settings; session and heartbeat are the broker's business."""
        return {"group.protocol": "consumer", "group.remote.assignor": "range"}

    def assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        """Answer to the group: these are taken, in addition."""
        consumer.incremental_assign(partitions)

    def unassign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        """Answer to the group: these are let go."""
        consumer.incremental_unassign(partitions)

    def is_checked(self) -> bool:
        """Whether the broker's session timeout is known to be long enough for our lease.

        Raises:
            Fatal: it is shorter than we were told, so a lease would outlive the ownership.
        """
        if self._session is None:
            return True
        if not self._session.done():
            return False
        asked, self._session = self._session, None
        try:
            entry = asked.result().get(SESSION_TIMEOUT_CONFIG)
        except KafkaException as exception:
            LOGGER.warning(
                "%s: cannot read %s, so make sure yourself that it is not below %d: %s",
                *(self._group, SESSION_TIMEOUT_CONFIG, self._least_ms),
                kafka_error(exception).str(),
            )
            return True
        if entry is not None and entry.value and int(entry.value) < self._least_ms:
            raise Fatal(
                f"{SESSION_TIMEOUT_CONFIG} of group {self._group} is {entry.value}, below our "
                f"session_timeout_ms of {self._least_ms}: raise the one or lower the other"
            )
        return True


class ClassicProtocol:
    """The client that leads the group assigns; the session timeout is ours to choose."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._session_ms = settings.session_timeout_ms

    def config(self) -> ClientConfig:
        """The client's settings."""
        return {
            "group.protocol": "classic",
            "partition.assignment.strategy": "range",
            "session.timeout.ms": self._session_ms,
            "heartbeat.interval.ms": min(HEARTBEAT_MS_MAX, self._session_ms // 4),
        }

    def assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        """Answer to the group: these are taken; all others were let go before."""
        consumer.assign(partitions)

    def unassign(self, consumer: Consumer, _partitions: list[KafkaPartition]) -> None:
        """Answer to the group: all are let go, which is what it asked."""
        consumer.unassign()

    def is_checked(self) -> bool:
        """The broker refuses a session timeout it does not grant, so there is nothing to check."""
        return True
