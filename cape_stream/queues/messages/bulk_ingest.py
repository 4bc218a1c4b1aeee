"""A batch of documents for a corpus load. It can be interrupted between two documents.

How far a batch is outlives the worker: a rollout, or the ceiling of a job coming near, hands it
back between two documents, and the next worker goes on where this one stopped. Only a document
that fails or kills its handler costs the batch an attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from cape_stream.ports.progress import Progress
from cape_stream.ports.queue import OutgoingMessage, Queue
from cape_stream.queues.context import HandedBackError, JobContext
from cape_stream.queues.contract import MessageType, OwnContract
from cape_stream.queues.messages.ingest import Document, Ingestor
from cape_stream.queues.sending import send_all

QUEUE = "bulk-ingest"
BATCH_DOCUMENTS = 100
"""Documents of one message."""
CEILING_MARGIN_MS = 300_000
"""No further document is begun when less than this is left of the ceiling."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Documents that are ingested one after the other."""

    batch_id: str
    tenant: str
    documents: tuple[Document, ...]


TYPE = MessageType("bulk_ingest", Batch)
CONTRACT = OwnContract(QUEUE, (TYPE,))


async def add_documents(queue: Queue, tenant: str, documents: Sequence[Document]) -> list[str]:
    """Have many documents ingested; the ids of their batches.

    Raises:
        Retry: the queue is away; some batches may have been sent.
        Reject: a batch cannot be sent.
    """
    batches = [
        Batch(
            batch_id=uuid4().hex,
            tenant=tenant,
            documents=tuple(documents[start : start + BATCH_DOCUMENTS]),
        )
        for start in range(0, len(documents), BATCH_DOCUMENTS)
    ]
    await send_all(queue, [_outgoing(batch, queue) for batch in batches])
    return [batch.batch_id for batch in batches]


def _outgoing(batch: Batch, queue: Queue) -> OutgoingMessage:
    return TYPE.outgoing(
        batch,
        message_id=batch.batch_id,
        tenant=batch.tenant,
        bytes_max=queue.traits.bytes_max,
    )


@dataclass(slots=True)
class BulkIngestHandler:
    """Ingests the documents of a batch that are not ingested yet."""

    ingestor: Ingestor
    progress: Progress

    async def __call__(self, batch: Batch, context: JobContext) -> None:
        """See `cape_stream.queues.contract.Handler`."""
        name = f"bulk-ingest/{batch.batch_id}"
        done = await self.progress.read(name)
        for number, document in enumerate(batch.documents[done:], done + 1):
            is_late = context.remaining_ms < CEILING_MARGIN_MS and number > done + 1
            if context.stopping or is_late:
                raise HandedBackError(f"batch {batch.batch_id} stopped after {number - 1}")
            await self.ingestor.ingest(document, context)
            await self.progress.advance(name, number)
