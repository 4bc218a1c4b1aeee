"""The Kafka source on a real broker: odd records, deleted ones, and indexes that are lost."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from cape_stream.adapters.kafka import KafkaLog, KafkaSettings
from cape_stream.adapters.kafka.event_source import KafkaEventSource
from cape_stream.errors import Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.model.subject import partition_of
from cape_stream.ports.log import TopicSpec
from tests.event_topic import PARTITIONS, PATIENCE_S, EventTopic
from tests.waiting import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic(kafka_bootstrap: str) -> EventTopic:
    return EventTopic(kafka_bootstrap)


@pytest.fixture
def open_source(topic: EventTopic, tmp_path: Path) -> Iterator[Callable[..., KafkaEventSource]]:
    opened: list[KafkaEventSource] = []

    def open_source(folder: str = "index", **settings: Any) -> KafkaEventSource:
        given = {"wait_ms": 30_000, **settings}
        opened.append(KafkaEventSource(topic.settings, topic.name, tmp_path / folder, **given))
        return opened[-1]

    yield open_source
    for source in opened:
        source.close()


def payloads(source: KafkaEventSource, subject: str) -> list[bytes]:
    (page,) = source.fetch_many([EventQuery(subject, 0, 1_000)])
    assert isinstance(page, EventPage), page
    return [event.payload for event in page.events]


def test_source_takes_offsets_for_sequence_ids(
    topic: EventTopic, open_source: Callable[..., KafkaEventSource]
) -> None:
    for subject, value in [("A", b"1"), ("B", b"2"), ("A", b"3")]:
        topic.produce(subject, subject.encode(), value)
    source = open_source()

    (page,) = source.fetch_many([EventQuery("A", 0, 9)])

    assert isinstance(page, EventPage)
    assert [each.payload for each in page.events] == [b"1", b"3"]
    assert page.events[0].sequence < page.events[1].sequence


def test_source_shows_what_was_committed_and_nothing_else(
    topic: EventTopic, open_source: Callable[..., KafkaEventSource]
) -> None:
    """Nor does it wait for what is not: the end of the log is that of what is decided."""
    source = open_source()
    writer = Producer({**topic.settings.producer(), "transactional.id": topic.name})
    writer.init_transactions(PATIENCE_S)
    where = partition_of(b"A", PARTITIONS)
    for ending in (writer.abort_transaction, writer.commit_transaction):
        writer.begin_transaction()
        writer.produce(topic.name, ending.__name__.encode(), b"A", partition=where)
        writer.flush(PATIENCE_S)
        assert payloads(source, "A") == []
        ending(PATIENCE_S)

    # The coordinator answers before it has written the markers that make records visible.
    eventually(lambda: payloads(source, "A") == [b"commit_transaction"])


def test_source_leaves_out_records_that_are_no_events(
    topic: EventTopic, open_source: Callable[..., KafkaEventSource]
) -> None:
    for key, headers in [
        (None, {"n": "1"}),
        (b"", {"n": "1"}),
        (b"\xff", {"n": "1"}),
        (b"x" * 1_025, {"n": "1"}),
        (b"A", {}),
        (b"A", {"n": "-1"}),
        (b"A", {"n": "1.0"}),
        (b"A", {"n": str(2**63)}),
    ]:
        topic.produce("A", key, b"bad", headers)
    topic.produce("A", b"A", None, {"n": "5"})
    topic.produce("A", b"A", b"good", {"n": "6", "binary": b"\xff"})
    source = open_source(sequence_header="n")

    assert payloads(source, "A") == [b"good"]
    assert source.bad_records == 8


def test_source_counts_repeated_and_late_events_and_keeps_the_first(
    topic: EventTopic, open_source: Callable[..., KafkaEventSource]
) -> None:
    for number, value in [(1, b"a"), (5, b"b"), (5, b"again"), (3, b"late")]:
        topic.produce("A", b"A", value, {"n": str(number)})
    source = open_source(sequence_header="n")

    assert payloads(source, "A") == [b"a", b"late", b"b"]
    assert (source.repeated_records, source.late_records) == (1, 1)


def test_source_of_a_compacted_topic_forgets_what_a_tombstone_names(
    topic: EventTopic, open_source: Callable[..., KafkaEventSource]
) -> None:
    topic.produce("a/b", b"a/b/1", b"one")
    topic.produce("a/b", b"a/b/2", b"two")
    source = open_source(keys="subject/sequence")
    assert payloads(source, "a/b") == [b"one", b"two"]

    topic.produce("a/b", b"a/b/1", None)
    topic.produce("a/b", b"no-number", b"bad")

    assert payloads(source, "a/b") == [b"two"]
    assert source.bad_records == 1


def test_source_goes_on_with_its_index_and_makes_a_lost_one_anew(
    topic: EventTopic, open_source: Callable[..., KafkaEventSource], tmp_path: Path
) -> None:
    topic.produce("A", b"A", b"1")
    first = open_source()
    assert payloads(first, "A") == [b"1"]
    first.close()
    topic.produce("A", b"A", b"2")

    again = open_source()
    assert payloads(again, "A") == [b"1", b"2"]
    again.close()
    for file in (tmp_path / "index").iterdir():
        file.unlink()

    assert payloads(open_source(), "A") == [b"1", b"2"]


def test_source_goes_on_after_records_were_dropped_that_it_never_read(
    topic: EventTopic,
    open_source: Callable[..., KafkaEventSource],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Retention has passed it by: it says so, and serves what there is."""
    topic.produce("A", b"A", b"read")
    first = open_source()
    assert payloads(first, "A") == [b"read"]
    first.close()
    topic.produce("A", b"A", b"never read")
    topic.produce("A", b"A", b"kept")
    place = KafkaPartition(topic.name, partition_of(b"A", PARTITIONS), 2)
    admin = AdminClient(topic.settings.connection())
    for future in admin.delete_records([place]).values():
        future.result(PATIENCE_S)

    assert payloads(open_source(), "A") == [b"read", b"kept"]
    assert "has dropped records from 1 to 2" in caplog.text


