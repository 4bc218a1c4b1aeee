"""Training jobs, consumed only under the trainer's own identity, in a pool of its own."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from cape_stream.ports.queue import Queue
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import MessageType, OwnContract
from cape_stream.queues.sending import send_all

QUEUE = "training"


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to train and where its data lies."""

    job_id: str
    model: str
    dataset_uri: str
    tenant: str
    parameters: dict[str, str] = {}


class Trainer(Protocol):
    """What training means; supplied by the application."""

    def train(self, job: TrainingJob, context: JobContext) -> Awaitable[None]:
        """Train. Resumes what an interrupted run of the same ``job_id`` has done."""
        ...


TYPE = MessageType("training", TrainingJob)
CONTRACT = OwnContract(QUEUE, (TYPE,))


async def add_training(queue: Queue, job: TrainingJob) -> None:
    """Have a model trained.

    Raises:
        Retry: the queue is away.
        Reject: the message cannot be sent.
    """
    message = TYPE.outgoing(
        job, message_id=job.job_id, tenant=job.tenant, bytes_max=queue.traits.bytes_max
    )
    await send_all(queue, [message])


@dataclass(slots=True)
class TrainingHandler:
    """Runs one training job."""

    trainer: Trainer

    async def __call__(self, job: TrainingJob, context: JobContext) -> None:
        """See `cape_stream.queues.contract.Handler`."""
        await self.trainer.train(job, context)
