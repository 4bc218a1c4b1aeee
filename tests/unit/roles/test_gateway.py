"""What the gateway answers when the log does not take a record, or not in time."""

import asyncio
from collections.abc import Sequence

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.http.gateway import Verdict
from cape_stream.adapters.simulated import (
    Broker,
    BrokerSettings,
    Dice,
    Faults,
    SimClock,
    SimLog,
    Timeline,
)
from cape_stream.errors import Fatal
from cape_stream.ports.log import TopicSpec, Write
from cape_stream.roles.backends import Backend
from cape_stream.roles.gateway import Carrier, GatewayPart
from cape_stream.roles.gateway_settings import GatewaySettings
from cape_stream.roles.settings import Settings
from cape_stream.roles.settings_loading import load_settings, shown_settings
from tests.unit.testing.apps import Shop


def backend_on(broker: Broker) -> Backend:
    broker.create_topics([TopicSpec(name="t", partitions=1, config={})])
    return Backend(
        "kafka", "here", SimLog(broker), AvroCodec(), SimClock(broker.timeline), patience_ms=0
    )


def carried(broker: Broker, *batches: Sequence[Write]) -> list[list[Verdict]]:
    """Verdicts of requests that come at the same time."""

    async def all_at_once() -> list[list[Verdict]]:
        carrier = Carrier(backend_on(broker), timeout_ms=20)
        return list(await asyncio.gather(*(carrier.carry(each) for each in batches)))

    return asyncio.run(all_at_once())


def write(value: bytes) -> Write:
    return Write("t", 0, b"k", value)


def test_requests_that_come_together_each_get_their_own_verdicts() -> None:
    broker = Broker(None, Dice(0), BrokerSettings(record_bytes_max=10))

    verdicts = carried(
        broker, [write(b"a")], [write(b"x" * 11), write(b"b")], [write(b"c"), write(b"d")]
    )

    assert [[each.verdict for each in request] for request in verdicts] == [
        ["accepted"],
        ["refused", "accepted"],
        ["accepted", "accepted"],
    ]
    assert verdicts[1][0].code == "not_stored"
    assert [record.value for record in broker.records("t", 0)] == [b"a", b"b", b"c", b"d"]


def test_record_that_the_producer_gives_up_is_to_be_sent_again() -> None:
    broker = Broker(None, Dice(0, Faults(send_fail=1.0)))

    [[verdict]] = carried(broker, [write(b"a")])

    assert (verdict.verdict, verdict.code) == ("retry", "not_stored")
    assert broker.records("t", 0) == []


def test_log_that_does_not_acknowledge_in_time_means_send_again() -> None:
    broker = Broker(Timeline(), Dice(0))  # nothing moves on this timeline

    [verdicts] = carried(broker, [write(b"a"), write(b"b")])

    assert [(each.verdict, each.code) for each in verdicts] == [("retry", "log_away")] * 2


def test_producer_that_stays_full_means_send_again() -> None:
    broker = Broker(None, Dice(0, Faults(send_full=1.0)))

    [[verdict]] = carried(broker, [write(b"a")])

    assert (verdict.verdict, verdict.code) == ("retry", "busy")


def test_gateway_without_keys_says_how_to_make_them() -> None:
    with pytest.raises(Fatal, match="cape gateway rotate-keys --keys-file FILE"):
        GatewayPart(Shop().app, backend_on(Broker()), Settings())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"gateway.host": "0.0.0.0"}, "set a ping_token"),
        ({"gateway.ping_token": "short"}, "16 characters"),
        ({"gateway.port": "70000"}, "from 0 to 65535"),
        ({"gateway.batch_max": "0"}, "batch_max must be >= 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(values: dict[str, str], reason: str) -> None:
    with pytest.raises(Fatal, match=reason):
        load_settings(values, {})


def test_gateway_listens_on_this_machine_alone_unless_told_otherwise() -> None:
    assert GatewaySettings().host == "127.0.0.1"


def test_ping_token_is_shown_to_nobody() -> None:
    secret = "secret-secret-secret"
    found = load_settings({"gateway.ping_token": secret}, {})

    assert secret not in repr(found.gateway)
    assert secret not in str(shown_settings(found))