def test_source_empties_its_index_when_the_topic_is_another_one(
    topic: EventTopic, open_source: Callable[..., KafkaEventSource]
) -> None:
    """Same name, made anew: nothing of the old one may be served."""
    topic.produce("A", b"A", b"old")
    first = open_source()
    assert payloads(first, "A") == [b"old"]
    watermark = first.changed_since(None, 9).watermark
    first.close()
    admin = AdminClient(topic.settings.connection())
    admin.delete_topics([topic.name])[topic.name].result(PATIENCE_S)
    log = KafkaLog(topic.settings)
    eventually(lambda: not log.partition_counts([topic.name]))
    log.create_topics([TopicSpec(name=topic.name, partitions=PARTITIONS, config={})])
    topic.produce("A", b"A", b"new")

    again = open_source()
    assert payloads(again, "A") == [b"new"]
    assert again.changed_since(watermark, 9).subjects == [("A", 0)]


def test_two_sources_may_share_an_index(
    topic: EventTopic, open_source: Callable[..., KafkaEventSource]
) -> None:
    sources = [open_source(), open_source()]
    for number in range(50):
        topic.produce("A", b"A", str(number).encode())

    for source in sources:
        assert payloads(source, "A") == [str(number).encode() for number in range(50)]
        assert source.repeated_records == 0


def test_source_says_how_far_it_is_when_it_has_not_caught_up(
    topic: EventTopic, open_source: Callable[..., KafkaEventSource]
) -> None:
    topic.produce("A", b"A", b"1")

    with pytest.raises(Retry, match="the index of topic"):
        open_source(wait_ms=1).fetch_many([EventQuery("A", 0, 1)])


def test_source_names_a_topic_that_is_not_there(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka_bootstrap)
    source = KafkaEventSource(settings, "no-such-topic", tmp_path, wait_ms=30_000)

    with pytest.raises(Fatal, match="no topic no-such-topic"):
        source.fetch_many([EventQuery("A", 0, 1)])
    source.close()


def test_source_says_retry_while_the_cluster_is_away(tmp_path: Path) -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:9", request_timeout_ms=1_000)
    source = KafkaEventSource(settings, "events", tmp_path, wait_ms=1_500)

    with pytest.raises(Retry):
        source.fetch_many([EventQuery("A", 0, 1)])
    source.close()
