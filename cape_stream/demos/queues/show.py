"""The demo's course: put objects, scan them, stop a worker half way, prove, tell."""

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cape_stream.adapters.sqs.object_store import S3ObjectStore
from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.demos.queues.scanning import (
    VIRUS,
    AddressScanner,
    VerdictLog,
    VirusScanner,
    app,
    delivered,
)
from cape_stream.errors import Fatal
from cape_stream.queues.fleet import BY_NAME
from cape_stream.queues.lane import Lane
from cape_stream.queues.ledger import DrainReport
from cape_stream.queues.messages import file_scan
from cape_stream.queues.processor import Processor
from cape_stream.queues.settings import ProcessorSettings
from cape_stream.roles.backends import Backend, open_backend
from cape_stream.roles.crew import Crew, raise_failure
from cape_stream.roles.run import ROLES
from cape_stream.roles.settings_loading import load_settings
from cape_stream.roles.topics import topic_specs
from cape_stream.runtime.steady import SteadyClock
from cape_stream.sdk.pinger import Pinger

OBJECTS = 300
INFECTED_EVERY = 7
PERSONAL_EVERY = 5
BUCKET = "uploads"
STALLED_S = 60.0
SPEC = BY_NAME[file_scan.QUEUE]


def main() -> int:
    """Run the demo; 0 if the topology got the right verdicts of every object, once each."""
    parser = argparse.ArgumentParser(prog="demo-queues", description=__doc__)
    parser.add_argument("--objects", type=int, default=OBJECTS, metavar="N")
    parser.add_argument("--json", action="store_true", help="print nothing but the result")
    options = parser.parse_args()
    try:
        with TemporaryDirectory(prefix="cape-demo-") as folder, _aws() as settings:
            return _play(options, Path(folder), settings)
    except Fatal as error:
        sys.stderr.write(f"demo-queues: {error}\n")
        return 1


def _play(options: argparse.Namespace, folder: Path, aws: SqsSettings) -> int:
    settings = load_settings({"process.data_dir": str(folder)}, {}, os.devnull)
    began_s = time.monotonic()
    with open_backend("embedded", settings) as backend:
        backend.log.create_topics(topic_specs(app))
        crew = Crew([role(app, backend, settings) for role in ROLES.values()])
        crew.start()
        try:
            reports = asyncio.run(_deliver(options, backend, aws, crew))
        finally:
            crew.stop()
    raise_failure(crew.failure)
    result = _result(options.objects, reports, time.monotonic() - began_s)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if result["proved"] else 1


async def _deliver(
    options: argparse.Namespace, backend: Backend, aws: SqsSettings, crew: Crew
) -> list[DrainReport]:
    say = _silent if options.json else _say
    server, store = SqsServer(aws), S3ObjectStore(aws)
    pinger = Pinger(
        backend.log,
        backend.codec,
        backend.clock,
        topic=app.topic_names.pings("files"),
        partitions=app.partitions,
    )
    reports: list[DrainReport] = []
    try:
        await _set_up(server, aws)
        say(f"bucket {BUCKET} tells queue {aws.prefix}{SPEC.name}; S3 has sent its test event")
        for number in range(options.objects):
            await store.put(BUCKET, _key(number), _content(number))
        say(f"{options.objects} objects are in S3")
        log = VerdictLog(pinger)
        for goal in (options.objects // 2, options.objects):
            async with _working(server, store, log, aws, reports):
                await _until_delivered(goal, crew)
            say(f"worker {len(reports)} stopped: {reports[-1].as_json()}")
    finally:
        pinger.close()
        await server.close()
        await store.close()
    return reports


@asynccontextmanager
async def _working(
    server: SqsServer,
    store: S3ObjectStore,
    log: VerdictLog,
    aws: SqsSettings,
    reports: list[DrainReport],
) -> AsyncIterator[None]:
    """A worker at work inside the block, and its report behind it."""
    handlers: dict[str, Any] = {
        file_scan.OBJECTS: file_scan.FileScanHandler(
            store, [VirusScanner(), AddressScanner()], log
        ),
        file_scan.TEST_EVENT: file_scan.acknowledge_test_event,
    }
    queue = await server.open(aws.prefix + SPEC.name)
    lane = Lane(queue, SPEC.contract, handlers, replace(SPEC.settings, pollers_max=2))
    settings = ProcessorSettings(wait_s=1, grace_ms=10_000)
    processor = Processor([lane], settings, SteadyClock())
    running = asyncio.create_task(processor.run())
    try:
        yield
    finally:
        processor.stop()
        reports.append(await running)


async def _until_delivered(goal: int, crew: Crew) -> None:
    """Wait until the topology has verdicts of so many objects.

    Raises:
        Fatal: nothing happens any more.
    """
    last, moved_s = -1, time.monotonic()
    while len(delivered) < goal:
        raise_failure(crew.failure)
        if len(delivered) != last:
            last, moved_s = len(delivered), time.monotonic()
        elif time.monotonic() - moved_s > STALLED_S:
            raise Fatal(f"nothing was delivered for {STALLED_S:.0f} s, {last} of {goal} are there")
        await asyncio.sleep(0.05)


async def _set_up(server: SqsServer, aws: SqsSettings) -> None:
    """A bucket that tells the queue what was put into it."""
    import boto3

    await server.create(aws.prefix + SPEC.dead_letter_name)
    queue = await server.create(
        aws.prefix + SPEC.name,
        dead_letter_queue=aws.prefix + SPEC.dead_letter_name,
        receives_max=SPEC.receives_max,
    )

    def work() -> None:
        client = boto3.client("s3", endpoint_url=aws.endpoint_url, region_name=aws.region)
        client.create_bucket(Bucket=BUCKET)
        account = queue.traits.place.split("/")[-2]
        arn = f"arn:aws:sqs:{aws.region}:{account}:{queue.traits.name}"
        told = {"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}
        client.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"QueueConfigurations": [told]}
        )
        client.close()

    await asyncio.to_thread(work)


@contextmanager
def _aws() -> Iterator[SqsSettings]:
    """A moto server in this process, and credentials for it."""
    try:
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        raise Fatal("the demo needs moto with its s3 and sqs extras: make setup") from error
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ[name] = "demo"  # moto takes any
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield SqsSettings(endpoint_url=f"http://{host}:{port}")
    finally:
        server.stop()


def _key(number: int) -> str:
    return f"reports/{number} plan + notes (100%)/café.txt"


def _content(number: int) -> bytes:
    content = f"object {number}\n".encode()
    if number % INFECTED_EVERY == 0:
        content += VIRUS
    if number % PERSONAL_EVERY == 0:
        content += b" write to ada@example.com"
    return content


def _result(objects: int, reports: list[DrainReport], wall_s: float) -> dict[str, Any]:
    expected = {
        f"{BUCKET}/{_key(number)}": [
            {
                "virus": number % INFECTED_EVERY != 0,
                "personal-data": number % PERSONAL_EVERY != 0,
            }
        ]
        for number in range(objects)
    }
    add_up = all(report.adds_up for report in reports)
    return {
        "objects": objects,
        "delivered": sum(map(len, delivered.values())),
        "infected": sum(not row["virus"] for rows in delivered.values() for row in rows),
        "personal_data": sum(
            not row["personal-data"] for rows in delivered.values() for row in rows
        ),
        "received": sum(report.received for report in reports),
        "handed_back": sum(report.fates.get("handed_back", 0) for report in reports),
        "drains_add_up": add_up,
        "wall_s": round(wall_s, 1),
        "proved": delivered == expected and add_up,
    }


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _silent(text: str) -> None:
    """Say nothing."""
