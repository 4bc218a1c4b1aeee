"""Each event source with the demo's flights: asked alone, and through a domain to a handler.

Alone: every aircraft from its first leg on, 200 aircraft a call, 100 events a page, one thread.
Through a domain: one process with dispatcher, worker and refresh on the embedded log, one topology
that counts; nobody pings, refresh finds everything. CPU is this process's own, so it leaves servers
out; what a source costs in a domain is what it has above memory. Servers run on the same machine.

Usage: make bench-sources [ARGS="--events 10000 --s3-events 500 --only sqlite,http"]
"""

import argparse
import itertools
import json
import logging
import multiprocessing
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import boto3
import psycopg
from moto.server import ThreadedMotoServer

from cape_stream.adapters.events_s3.keys import key_of
from cape_stream.adapters.events_s3.source import S3EventSource
from cape_stream.adapters.kafka.event_source import KafkaEventSource
from cape_stream.adapters.sources.http import HttpEventSource
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.adapters.sources.outbox import PostgresOutbox
from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.demos.flights.departures import make_table
from cape_stream.model.request import EventPage, EventQuery
from cape_stream.ports.source import EventSource
from cape_stream.roles.run import opened
from cape_stream.roles.settings_loading import load_settings
from cape_stream.sdk import App, Batch
from deploy.local.broker import LocalBroker
from tests.bench.figures import yardstick_us
from tests.event_topic import EventTopic
from tests.http_source_server import serving
from tests.postgres import local_postgres

Row = tuple[str, int, bytes]
SUBJECTS_A_CALL, PAGE = 200, 100
GIVE_UP_S = 600
BUCKET = "flights"


