"""Every event source under the contract suite, with the means to put events into it."""

import itertools
import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Protocol

import boto3
import psycopg
import pytest

from cape_stream.adapters.events_s3.keys import fits, key_of
from cape_stream.adapters.events_s3.source import S3EventSource
from cape_stream.adapters.kafka.event_source import KafkaEventSource
from cape_stream.adapters.sources.http import HttpEventSource
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.adapters.sources.outbox import PostgresOutbox
from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.ports.source import EventSource
from tests.event_topic import EventTopic
from tests.http_source_server import serving

COLUMNS = {
    "table": "Flight Departures",
    "subject": "tail number",
    "sequence": "leg %s",
    "payload": "pay:load",
    "headers": 'head"ers',
}
"""Names that need quoting, so that none is left unquoted."""

COLUMN_LIST = ", ".join(
    '"{}"'.format(COLUMNS[role].replace('"', '""'))
    for role in ("subject", "sequence", "payload", "headers")
)

Append = Callable[[str, int, bytes, Mapping[str, str]], None]


@dataclass
class Filled:
    """A source and its way in."""

    source: EventSource
    append: Append
    reopen: Callable[[], EventSource] | None = None
    """Make another object over the same events; None if they go with the object."""
    nul_allowed: bool = True
    """May a subject hold a NUL character? PostgreSQL's text cannot."""
    fits: Callable[[str], bool] = lambda _: True
    """Is a subject short enough? A key of S3 has as many bytes as a subject."""
    crowd: int = 40
    """How often threads ask at the same time; each event of S3 is a request of its own."""


class Make(Protocol):
    """Makes an empty source for one test."""

    def __call__(self, request: pytest.FixtureRequest) -> Filled: ...


def memory(request: pytest.FixtureRequest) -> Filled:
    source = MemoryEventSource()
    return Filled(source, source.append)


def sqlite(request: pytest.FixtureRequest, changed: str | None) -> Filled:
    folder: Path = request.getfixturevalue("tmp_path")
    path = folder / "a b?.db"
    connection = sqlite3.connect(path, check_same_thread=False)
    request.addfinalizer(connection.close)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(
        f'CREATE TABLE "{COLUMNS["table"]}" (id INTEGER PRIMARY KEY AUTOINCREMENT, '
        '"tail number" TEXT NOT NULL, "leg %s" INTEGER NOT NULL, "pay:load" BLOB NOT NULL, '
        '"head""ers" JSON, UNIQUE ("tail number", "leg %s"))'
    )

    def append(subject: str, sequence: int, payload: bytes, headers: Mapping[str, str]) -> None:
        connection.execute(
            f'INSERT INTO "{COLUMNS["table"]}" ({COLUMN_LIST}) VALUES (?, ?, ?, ?)',
            (subject, sequence, payload, json.dumps(dict(headers))),
        )
        connection.commit()

    return _opened(f"sqlite:///{path}".replace("?", "%3F"), changed, append, request)


def postgres(request: pytest.FixtureRequest, changed: str | None) -> Filled:
    url: str = request.getfixturevalue("postgres_url")
    connection = psycopg.connect(url, autocommit=True)
    request.addfinalizer(connection.close)
    connection.execute(f'DROP TABLE IF EXISTS "{COLUMNS["table"]}"')
    connection.execute(
        f'CREATE TABLE "{COLUMNS["table"]}" (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, '
        '"tail number" TEXT NOT NULL, "leg %s" BIGINT NOT NULL, "pay:load" BYTEA NOT NULL, '
        '"head""ers" JSONB, UNIQUE ("tail number", "leg %s"))'
    )

    def append(subject: str, sequence: int, payload: bytes, headers: Mapping[str, str]) -> None:
        connection.execute(
            f'INSERT INTO "{COLUMNS["table"]}" ({COLUMN_LIST.replace("%", "%%")}) '
            "VALUES (%s, %s, %s, %s)",
            (subject, sequence, payload, json.dumps(dict(headers))),
        )

    filled = _opened(url, changed, append, request)
    filled.nul_allowed = False
    return filled


