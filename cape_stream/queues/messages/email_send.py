"""Outbound mail in chunks, sent one by one under the adaptive limit of the provider.

A chunk that comes again goes on behind the last recipient it had sent to. Between the provider's
answer and the note of it lies one mail: a crash there sends that one twice, never a whole chunk.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from cape_stream.errors import Reject, Retry
from cape_stream.ports.limits import AdaptiveLimit, CallOutcome
from cape_stream.ports.mail import Mail, Mailer
from cape_stream.ports.progress import Progress
from cape_stream.ports.queue import Queue
from cape_stream.queues.context import HandedBackError, JobContext
from cape_stream.queues.contract import MessageType, OwnContract
from cape_stream.queues.sending import send_all

QUEUE = "email-send"
CHUNK_RECIPIENTS = 50
PERMIT_WAIT_MS = 20_000
PAUSED_RETRY_MS = 60_000

logger = logging.getLogger(__name__)


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One text to some recipients, a mail each."""

    chunk_id: str
    tenant: str
    sender: str
    subject: str
    text: str
    html: str | None = None
    recipients: tuple[str, ...]
    configuration_set: str | None = None


TYPE = MessageType("email_send", Chunk)
CONTRACT = OwnContract(QUEUE, (TYPE,))


async def send_mail(
    queue: Queue,
    *,
    tenant: str,
    sender: str,
    subject: str,
    text: str,
    recipients: Sequence[str],
    html: str | None = None,
    configuration_set: str | None = None,
) -> list[str]:
    """Have a mail sent to many; the ids of the chunks.

    Raises:
        Retry: the queue is away; some chunks may have been sent.
        Reject: the text is too large for one message.
    """
    chunks = [
        Chunk(
            chunk_id=uuid4().hex,
            tenant=tenant,
            sender=sender,
            subject=subject,
            text=text,
            html=html,
            recipients=tuple(recipients[start : start + CHUNK_RECIPIENTS]),
            configuration_set=configuration_set,
        )
        for start in range(0, len(recipients), CHUNK_RECIPIENTS)
    ]
    bytes_max = queue.traits.bytes_max
    messages = [
        TYPE.outgoing(each, message_id=each.chunk_id, tenant=tenant, bytes_max=bytes_max)
        for each in chunks
    ]
    await send_all(queue, messages)
    return [each.chunk_id for each in chunks]


@dataclass(slots=True)
class EmailSendHandler:
    """Sends the mails of a chunk that are not sent yet."""

    mailer: Mailer
    limit: AdaptiveLimit
    progress: Progress
    refused: int = 0
    """Mails the provider will never take; each is logged, the chunk goes on."""

    async def __call__(self, chunk: Chunk, context: JobContext) -> None:
        """See `cape_stream.queues.contract.Handler`."""
        name = f"email-send/{chunk.chunk_id}"
        done = await self.progress.read(name)
        for number, recipient in enumerate(chunk.recipients[done:], done + 1):
            if context.stopping:
                raise HandedBackError(f"chunk {chunk.chunk_id} stopped after {number - 1}")
            await self._send(chunk, recipient, number)
            await self.progress.advance(name, number)

    async def _send(self, chunk: Chunk, recipient: str, number: int) -> None:
        """Send one mail.

        Raises:
            Retry: not now; the chunk comes again.
        """
        permit = await self.limit.acquire(PERMIT_WAIT_MS)
        if permit is None:
            raise Retry("no permit to send mail", PAUSED_RETRY_MS)
        outcome, hold_ms = CallOutcome.FAILED, None
        try:
            await self.mailer.send(
                Mail(
                    sender=chunk.sender,
                    recipient=recipient,
                    subject=chunk.subject,
                    text=chunk.text,
                    html=chunk.html,
                    configuration_set=chunk.configuration_set,
                )
            )
            outcome = CallOutcome.SUCCESS
        except Retry as error:
            outcome, hold_ms = CallOutcome.REFUSED, error.after_ms
            raise
        except Reject as error:
            self.refused += 1
            logger.warning(
                "mail %d of chunk %s will never be taken: %s", number, chunk.chunk_id, error.reason
            )
        finally:
            await self.limit.release(permit, outcome, hold_ms)
