import pytest
from confluent_kafka import KafkaError

from cape_stream.adapters.kafka.failures import typed
from cape_stream.errors import CapeError, Fatal, Fenced, Retry


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.STALE_MEMBER_EPOCH, Fenced),
        (KafkaError.UNKNOWN_MEMBER_ID, Fenced),
        (KafkaError.ILLEGAL_GENERATION, Fenced),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, Fatal),
        (KafkaError._AUTHENTICATION, Fatal),
        (KafkaError.INVALID_SESSION_TIMEOUT, Fatal),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, Retry),
        (KafkaError._ALL_BROKERS_DOWN, Retry),
        (KafkaError._TIMED_OUT, Retry),
    ],
)
def test_typed_says_what_to_do(code: int, expected: type[CapeError]) -> None:
    error = typed(KafkaError(code, "the broker's words"), "commit of 3 partitions")

    assert type(error) is expected
    assert error.reason.startswith("commit of 3 partitions: ")
    assert error.reason.endswith("the broker's words")
