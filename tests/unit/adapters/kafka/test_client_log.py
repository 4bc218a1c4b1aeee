import logging

import pytest

from cape_stream.adapters.kafka.client_log import ClientLog
from cape_stream.ports.log import TopicPartition

RESET = (
    "[thrd:127.0.0.1:9092/1]: app.d.pings [3]: offset reset (at offset 50 (leader epoch 0), "
    "broker 1) to offset BEGINNING (leader epoch -1): fetch failed due to requested offset not "
    "available on the broker: Broker: Offset out of range"
)


def test_log_says_each_kind_of_line_once(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog("producer")

    for attempt in range(3):
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#1", f"[thrd:x]: refused {attempt}")
    log.log(logging.WARNING, "%s [%s] %s", "GETPID", "rdkafka#1", "[thrd:main]: loading")

    assert caplog.messages == ["producer: FAIL: refused 0", "producer: GETPID: loading"]


def test_log_recognises_a_position_that_fell_out_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    resets: list[tuple[TopicPartition, int]] = []
    log = ClientLog("member", lambda partition, at: resets.append((partition, at)))

    log.log(logging.WARNING, "%s [%s] %s", "OFFSET", "rdkafka#1", RESET)

    assert resets == [(TopicPartition("app.d.pings", 3), 50)]
    assert caplog.messages == []
