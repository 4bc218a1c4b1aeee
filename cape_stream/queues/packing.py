"""Packs messages into batches by count and by real bytes, attributes included."""

from collections.abc import Iterable, Iterator

from cape_stream.ports.queue import BATCH_MAX, OutgoingMessage

ATTRIBUTE_TYPE = "String"


def size_of(message: OutgoingMessage) -> int:
    """Bytes that count against the queue's limit: body, and each attribute's name, type and value.

    Source: the SQS SendMessage page, message size.
    """
    attributes = sum(
        len(name.encode()) + len(ATTRIBUTE_TYPE) + len(value.encode())
        for name, value in message.attributes.items()
    )
    return len(message.body.encode()) + attributes


def batches(messages: Iterable[OutgoingMessage], bytes_max: int) -> Iterator[list[OutgoingMessage]]:
    """In order, as few as fit; a message that is too large alone makes a batch of its own."""
    batch: list[OutgoingMessage] = []
    taken = 0
    for message in messages:
        size = size_of(message)
        if batch and (len(batch) == BATCH_MAX or taken + size > bytes_max):
            yield batch
            batch, taken = [], 0
        batch.append(message)
        taken += size
    if batch:
        yield batch
