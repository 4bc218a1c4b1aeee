"""The books of one partition: nothing after a failure is settled before the failure's run is."""

from confluent_kafka import KafkaError, Message

from cape_stream.adapters.kafka.producer import Channel
from cape_stream.ports.log import FailedSend, TopicPartition

TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT, "Local: Message timed out")


def message(offset: int) -> Message:
    return Message(topic="jobs", partition=2, offset=offset, key=b"k", value=b"v%d" % offset)


def test_settled_counts_acknowledgements() -> None:
    channel = Channel(TopicPartition("jobs", 2), [], {})
    run = channel.run
    run.sent += 3

    run.on_delivery(None, message(10))
    run.on_delivery(None, message(11))

    assert (channel.sent, channel.settled, channel.acked_offset) == (3, 2, 11)


def test_settled_stands_at_a_failure_while_older_records_are_unanswered() -> None:
    failures: list[FailedSend] = []
    channel = Channel(TopicPartition("jobs", 2), failures, {})
    first = channel.run
    first.sent += 4
    first.on_delivery(None, message(10))

    first.on_delivery(TIMED_OUT, message(3))  # the youngest of the four; two are on their way

    assert channel.settled == 1
    assert failures == [
        FailedSend("jobs", 2, b"k", b"v3", "_MSG_TIMED_OUT: Local: Message timed out")
    ]

    first.on_delivery(None, message(11))
    assert channel.settled == 1
    first.on_delivery(None, message(12))
    assert channel.settled == 4


def test_settled_goes_on_after_the_run_of_a_failure_is_answered() -> None:
    channel = Channel(TopicPartition("jobs", 2), [], {})
    first = channel.run
    first.sent += 2
    first.on_delivery(TIMED_OUT, message(0))
    second = channel.run
    second.sent += 2

    second.on_delivery(None, message(20))
    before_the_first_is_answered = channel.settled
    first.on_delivery(None, message(21))

    assert second is not first
    assert before_the_first_is_answered == 0
    assert (channel.sent, channel.settled) == (4, 3)


def test_settled_counts_two_failed_runs_in_turn() -> None:
    channel = Channel(TopicPartition("jobs", 2), [], {})
    runs = []
    for _ in range(2):
        run = channel.run
        run.sent += 2
        run.on_delivery(TIMED_OUT, message(0))
        runs.append(run)

    runs[1].on_delivery(TIMED_OUT, message(0))
    assert channel.settled == 0
    runs[0].on_delivery(TIMED_OUT, message(0))
    assert channel.settled == 4
    assert channel.acked_offset is None
