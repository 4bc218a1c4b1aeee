"""One document of a data source, minutes of work; with a dead-letter queue for what kills it."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from cape_stream.ports.queue import Queue
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import MessageType, OwnContract
from cape_stream.queues.sending import send_all

QUEUE = "ingest"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Where one document lies and whose it is."""

    document_id: str
    source: str
    uri: str
    tenant: str
    content_type: str | None = None


class Ingestor(Protocol):
    """What ingesting a document means; supplied by the application."""

    def ingest(self, document: Document, context: JobContext) -> Awaitable[None]:
        """Ingest it. Idempotent by ``document_id``: a document may come again."""
        ...


TYPE = MessageType("ingest", Document)
CONTRACT = OwnContract(QUEUE, (TYPE,))


async def add_document(queue: Queue, document: Document) -> None:
    """Have a document ingested soon.

    Raises:
        Retry: the queue is away.
        Reject: the message cannot be sent, such as one that is too large.
    """
    message = TYPE.outgoing(document, tenant=document.tenant, bytes_max=queue.traits.bytes_max)
    await send_all(queue, [message])


@dataclass(slots=True)
class IngestHandler:
    """Ingests one document."""

    ingestor: Ingestor

    async def __call__(self, document: Document, context: JobContext) -> None:
        """See `cape_stream.queues.contract.Handler`."""
        await self.ingestor.ingest(document, context)