def main() -> None:
    """Print a table, then one JSON object."""
    options = _options()
    rows_shown = []
    print(
        "| source | events | alone, events/s | alone, CPU us | domain, events/s | domain, CPU us |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="cape-bench-") as folder:
        table = Path(folder) / "flights.sqlite"
        make_table(table, options.events)
        warm_up(Path(folder))
        for name in options.only.split(","):
            events = read_rows(table, options.s3_events if name == "s3" else options.events)
            with ExitStack() as stack:
                place = Path(folder) / name
                place.mkdir()
                source = stack.enter_context(SOURCES[name](table, events, place))
                row = measure(name, source, events, place)
            rows_shown.append(row)
            print("| " + " | ".join(str(each) for each in row.values()) + " |", flush=True)
    print(json.dumps({"sources": rows_shown, "yardstick_us": yardstick_us()}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, default=20_000, help="flights, the first ones")
    parser.add_argument("--s3-events", type=int, default=500, help="for S3: a request each")
    parser.add_argument("--only", default=",".join(SOURCES), help="names, separated by commas")
    return parser.parse_args()


def read_rows(table: Path, events: int) -> list[Row]:
    """(aircraft, leg, payload) in the order in which they were loaded."""
    with closing(sqlite3.connect(table)) as database:
        rows = database.execute(
            "SELECT tail_number, leg, payload FROM departures ORDER BY id LIMIT ?", (events,)
        )
        return [(s, n, p.encode() if isinstance(p, str) else bytes(p)) for s, n, p in rows]


def measure(
    name: str, source: EventSource, events: Sequence[Row], place: Path
) -> dict[str, object]:
    """One row of the table."""
    alone_s, alone_cpu_s = ask_alone(source, {subject for subject, _, _ in events}, len(events))
    domain_s, domain_cpu_s = deliver(source, len(events), place)
    count = len(events)
    return {
        "source": name,
        "events": count,
        "alone_events_per_s": round(count / alone_s),
        "alone_cpu_us": round(alone_cpu_s / count * 1e6, 1),
        "domain_events_per_s": round(count / domain_s),
        "domain_cpu_us": round(domain_cpu_s / count * 1e6, 1),
    }


def warm_up(folder: Path) -> None:
    """One delivery that nobody counts: what is imported and compiled is the same for all."""
    source = MemoryEventSource()
    source.append_many((f"S{number}", 0, b"{}") for number in range(500))
    deliver(source, 500, folder / "warm-up")


def ask_alone(source: EventSource, subjects: set[str], count: int) -> tuple[float, float]:
    """Seconds and CPU seconds to read everything once, after one call that warms up."""
    source.fetch_many([EventQuery(next(iter(subjects)), 0, 1)])
    queries = [EventQuery(subject, 0, PAGE) for subject in sorted(subjects)]
    began_s, cpu_s, found = time.perf_counter(), time.process_time(), 0
    while queries:
        asked, queries = queries[:SUBJECTS_A_CALL], queries[SUBJECTS_A_CALL:]
        for answer in source.fetch_many(asked):
            assert isinstance(answer, EventPage), answer
            found += len(answer.events)
            if len(answer.events) == PAGE:
                start = answer.events[-1].sequence + 1
                queries.append(EventQuery(answer.query.subject, start, PAGE))
    assert found == count, f"{found} of {count} events"
    return time.perf_counter() - began_s, time.process_time() - cpu_s


def deliver(source: EventSource, count: int, place: Path) -> tuple[float, float]:
    """Seconds and CPU seconds until a handler has had everything once."""
    done = itertools.count()
    had = 0
    app = App("bench", partitions=2)

    @app.domain("flights", source=source).topology("count").handler()
    def take(batch: Batch) -> None:
        nonlocal had
        for _ in batch:
            had = next(done) + 1

    given = {"process.data_dir": str(place / "data"), "refresh.interval_ms": 200}
    began_s, cpu_s = time.perf_counter(), time.process_time()
    with opened(app, load_settings(given, {})) as crew:
        crew.start()
        while had < count:
            assert crew.failure is None, crew.failure
            assert time.perf_counter() - began_s < GIVE_UP_S, f"{had} of {count} events"
            time.sleep(0.01)
        return time.perf_counter() - began_s, time.process_time() - cpu_s


# ---------------------------------------------------------------------------- the sources, filled


@contextmanager
def _memory(table: Path, events: Sequence[Row], place: Path) -> Iterator[EventSource]:
    source = MemoryEventSource()
    source.append_many(events)
    yield source


@contextmanager
def _sqlite(table: Path, events: Sequence[Row], place: Path) -> Iterator[EventSource]:
    source = SqlEventSource(
        f"sqlite:///{table}",
        table="departures",
        subject="tail_number",
        sequence="leg",
        changed="id",
    )
    with closing(source):
        yield source


@contextmanager
def _postgres(table: Path, events: Sequence[Row], place: Path) -> Iterator[EventSource]:
    with local_postgres() as url:
        outbox = PostgresOutbox(url, notifies=False)
        outbox.create()
        copying = "COPY outbox (subject, sequence, payload) FROM STDIN"
        with psycopg.connect(url) as writer, writer.cursor().copy(copying) as copy:
            for row in events:
                copy.write_row(row)
        with closing(outbox):
            yield outbox


@contextmanager
def _http(table: Path, events: Sequence[Row], place: Path) -> Iterator[EventSource]:
    with _served(_serve_http, events) as url, closing(HttpEventSource(url)) as source:
        yield source


@contextmanager
def _kafka(table: Path, events: Sequence[Row], place: Path) -> Iterator[EventSource]:
    with LocalBroker() as broker:
        topic = EventTopic(broker.bootstrap)
        for subject, sequence, payload in events:
            topic.send(subject, payload, {"n": str(sequence)})
        topic.flush()
        source = KafkaEventSource(
            topic.settings, topic.name, place, sequence_header="n", wait_ms=120_000
        )
        with closing(source):
            yield source


@contextmanager
def _s3(table: Path, events: Sequence[Row], place: Path) -> Iterator[EventSource]:
    given = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    os.environ.update(given, AWS_DEFAULT_REGION="us-east-1")
    with _served(_serve_s3, events) as url:
        os.environ["AWS_ENDPOINT_URL_S3"] = url
        with closing(boto3.client("s3")) as client:
            client.create_bucket(Bucket=BUCKET)
            for subject, sequence, payload in events:
                client.put_object(Bucket=BUCKET, Key=key_of("p/", subject, sequence), Body=payload)
        with closing(S3EventSource(BUCKET, "p", read_timeout_ms=30_000)) as source:
            yield source


@contextmanager
def _served(serve: Callable[[Connection, Sequence[Row]], None], events: Any) -> Iterator[str]:
    """A server in a process of its own, whose CPU is not ours; yields its URL."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, events))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("end")
        process.join()


def _serve_http(pipe: Connection, events: Sequence[Row]) -> None:
    with serving() as service:
        service.events.append_many(events)
        pipe.send(service.url)
        pipe.recv()


def _serve_s3(pipe: Connection, events: Sequence[Row]) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    pipe.send(f"http://{host}:{port}")
    pipe.recv()
    server.stop()


SOURCES = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "http": _http,
    "kafka": _kafka,
    "s3": _s3,
}

if __name__ == "__main__":
    main()