def postgres_outbox(request: pytest.FixtureRequest) -> Filled:
    url: str = request.getfixturevalue("postgres_url")
    connection = psycopg.connect(url, autocommit=True)
    request.addfinalizer(connection.close)
    connection.execute("DROP TABLE IF EXISTS contract_outbox")

    def append(subject: str, sequence: int, payload: bytes, headers: Mapping[str, str]) -> None:
        connection.execute(
            "INSERT INTO contract_outbox (subject, sequence, payload, headers) "
            "VALUES (%s, %s, %s, %s)",
            (subject, sequence, payload, json.dumps(dict(headers))),
        )

    def reopen() -> PostgresOutbox:
        source = PostgresOutbox(url, table="contract_outbox")
        request.addfinalizer(source.close)
        return source

    source = reopen()
    source.create()
    return Filled(source, append, reopen, nul_allowed=False)


def http(request: pytest.FixtureRequest) -> Filled:
    stack = ExitStack()
    request.addfinalizer(stack.close)
    service = stack.enter_context(serving())

    def reopen() -> HttpEventSource:
        source = HttpEventSource(service.url, timeout_ms=30_000)
        request.addfinalizer(source.close)
        return source

    return Filled(reopen(), service.events.append, reopen)


def kafka(request: pytest.FixtureRequest) -> Filled:
    folder: Path = request.getfixturevalue("tmp_path")
    topic = EventTopic(request.getfixturevalue("kafka_bootstrap"))
    numbers = itertools.count()

    def append(subject: str, sequence: int, payload: bytes, headers: Mapping[str, str]) -> None:
        topic.produce(subject, subject.encode(), payload, {**headers, "n": str(sequence)})

    def reopen() -> KafkaEventSource:
        place = folder / str(next(numbers))
        source = KafkaEventSource(
            topic.settings, topic.name, place, sequence_header="n", wait_ms=30_000
        )
        request.addfinalizer(source.close)
        return source

    return Filled(reopen(), append, reopen)


def s3(request: pytest.FixtureRequest) -> Filled:
    settings: SqsSettings = request.getfixturevalue("moto")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    patch.setenv("AWS_ENDPOINT_URL_S3", settings.endpoint_url)
    patch.setenv("AWS_DEFAULT_REGION", settings.region)
    client = boto3.client("s3")
    request.addfinalizer(client.close)
    bucket = f"events-{token_hex(6)}"
    client.create_bucket(Bucket=bucket)

    def append(subject: str, sequence: int, payload: bytes, headers: Mapping[str, str]) -> None:
        client.put_object(
            Bucket=bucket,
            Key=key_of("flights/", subject, sequence),
            Body=payload,
            Metadata={"headers": json.dumps(dict(headers))},
        )

    def reopen() -> S3EventSource:
        source = S3EventSource(bucket, "flights")
        request.addfinalizer(source.close)
        return source

    return Filled(reopen(), append, reopen, fits=lambda subject: fits("flights/", subject), crowd=3)


def _opened(
    url: str,
    changed: str | None,
    append: Append,
    request: pytest.FixtureRequest,
) -> Filled:
    def reopen() -> EventSource:
        source = SqlEventSource(
            url,
            table=COLUMNS["table"],
            subject=COLUMNS["subject"],
            sequence=COLUMNS["sequence"],
            payload=COLUMNS["payload"],
            headers=COLUMNS["headers"],
            changed=changed,
        )
        request.addfinalizer(source.close)
        return source

    return Filled(reopen(), append, reopen)


def _sqlite_by_id(request: pytest.FixtureRequest) -> Filled:
    return sqlite(request, "id")


def _sqlite_by_subject(request: pytest.FixtureRequest) -> Filled:
    return sqlite(request, None)


def _postgres_by_id(request: pytest.FixtureRequest) -> Filled:
    return postgres(request, "id")


def _postgres_by_subject(request: pytest.FixtureRequest) -> Filled:
    return postgres(request, None)


IMPLEMENTATIONS = [
    pytest.param(memory, id="memory"),
    pytest.param(_sqlite_by_id, id="sqlite-by-id"),
    pytest.param(_sqlite_by_subject, id="sqlite-by-subject"),
    pytest.param(_postgres_by_id, id="postgres-by-id", marks=pytest.mark.postgres),
    pytest.param(_postgres_by_subject, id="postgres-by-subject", marks=pytest.mark.postgres),
    pytest.param(postgres_outbox, id="postgres-outbox", marks=pytest.mark.postgres),
    pytest.param(http, id="http"),
    pytest.param(s3, id="s3", marks=pytest.mark.timeout(180)),
    pytest.param(kafka, id="kafka", marks=pytest.mark.kafka),
]
