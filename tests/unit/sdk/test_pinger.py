import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.simulated import Broker, BrokerSettings, Dice, Faults, SimClock, SimLog
from cape_stream.model.ping import Ping
from cape_stream.model.sequence import BadSequenceError
from cape_stream.model.subject import BadSubjectError, partition_of
from cape_stream.ports.log import TopicSpec
from cape_stream.sdk import App, Pinger
from cape_stream.sdk.pinger import PingerCounters

TOPIC = App("flight-ops").topic_names.pings("flights")
PARTITIONS = 4


def open_log(faults: Faults | None = None, records_max: int = 100_000) -> SimLog:
    dice = Dice(0, faults) if faults else None
    log = SimLog(Broker(dice=dice, settings=BrokerSettings(producer_records_max=records_max)))
    log.create_topics([TopicSpec(name=TOPIC, partitions=PARTITIONS, config={})])
    return log


def open_pinger(log: SimLog) -> Pinger:
    clock = SimClock(log.broker.timeline)
    return Pinger(log, AvroCodec(), clock, topic=TOPIC, partitions=PARTITIONS)


def pings(log: SimLog) -> dict[int, list[Ping]]:
    codec = AvroCodec()
    return {
        partition: [
            codec.decode_ping(record.key, record.value)
            for record in log.broker.records(TOPIC, partition)
            if record.value is not None
        ]
        for partition in range(PARTITIONS)
    }


@pytest.fixture
def log() -> SimLog:
    return open_log()


@pytest.fixture
def pinger(log: SimLog) -> Iterator[Pinger]:
    with open_pinger(log) as each:
        yield each


def test_ping_lands_in_the_partition_that_owns_its_subject(log: SimLog, pinger: Pinger) -> None:
    subjects = ["N1", "café", "cafe\u0301", "a\x00b", " ", "x" * 1_024]

    assert all(pinger.ping(subject, latest=7) for subject in subjects)
    assert pinger.flush()

    expected: dict[int, list[Ping]] = {partition: [] for partition in range(PARTITIONS)}
    for subject in subjects:
        now_ms = log.broker.timeline.now_ms
        expected[partition_of(subject.encode(), PARTITIONS)].append(Ping(subject, 7, now_ms))
    assert pings(log) == expected
    assert pinger.counters() == PingerCounters(sent=6)


@pytest.mark.parametrize("latest", [None, 0, 1, 2**31, 2**53 + 1, 2**63 - 1])
def test_ping_carries_the_newest_sequence_id_exactly(
    latest: int | None, log: SimLog, pinger: Pinger
) -> None:
    pinger.ping("N1", latest)

    (sent,) = [ping for each in pings(log).values() for ping in each]
    assert sent.latest == latest


@pytest.mark.parametrize("subject", ["", "x" * 1_025, "🚀" * 257, "\ud800", b"N1", None, 7])
def test_ping_refuses_a_bad_subject_at_the_source(
    subject: Any, log: SimLog, pinger: Pinger
) -> None:
    with pytest.raises(BadSubjectError, match="subject"):
        pinger.ping(subject)

    assert pinger.counters() == PingerCounters()


@pytest.mark.parametrize("latest", [-1, -(2**63), 2**63, 2**64 - 1, 1.0, 1.5, True, "7"])
def test_ping_refuses_a_bad_sequence_id_naming_field_and_value(latest: Any, pinger: Pinger) -> None:
    with pytest.raises(BadSequenceError, match="latest") as caught:
        pinger.ping("N1", latest)

    assert str(latest) in str(caught.value)


def test_ping_is_dropped_and_counted_when_the_queue_is_full() -> None:
    pinger = open_pinger(open_log(Faults(send_full=1.0)))

    assert not pinger.ping("N1")
    assert pinger.counters() == PingerCounters(dropped=1)


def test_full_queue_takes_pings_again_once_the_log_has_answered() -> None:
    log = open_log(records_max=2)
    pinger = open_pinger(log)

    taken = [pinger.ping("N1", latest) for latest in range(6)]

    assert taken == [True, True, False, True, True, False]
    assert pinger.counters() == PingerCounters(sent=4, dropped=2)


def test_pings_the_client_gave_up_are_counted_as_lost() -> None:
    pinger = open_pinger(open_log(Faults(send_fail=1.0)))

    assert [pinger.ping("N1") for _ in range(70)] == [True] * 70
    assert pinger.counters() == PingerCounters(sent=70, lost=70)


def test_closed_pinger_drops_and_counts(log: SimLog) -> None:
    pinger = open_pinger(log)
    pinger.close()
    pinger.close()

    assert not pinger.ping("N1")
    assert pinger.flush()
    assert pinger.counters() == PingerCounters(dropped=1)


def test_pinger_counts_right_under_many_threads(log: SimLog, pinger: Pinger) -> None:
    def source(name: str) -> None:
        for latest in range(200):
            pinger.ping(name, latest)

    threads = [threading.Thread(target=source, args=(f"N{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert pinger.counters() == PingerCounters(sent=1_600)
    assert sum(len(each) for each in pings(log).values()) == 1_600
