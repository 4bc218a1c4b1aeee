"""What a worker process shares with others, whom it works for, and what an operator can do."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from cape_stream.adapters.deliveries_sql import SqlDeliveries
from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.cli import main
from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.ports.queue import OutgoingMessage
from cape_stream.queues.messages import training
from cape_stream.queues.messages.email_send import send_mail
from cape_stream.queues.messages.steps import StepCaller
from cape_stream.roles.fleet_valkey import ValkeyResults
from tests.contract.test_deliveries import database_of_its_own
from tests.integration.sqs_fleet import MAIL_QUEUES, PATIENCE_S, Fleet, report_of, until
from tests.unit.queues.test_envelopes import read, unwrapped

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def fleet(moto: SqsSettings, tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(moto, tmp_path)
    yield found
    found.end()


def test_caller_in_another_process_gets_the_answer_of_a_step_through_valkey(
    fleet: Fleet, valkey: Any
) -> None:
    worker = fleet.start(CAPE_VALKEY_URL=valkey.url)

    async def call(server: SqsServer) -> Any:
        store = AsyncStore(ValkeySettings(url=valkey.url))
        queue = await server.open(f"{fleet.prefix}steps")
        caller = StepCaller(queue, ValkeyResults(store))
        found = await caller.call("add", {"left": 3, "right": 4}, timeout_ms=45_000)
        await store.close()
        return found

    assert fleet.do(call) == 7
    worker.send_signal(signal.SIGTERM)
    assert report_of(worker)["done"] == 1


def test_caller_gets_its_answer_though_the_first_worker_is_killed_in_the_step(
    fleet: Fleet, valkey: Any
) -> None:
    setting = ("--set", "processor.visibility_s=2")
    first = fleet.start(*setting, CAPE_VALKEY_URL=valkey.url)

    async def call(server: SqsServer) -> Any:
        store = AsyncStore(ValkeySettings(url=valkey.url))
        caller = StepCaller(await server.open(f"{fleet.prefix}steps"), ValkeyResults(store))
        answer = asyncio.ensure_future(caller.call("survive", {}, timeout_ms=45_000))
        await asyncio.to_thread(first.wait, PATIENCE_S)
        second = fleet.start(*setting, CAPE_VALKEY_URL=valkey.url)
        found = await answer
        await store.close()
        second.terminate()
        return found

    assert fleet.do(call) == "attempt 2"
    assert report_of(fleet.workers[1])["done"] == 1


def test_workers_on_different_machines_share_what_became_of_mails(
    fleet: Fleet, postgres_url: str, tmp_path: Path
) -> None:
    url = database_of_its_own(postgres_url)
    bounce, alarm = (read(f"ses-{name}.json") for name in ("bounce", "reputation"))
    message_id = json.loads(unwrapped("ses-bounce.json"))["mail"]["messageId"]

    for number in range(2):
        fleet.put("ses-events", OutgoingMessage(bounce))
        fleet.put("ses-reputation", OutgoingMessage(alarm))
        data = ("--data", str(tmp_path / f"machine-{number}"))
        worker = fleet.start(*data, "--verbose", CAPE_DELIVERIES_URL=url)
        until(lambda: [fleet.depth(name) for name in MAIL_QUEUES] == [(0, 0)] * 3)
        worker.terminate()
        _, errors = worker.communicate(timeout=PATIENCE_S)
        assert worker.returncode == 0, errors
        begun = errors.partition("pool general drains")[0]
        assert ("mail is paused: ses-bounce-rate-high" in begun) == (number == 1)

    store = SqlDeliveries(url)
    assert len(asyncio.run(store.history(message_id))) == 1
    store.close()


def mails_sent(settings: SqsSettings) -> int:
    client = boto3.client("ses", endpoint_url=settings.endpoint_url, region_name=settings.region)
    found = client.get_send_quota()["SentLast24Hours"]
    client.close()
    return int(found)


@pytest.mark.timeout(240)
def test_mail_goes_out_through_ses_and_waits_while_the_account_is_in_danger(fleet: Fleet) -> None:
    sender = f"{fleet.prefix}news@example.com"
    client = boto3.client(
        "sesv2", endpoint_url=fleet.settings.endpoint_url, region_name=fleet.settings.region
    )
    client.create_email_identity(EmailIdentity=sender)
    client.close()
    before = mails_sent(fleet.settings)
    over = json.loads(unwrapped("ses-reputation.json"))
    over |= {"NewStateValue": "OK", "StateChangeTime": "2026-03-02T13:00:00.000+0000"}
    worker = fleet.start()

    fleet.put("ses-reputation", OutgoingMessage(read("ses-reputation.json")))
    until(lambda: fleet.depth("ses-reputation") == (0, 0))

    async def send(server: SqsServer) -> None:
        queue = await server.open(f"{fleet.prefix}email-send")
        await send_mail(
            queue,
            tenant="Müller & Söhne",
            sender=sender,
            subject="Grüße",
            text="t",
            recipients=["a@example.com", "b@example.com"],
        )

    fleet.do(send)
    until(lambda: fleet.depth("email-send") == (0, 1))
    assert mails_sent(fleet.settings) == before

    fleet.put("ses-reputation", OutgoingMessage(json.dumps(over)))
    # On a crowded machine the chunk may have gone back for a minute before the pause was over.
    until(lambda: fleet.depth("email-send") == (0, 0), 2 * PATIENCE_S)

    assert mails_sent(fleet.settings) == before + 2
    worker.terminate()
    report = report_of(worker)
    assert report["adds_up"]
    assert report["done"] == 3


def test_database_of_no_kind_we_know_ends_the_process_without_telling_its_url(
    fleet: Fleet,
) -> None:
    worker = fleet.start(CAPE_DELIVERIES_URL="mysql://user:hush-hush@host/db")
    _, errors = worker.communicate(timeout=PATIENCE_S)

    assert worker.returncode == 2
    assert "CAPE_DELIVERIES_URL: the delivery store is in SQLite or PostgreSQL" in errors
    assert "hush-hush" not in errors


def test_missing_queue_ends_the_process_with_its_name_and_account(
    moto: SqsSettings, tmp_path: Path
) -> None:
    fleet = Fleet(moto, tmp_path)
    worker = fleet.start("--prefix", "nowhere-")
    _, errors = worker.communicate(timeout=PATIENCE_S)

    assert worker.returncode == 1
    assert "account 123456789012 has no queue 'nowhere-steps'" in errors


def test_training_pool_refuses_another_identity(fleet: Fleet) -> None:
    wanted = "processor.training_identity=arn:aws:sts::999999999999:assumed-role/trainer/"
    worker = fleet.start("--pool", "training", "--set", wanted)
    _, errors = worker.communicate(timeout=PATIENCE_S)

    assert worker.returncode == 1
    assert "the training queue is for arn:aws:sts::999999999999" in errors


def test_training_pool_needs_an_identity(fleet: Fleet) -> None:
    worker = fleet.start("--pool", "training")
    _, errors = worker.communicate(timeout=PATIENCE_S)

    assert worker.returncode == 1
    assert "processor.training_identity" in errors


def test_training_pool_trains_under_the_identity_it_was_told(fleet: Fleet) -> None:
    job = training.TrainingJob(job_id="j-1", model="m", dataset_uri="u", tenant="t")
    fleet.put("training", training.TYPE.outgoing(job))
    mine = "processor.training_identity=arn:aws:sts::123456789012:"

    worker = fleet.start("--pool", "training", "--set", mine)
    fleet.wait("trained", 1)
    worker.terminate()
    report = report_of(worker)

    assert (worker.returncode, report["done"]) == (0, 1)
    assert fleet.lines("trained") == ["j-1"]


Cape = Callable[..., tuple[int, str]]


@pytest.fixture
def cape(capsys: pytest.CaptureFixture[str]) -> Callable[[Fleet], Cape]:
    """`cape queues` on the queues of a fleet: its exit code, and what it said."""

    def on(fleet: Fleet) -> Cape:
        def run(*arguments: str) -> tuple[int, str]:
            place = ["--endpoint-url", fleet.settings.endpoint_url, "--prefix", fleet.prefix]
            code = main(["queues", *arguments, *place])
            said = capsys.readouterr()
            return code, said.out + said.err

        return run

    return on


def test_queues_tools_show_and_delete(fleet: Fleet, cape: Callable[[Fleet], Cape]) -> None:
    fleet.add(("d1", "0"), ("d2", "0"))
    on_fleet = cape(fleet)

    code, listed = on_fleet("list", "--json")
    rows = {row["queue"]: row["present"] for row in json.loads(listed)["queues"]}
    assert code == 1
    assert (rows["ingest"], rows["bulk-ingest"]) == (True, False)
    assert json.loads(on_fleet("depth", "ingest", "--json")[1])["queues"][0]["visible"] == 2
    code, peeked = on_fleet("peek", "ingest", "--json")
    assert len(json.loads(peeked)["queues"]) == 2
    assert fleet.depth() == (2, 0)
    code, refused = on_fleet("purge", "ingest")
    assert (code, "--yes" in refused) == (2, True)
    assert on_fleet("purge", "ingest", "--yes")[0] == 0
    assert fleet.depth() == (0, 0)


def test_queues_tools_tell_people_the_same_in_columns(
    fleet: Fleet, cape: Callable[[Fleet], Cape]
) -> None:
    fleet.add(("d1", "0"))

    code, said = cape(fleet)("depth", "ingest", "steps")

    assert code == 0
    assert [line.split() for line in said.splitlines()] == [
        ["queue", "visible", "in_flight", "delayed"],
        ["ingest", "1", "0", "0"],
        ["steps", "0", "0", "0"],
    ]


@pytest.mark.elasticmq
def test_redrive_lets_dead_letters_go_back_to_their_queue(
    elasticmq: SqsSettings, tmp_path: Path, cape: Callable[[Fleet], Cape]
) -> None:
    fleet = Fleet(elasticmq, tmp_path, receives_max=1)
    fleet.add(("d1", "0"))

    async def wear_out(server: SqsServer) -> None:
        queue = await server.open(f"{fleet.prefix}ingest")
        while (await queue.depth()).visible:
            await queue.receive(1, 1, 0)

    fleet.do(wear_out)
    assert fleet.depth("ingest-dead") == (1, 0)

    code, said = cape(fleet)("redrive", "ingest-dead", "--json")

    assert code == 0
    assert json.loads(said)["queues"][0]["task"]
    until(lambda: fleet.depth() == (1, 0))
    assert fleet.depth("ingest-dead") == (0, 0)
    code, said = cape(fleet)("redrive", "ingest")
    assert code != 0
    assert "is the dead-letter queue of no queue" in said
