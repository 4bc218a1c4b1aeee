"""A broker without the new group protocol: the classic one is taken, and said so."""

from collections.abc import Iterator

import pytest

from cape_stream.adapters.kafka.log import KafkaLog
from cape_stream.errors import Fatal
from deploy.local.broker import LocalBroker
from tests.contract.kafka_seats import Seat, new_name, new_topic, poll_until, send_all, settings

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def old_broker() -> Iterator[LocalBroker]:
    with LocalBroker(settings={"group.coordinator.rebalance.protocols": "classic"}) as broker:
        yield broker


def test_member_falls_back_to_the_classic_protocol(
    old_broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    log = KafkaLog(settings(old_broker.bootstrap))
    topic = new_topic(log)
    send_all(log, topic, 0, [b"read"])

    seat = Seat(log, new_name("group"), [topic])
    poll_until(lambda: bool(seat.records), seat)

    assert seat.values() == [b"read"]
    assert any("refuses group.protocol=consumer" in message for message in caplog.messages)
    seat.member.close()


def test_member_stops_when_the_protocol_it_must_use_is_refused(old_broker: LocalBroker) -> None:
    log = KafkaLog(settings(old_broker.bootstrap, group_protocol="consumer"))
    seat = Seat(log, new_name("group"), [new_topic(log)])

    with pytest.raises(Fatal, match="API version not supported"):
        poll_until(lambda: bool(seat.owned), seat)
    seat.member.close()
