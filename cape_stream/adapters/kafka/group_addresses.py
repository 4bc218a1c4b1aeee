"""Who owns a partition, and how to reach it: told by the group itself.

A member carries its address in its client id, behind an ``@``; the broker keeps it for as long as
the member lives, so there is no second place that could disagree.
"""

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cape_stream.adapters.kafka.client_log import ClientLog
from cape_stream.adapters.kafka.failures import kafka_error, typed
from cape_stream.adapters.kafka.settings import KafkaSettings
from cape_stream.ports.log import TopicPartition

ADDRESS_MARK = "@"


def client_id_with(client_id: str, address: str) -> str:
    """The client id of a member that can be reached at ``address``."""
    return f"{client_id}{ADDRESS_MARK}{address}" if address else client_id


def owner_addresses(settings: KafkaSettings, group: str) -> dict[TopicPartition, str | None]:
    """Assigned partition → address of its owner, None where the owner has not told one.

    Raises:
        Retry: the cluster is away.
        Fatal: access refused.
    """
    timeout_s = settings.request_timeout_ms / 1_000
    admin = AdminClient(settings.connection(), logger=ClientLog("admin"))
    future = admin.describe_consumer_groups([group], request_timeout=timeout_s)[group]
    try:
        described = future.result()
    except KafkaException as exception:
        raise typed(kafka_error(exception), f"describe group {group}") from exception
    owners: dict[TopicPartition, str | None] = {}
    for member in described.members:
        _, mark, address = member.client_id.rpartition(ADDRESS_MARK)
        for each in member.assignment.topic_partitions if member.assignment else ():
            owners[TopicPartition(each.topic, each.partition)] = address if mark else None
    return owners
