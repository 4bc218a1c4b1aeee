"""The S3 source on moto: odd keys, bad objects, refused credentials."""

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import boto3
import pytest

from cape_stream.adapters.events_s3.keys import BadKeyError, key_of, parse_key
from cape_stream.adapters.events_s3.source import S3EventSource
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.errors import Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault


@pytest.fixture
def client(moto: SqsSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", moto.region)
    client = boto3.client("s3")
    yield client
    client.close()


@pytest.fixture
def bucket(client: Any) -> str:
    name = f"events-{token_hex(6)}"
    client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def source(bucket: str) -> Iterator[S3EventSource]:
    source = S3EventSource(bucket, "p", event_bytes_max=1_000)
    yield source
    source.close()


def put(client: Any, bucket: str, key: str, body: bytes = b"x", **metadata: str) -> None:
    client.put_object(Bucket=bucket, Key=key, Body=body, Metadata=metadata)


def ask(source: S3EventSource, subject: str) -> list[int] | str:
    (answer,) = source.fetch_many([EventQuery(subject, 0, 100)])
    if isinstance(answer, QueryFault):
        return answer.reason
    return [event.sequence for event in answer.events]


@pytest.mark.parametrize("subject", ["a", "..", "a/b", "%2F", "ü \0", "a.b", "A+b"])
def test_key_names_its_subject_and_no_other(subject: str) -> None:
    key = key_of("p/", subject, 7)

    assert parse_key("p/", key) == (subject, 7)
    assert "/../" not in key
    assert key.count("/") == 2


@pytest.mark.parametrize(
    "name",
    [
        *("S/7", "S/000000000000000007", "S/x000000000000000007", "0000000000000000007"),
        *("S/deeper/0000000000000000007", "%ff/0000000000000000007", "a.b/0000000000000000007"),
        "S/9223372036854775808",
    ],
)
def test_key_that_is_spelled_otherwise_is_refused(name: str) -> None:
    with pytest.raises(BadKeyError, match="is not p/SUBJECT/nnnnnnnnnnnnnnnnnnn"):
        parse_key("p/", f"p/{name}")


@pytest.mark.parametrize("name", ["7", "notes.txt", "9999999999999999999"])
def test_source_faults_a_subject_with_a_foreign_object_and_serves_its_neighbour(
    client: Any, bucket: str, source: S3EventSource, name: str
) -> None:
    """It may be an event whose writer forgot the zeros: what is skipped is lost for good."""
    put(client, bucket, f"p/S/{name}")
    put(client, bucket, key_of("p/", "T", 1))

    reason = ask(source, "S")

    assert isinstance(reason, str)
    assert f"p/S/{name}" in reason
    assert ask(source, "T") == [1]
    assert dict(source.changed_since(None, 9).subjects) == {"T": 1}


def test_source_takes_markers_of_folders_for_nothing(
    client: Any, bucket: str, source: S3EventSource
) -> None:
    put(client, bucket, "p/S/", b"")
    put(client, bucket, key_of("p/", "S", 0))

    assert ask(source, "S") == [0]


@pytest.mark.parametrize("text", ["not json", "[]", '{"a": 1}'])
def test_source_faults_headers_that_are_none(
    client: Any, bucket: str, source: S3EventSource, text: str
) -> None:
    put(client, bucket, key_of("p/", "S", 3), headers=text)

    assert "metadata headers of p/S/0000000000000000003" in ask(source, "S")


def test_source_faults_an_object_that_is_too_large(
    client: Any, bucket: str, source: S3EventSource
) -> None:
    put(client, bucket, key_of("p/", "S", 3), b"x" * 1_001)

    assert "has 1001 bytes" in ask(source, "S")


def test_source_ends_a_page_before_an_object_that_is_young(client: Any, bucket: str) -> None:
    put(client, bucket, key_of("p/", "S", 3))
    settling = S3EventSource(bucket, "p", settle_ms=3_600_000)

    assert ask(settling, "S") == []
    settling.close()


def test_source_reads_more_events_than_one_listing_has(
    client: Any, bucket: str, source: S3EventSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cape_stream.adapters.events_s3.source.LIST_MAX", 4)
    for number in range(11):
        put(client, bucket, key_of("p/", "S", number))

    assert ask(source, "S") == list(range(11))
    assert source.changed_since(None, 9).subjects == [("S", 10)]


def test_sweep_ends_in_time_within_a_subject_of_many_objects(
    client: Any, bucket: str, source: S3EventSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on where it stopped, and reports the newest at last."""
    monkeypatch.setattr("cape_stream.adapters.events_s3.source.LIST_MAX", 2)
    monkeypatch.setattr("cape_stream.adapters.events_s3.source.LISTS_A_CALL", 2)
    for number in range(7):
        put(client, bucket, key_of("p/", "S", number))

    first = source.changed_since(None, 9)
    second = source.changed_since(first.watermark, 9)

    assert (first.subjects, first.more) == ([("S", 3)], True)
    assert (second.subjects, second.more) == ([("S", 6)], False)


def test_source_names_a_bucket_that_is_not_there(client: Any) -> None:
    missing = S3EventSource("no-such-bucket", "p")

    for call in (lambda: ask(missing, "S"), lambda: missing.changed_since(None, 9)):
        with pytest.raises(Fatal, match=r"s3://no-such-bucket/p.*NoSuchBucket"):
            call()
    missing.close()


def test_source_without_credentials_is_refused(
    client: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    nobody = S3EventSource(bucket)

    with pytest.raises(Fatal, match="credentials"):
        ask(nobody, "S")
    nobody.close()


def test_source_says_retry_while_s3_is_away(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    away = S3EventSource("events")

    with pytest.raises(Retry, match="cannot be read"):
        ask(away, "S")
    away.close()


def test_source_sees_an_event_as_soon_as_it_is_written(
    client: Any, bucket: str, source: S3EventSource
) -> None:
    put(client, bucket, key_of("p/", "S", 5), b"body", headers='{"kind": "\\u00fc"}')

    (page,) = source.fetch_many([EventQuery("S", 5, 1)])

    assert isinstance(page, EventPage)
    assert [(each.payload, each.headers) for each in page.events] == [(b"body", {"kind": "ü"})]
