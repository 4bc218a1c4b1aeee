"""Sends messages with per-entry retries: nothing counts as sent that the queue did not take."""

import asyncio
from collections.abc import Sequence

from cape_stream.errors import Reject, Retry
from cape_stream.ports.queue import FailureKind, OutgoingMessage, Queue
from cape_stream.queues.packing import batches, size_of

TRIES = 5
PAUSE_S = 0.2
"""Before the second try of an entry; doubles."""


async def send_all(queue: Queue, messages: Sequence[OutgoingMessage]) -> None:
    """Send all, each entry tried again alone if it failed.

    Raises:
        Reject: a message can never be sent; says why. Messages of other batches may be sent.
        Retry: some were not sent in time.
    """
    for message in messages:
        if size_of(message) > queue.traits.bytes_max:
            raise Reject(
                f"a message of {size_of(message):,} bytes with its attributes is over the limit of"
                f" {queue.traits.name}, {queue.traits.bytes_max:,}"
            )
    for batch in batches(messages, queue.traits.bytes_max):
        await _send_batch(queue, batch)


async def _send_batch(queue: Queue, batch: list[OutgoingMessage]) -> None:
    left, reason = batch, ""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(PAUSE_S * 2**attempt)
        try:
            answers = await queue.send(left)
        except Retry as error:
            reason = error.reason
            continue
        again = []
        for message, failure in zip(left, answers, strict=True):
            if failure is None:
                continue
            if failure.kind is FailureKind.REFUSED:
                raise Reject(f"{queue.traits.name} refuses a message: {failure.reason}")
            reason = failure.reason
            again.append(message)
        left = again
        if not left:
            return
    raise Retry(f"{len(left)} messages to {queue.traits.name} were not sent: {reason}")
