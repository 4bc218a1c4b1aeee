"""One SQS queue."""

from collections.abc import Mapping, Sequence
from typing import Any

from cape_stream.adapters.sqs.clients import Client
from cape_stream.adapters.sqs.failures import entry_failures
from cape_stream.ports.queue import (
    EntryFailure,
    OutgoingMessage,
    QueueDepth,
    QueueMessage,
    QueueTraits,
)

SYSTEM_ATTRIBUTES = ["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"]
DEPTHS = {
    "visible": "ApproximateNumberOfMessages",
    "in_flight": "ApproximateNumberOfMessagesNotVisible",
    "delayed": "ApproximateNumberOfMessagesDelayed",
}


class SqsQueue:
    """Implements `Queue`; made by `SqsServer.open`."""

    def __init__(self, traits: QueueTraits, url: str, receiving: Client, control: Client) -> None:
        self.traits = traits
        self._url = url
        self._receiving = receiving
        self._control = control

    async def receive(self, count: int, wait_s: int, visibility_s: int) -> list[QueueMessage]:
        """See `Queue.receive`."""

        def work(client: Any) -> Any:
            return client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=count,
                WaitTimeSeconds=wait_s,
                VisibilityTimeout=visibility_s,
                MessageSystemAttributeNames=SYSTEM_ATTRIBUTES,
                MessageAttributeNames=["All"],
            )

        answer = await self._receiving.call(f"receive on {self.traits.name}", work)
        return [_message(each) for each in answer.get("Messages", ())]

    async def delete(self, receipts: Sequence[str]) -> list[EntryFailure | None]:
        """See `Queue.delete`."""
        entries = [
            {"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(receipts)
        ]
        return await self._batch("delete_message_batch", entries)

    async def change_visibility(
        self, changes: Sequence[tuple[str, int]]
    ) -> list[EntryFailure | None]:
        """See `Queue.change_visibility`."""
        entries = [
            {"Id": str(number), "ReceiptHandle": receipt, "VisibilityTimeout": seconds}
            for number, (receipt, seconds) in enumerate(changes)
        ]
        return await self._batch("change_message_visibility_batch", entries)

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[EntryFailure | None]:
        """See `Queue.send`."""
        entries = [self._entry(str(number), message) for number, message in enumerate(messages)]
        return await self._batch("send_message_batch", entries)

    async def depth(self) -> QueueDepth:
        """See `Queue.depth`."""
        answer = await self._control.call(
            f"depth of {self.traits.name}",
            lambda client: client.get_queue_attributes(
                QueueUrl=self._url, AttributeNames=list(DEPTHS.values())
            ),
        )
        found = answer["Attributes"]
        return QueueDepth(**{name: int(found.get(theirs, 0)) for name, theirs in DEPTHS.items()})

    async def purge(self) -> None:
        """See `Queue.purge`."""
        await self._control.call(
            f"purge of {self.traits.name}", lambda client: client.purge_queue(QueueUrl=self._url)
        )

    async def _batch(self, method: str, entries: list[Any]) -> list[EntryFailure | None]:
        answer = await self._control.call(
            f"{method} on {self.traits.name}",
            lambda client: getattr(client, method)(QueueUrl=self._url, Entries=entries),
        )
        return entry_failures(answer, len(entries))

    def _entry(self, entry_id: str, message: OutgoingMessage) -> dict[str, Any]:
        entry: dict[str, Any] = {"Id": entry_id, "MessageBody": message.body}
        if message.attributes:
            entry["MessageAttributes"] = {
                name: {"DataType": "String", "StringValue": value}
                for name, value in message.attributes.items()
            }
        if message.group is not None:
            entry["MessageGroupId"] = message.group
        if self.traits.is_fifo and message.deduplication_id is not None:
            entry["MessageDeduplicationId"] = message.deduplication_id
        if message.delay_s:
            entry["DelaySeconds"] = message.delay_s
        return entry


def _message(found: Mapping[str, Any]) -> QueueMessage:
    system = found.get("Attributes", {})
    attributes = {
        name: each["StringValue"]
        for name, each in found.get("MessageAttributes", {}).items()
        if "StringValue" in each
    }
    return QueueMessage(
        message_id=found["MessageId"],
        receipt=found["ReceiptHandle"],
        body=found.get("Body", ""),
        attributes=attributes,
        receive_count=int(system.get("ApproximateReceiveCount", 1)),
        sent_ms=int(system.get("SentTimestamp", 0)),
        group=system.get("MessageGroupId"),
    )
