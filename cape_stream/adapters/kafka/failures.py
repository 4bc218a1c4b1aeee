"""Which of our errors a Kafka error becomes: what the caller has to do about it."""

from confluent_kafka import KafkaError, KafkaException

from cape_stream.errors import CapeError, Fatal, Fenced, Retry

REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }
)
"""The cluster does not let us: a person has to change credentials or access rights."""

MISCONFIGURED = frozenset(
    {
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_ASSIGNOR,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
    }
)
"""What we ask for can never be had from this cluster."""

OUTDATED_MEMBERSHIP = frozenset(
    {
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)
"""The group has moved on without this member (KIP-447, KIP-848)."""


def kafka_error(exception: KafkaException) -> KafkaError:
    """The error object inside an exception of the client library."""
    error = exception.args[0]
    assert isinstance(error, KafkaError), "a KafkaException carries a KafkaError"
    return error


def typed(error: KafkaError, doing: str) -> CapeError:
    """Our error for ``error``; ``doing`` says what was tried, as in "commit of 3 partitions"."""
    reason = f"{doing}: {error.name()}: {error.str()}"
    code = error.code()
    if code in OUTDATED_MEMBERSHIP:
        return Fenced(reason)
    if code in REFUSED or code in MISCONFIGURED:
        return Fatal(reason)
    return Retry(reason)
