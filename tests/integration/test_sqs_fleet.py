"""`cape processor` as a process, on both SQS servers: signals, kills, fatal documents."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.ports.queue import QueueMessage
from cape_stream.queues.messages import ingest
from tests.integration.sqs_fleet import PATIENCE_S, Fleet, own_moto, report_of, until

SERVERS = [
    pytest.param("moto", id="moto"),
    pytest.param("elasticmq", id="elasticmq", marks=pytest.mark.elasticmq),
]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> SqsSettings:
    found: SqsSettings = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def fleet(server: SqsSettings, tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(server, tmp_path)
    yield found
    found.end()


def test_two_signals_let_what_runs_finish_and_hand_the_rest_back(fleet: Fleet) -> None:
    fleet.add(*((f"d{n}", "2.5") for n in range(12)))
    worker = fleet.start()
    fleet.wait("begin", 8)

    worker.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    worker.send_signal(signal.SIGTERM)
    report = report_of(worker)

    assert worker.returncode == 0, report
    assert report["adds_up"]
    assert report["done"] == len(fleet.lines("end")) >= 8
    assert report["received"] == report["done"] + report["handed_back"]
    assert fleet.depth() == (12 - report["done"], 0)


def test_hung_handler_is_handed_back_and_the_process_ends(fleet: Fleet) -> None:
    fleet.add(("hung", "hang"), ("fine", "0"))
    worker = fleet.start()
    fleet.wait("end", 1)
    fleet.wait("begin", 2)

    worker.send_signal(signal.SIGTERM)
    report = report_of(worker)

    assert worker.returncode == 0, report
    assert (report["hung"], report["handed_back"]) == (1, 1)
    assert fleet.depth() == (1, 0)


def test_messages_of_a_killed_worker_come_to_another(fleet: Fleet) -> None:
    fleet.add(*((f"d{n}", "1.5") for n in range(6)))
    visibility = ("--set", "processor.visibility_s=3")
    first = fleet.start(*visibility)
    fleet.wait("begin", 4)
    first.kill()

    second = fleet.start(*visibility)
    until(lambda: len(set(fleet.lines("end"))) == 6)
    second.send_signal(signal.SIGTERM)
    report = report_of(second)

    assert second.returncode == 0, report
    assert fleet.depth() == (0, 0)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", ["fail", "die"])
def test_document_that_kills_its_handler_is_parked_unchanged_after_three_receives(
    server: SqsSettings, tmp_path: Path, fault: str
) -> None:
    fleet = Fleet(server, tmp_path, receives_max=3)
    bad = ingest.Document(document_id="bad", source="s", uri=fault, tenant="t")
    body = ingest.TYPE.outgoing(bad).body
    client = boto3.client("sqs", endpoint_url=server.endpoint_url, region_name=server.region)
    url = client.get_queue_url(QueueName=f"{fleet.prefix}ingest")["QueueUrl"]
    trace = {"trace": {"DataType": "String", "StringValue": "t-7"}}
    try:
        sent = client.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=trace)
        if fault == "fail":  # one that is received beside a killer dies with it
            fleet.add(("beside", "0"))
        setting = ("--set", "processor.visibility_s=2")
        deadline_s = time.monotonic() + 3 * PATIENCE_S  # three starts, one after the other
        worker = fleet.start(*setting)
        while fleet.depth("ingest-dead") == (0, 0):
            assert time.monotonic() < deadline_s, fleet.scribe.read_text()
            if worker.poll() is not None:
                worker = fleet.start(*setting)
            time.sleep(0.2)
        fleet.add(("behind", "0"))
        others = {"beside", "behind"} if fault == "fail" else {"behind"}
        until(lambda: set(fleet.lines("end")) == others)

        assert fleet.lines("begin").count("bad") == 3

        async def letter(server: SqsServer) -> QueueMessage:
            queue = await server.open(f"{fleet.prefix}ingest-dead")
            (found,) = await queue.receive(1, 1, 1)
            return found

        parked = fleet.do(letter)
        assert (parked.message_id, parked.body) == (sent["MessageId"], body)
        assert parked.attributes == {"trace": "t-7"}
    finally:
        client.close()
        fleet.end()


def test_drain_whose_deletes_never_arrive_does_not_add_up_and_the_exit_code_says_so(
    aws_credentials: None, tmp_path: Path
) -> None:
    with own_moto() as (endpoint, server):
        fleet = Fleet(SqsSettings(endpoint_url=endpoint), tmp_path)
        try:
            fleet.add(("d1", "2.0"))
            worker = fleet.start()
            fleet.wait("begin", 1)
            server.kill()
            server.wait()

            worker.send_signal(signal.SIGTERM)
            report = report_of(worker)

            assert worker.returncode == 1
            assert not report["adds_up"]
            assert report["received"] == 1
            assert report["done"] == 0
        finally:
            fleet.end()
