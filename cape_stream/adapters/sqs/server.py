"""The queues of one account and region."""

import json
from contextlib import suppress
from typing import Any

from cape_stream.adapters.sqs.clients import Client
from cape_stream.adapters.sqs.identity import StsIdentity
from cape_stream.adapters.sqs.queue import SqsQueue
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.errors import CapeError, Fatal, Reject
from cape_stream.ports.queue import MESSAGE_BYTES_MAX, WAIT_S_MAX, QueueTraits

RECEIVE_SLACK_S = 10
"""What a receive may take beyond its wait before the connection counts as dead."""


class SqsServer:
    """Implements `QueueServer`."""

    def __init__(self, settings: SqsSettings) -> None:
        self._settings = settings
        self._receiving = Client(
            "sqs",
            settings,
            connections=settings.receive_connections,
            read_s=WAIT_S_MAX + RECEIVE_SLACK_S,
        )
        self._control = Client(
            "sqs",
            settings,
            connections=settings.control_connections,
            read_s=settings.control_timeout_ms / 1_000,
        )

    async def open(self, name: str) -> SqsQueue:
        """See `QueueServer.open`."""

        def work(client: Any) -> tuple[str, dict[str, str]]:
            url = client.get_queue_url(QueueName=name)["QueueUrl"]
            found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
            return url, found.get("Attributes", {})

        try:
            url, found = await self._control.call(f"queue {name}", work)
        except Fatal as error:
            place = self._settings.endpoint_url or f"region {self._settings.region}"
            raise Fatal(
                f"account {await self._account()} has no queue {name!r} at {place}: create it, or"
                " correct sqs.prefix, sqs.region or the credentials"
            ) from error
        return SqsQueue(_traits(name, url, found), url, self._receiving, self._control)

    async def names(self, prefix: str) -> list[str]:
        """See `QueueServer.names`."""

        def work(client: Any) -> list[str]:
            pages = client.get_paginator("list_queues").paginate(QueueNamePrefix=prefix)
            return [url.rsplit("/", 1)[-1] for page in pages for url in page.get("QueueUrls", ())]

        return sorted(await self._control.call(f"list of queues {prefix}*", work))

    async def redrive(self, dead_letter_queue: str) -> str:
        """See `QueueServer.redrive`."""

        def work(client: Any) -> str:
            url = client.get_queue_url(QueueName=dead_letter_queue)["QueueUrl"]
            found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
            arn = found["Attributes"]["QueueArn"]
            if not client.list_dead_letter_source_queues(QueueUrl=url).get("queueUrls"):
                raise Reject(f"{dead_letter_queue} is the dead-letter queue of no queue")
            task: str = client.start_message_move_task(SourceArn=arn)["TaskHandle"]
            return task

        found: str = await self._control.call(f"redrive of {dead_letter_queue}", work)
        return found

    async def create(
        self,
        name: str,
        *,
        visibility_s: int = 30,
        bytes_max: int = MESSAGE_BYTES_MAX,
        dead_letter_queue: str | None = None,
        receives_max: int | None = None,
    ) -> SqsQueue:
        """Make a queue for a first run or a test, FIFO if its name ends so; its dead-letter queue
        must be there. Production queues come from where the rest of the infrastructure does."""

        def work(client: Any) -> None:
            attributes = {
                "VisibilityTimeout": str(visibility_s),
                "MaximumMessageSize": str(bytes_max),
            }
            if name.endswith(".fifo"):
                attributes["FifoQueue"] = "true"
            if dead_letter_queue is not None:
                url = client.get_queue_url(QueueName=dead_letter_queue)["QueueUrl"]
                found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
                policy = {
                    "deadLetterTargetArn": found["Attributes"]["QueueArn"],
                    "maxReceiveCount": receives_max,
                }
                attributes["RedrivePolicy"] = json.dumps(policy)
            client.create_queue(QueueName=name, Attributes=attributes)

        await self._control.call(f"creation of {name}", work)
        return await self.open(name)

    async def close(self) -> None:
        """See `QueueServer.close`."""
        await self._receiving.close()
        await self._control.close()

    async def _account(self) -> str:
        identity = StsIdentity(self._settings)
        with suppress(CapeError):
            return (await identity.caller()).split(":")[4]
        return "(unknown: the server does not say who we are)"


def _traits(name: str, url: str, found: dict[str, str]) -> QueueTraits:
    policy = json.loads(found.get("RedrivePolicy") or "{}")
    target = policy.get("deadLetterTargetArn")
    receives_max = policy.get("maxReceiveCount")
    return QueueTraits(
        name=name,
        place=url,
        visibility_s=int(found.get("VisibilityTimeout", 30)),
        bytes_max=int(found.get("MaximumMessageSize", MESSAGE_BYTES_MAX)),
        is_fifo=name.endswith(".fifo"),
        dead_letter_queue=target.rsplit(":", 1)[-1] if target else None,
        receives_max=int(receives_max) if receives_max is not None else None,
    )
