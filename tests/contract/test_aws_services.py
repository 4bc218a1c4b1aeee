"""S3, SES and STS through boto3, as far as the queues need them, on moto."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import boto3
import pytest

from cape_stream.adapters.sqs.identity import StsIdentity
from cape_stream.adapters.sqs.mailer import SesMailer
from cape_stream.adapters.sqs.object_store import S3ObjectStore
from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.errors import Retry
from cape_stream.ports.mail import Mail
from cape_stream.ports.queue import OutgoingMessage

KEY = "reports/2026 plan + notes (100%)/naïve café.pdf"


@pytest.fixture
def bucket(moto: SqsSettings) -> str:
    name = f"b-{uuid4().hex[:12]}"
    client = boto3.client("s3", endpoint_url=moto.endpoint_url, region_name=moto.region)
    client.create_bucket(Bucket=name)
    client.close()
    return name


def mail(sender: str) -> Mail:
    return Mail(sender=sender, recipient="ada@example.com", subject="Grüße", text="t", html="<p>")


def test_object_comes_back_under_its_exact_key(moto: SqsSettings, bucket: str) -> None:
    async def scene() -> list[bytes | None]:
        store = S3ObjectStore(moto)
        await store.put(bucket, KEY, b"\x00\xff")
        found = [await store.get(bucket, KEY), await store.get(bucket, KEY.replace("+", " "))]
        found.append(await store.get("nowhere-at-all", KEY))
        await store.close()
        return found

    assert asyncio.run(scene()) == [b"\x00\xff", None, None]


def test_mail_of_a_verified_sender_is_taken_and_that_of_another_waits_for_one_to_verify_it(
    moto: SqsSettings,
) -> None:
    sender = f"{uuid4().hex[:8]}@example.com"
    client = boto3.client("sesv2", endpoint_url=moto.endpoint_url, region_name=moto.region)
    client.create_email_identity(EmailIdentity=sender)
    client.close()

    async def scene() -> str:
        mailer = SesMailer(moto)
        message_id = await mailer.send(mail(sender))
        with pytest.raises(Retry, match="not verified"):
            await mailer.send(mail("stranger@example.org"))
        await mailer.close()
        return message_id

    assert asyncio.run(scene())


def test_identity_is_the_name_of_the_caller(moto: SqsSettings) -> None:
    found = asyncio.run(StsIdentity(moto).caller())

    assert found.startswith("arn:aws:sts::123456789012:")


def test_server_that_is_away_is_a_retry_that_names_what_was_tried(aws_credentials: None) -> None:
    settings = SqsSettings(endpoint_url="http://127.0.0.1:9", control_timeout_ms=500)

    async def scene() -> None:
        store = S3ObjectStore(settings)
        with pytest.raises(Retry, match="read of bucket/key"):
            await store.get("bucket", "key")
        await store.close()

    asyncio.run(scene())


def test_receive_that_waits_stands_before_no_other_call(moto: SqsSettings) -> None:
    async def scene() -> None:
        server = SqsServer(replace(moto, receive_connections=1, control_connections=1))
        queue = await server.create(f"q-{uuid4().hex[:12]}")
        await queue.send([OutgoingMessage("a")])
        (found,) = await queue.receive(1, 1, 30)
        poll = asyncio.ensure_future(queue.receive(1, 20, 30))

        assert await queue.change_visibility([(found.receipt, 60)]) == [None]
        assert await queue.delete([found.receipt]) == [None]
        assert (await queue.depth()).in_flight == 0
        assert not poll.done()

        await queue.send([OutgoingMessage("b")])
        assert [each.body for each in await poll] == ["b"]
        await server.close()

    asyncio.run(scene())
