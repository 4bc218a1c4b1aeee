"""Cape jobs on SQS, for workers without Kafka: the job record itself, or where it lies in S3.

The dispatcher is the one who retries, so a job that failed is done as far as the queue goes: its
status has been reported. Only a job that could not be run or reported goes back to the queue.
"""

import base64
import binascii
import hashlib
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from cape_stream.errors import Reject, Retry
from cape_stream.model.job import Job
from cape_stream.ports.codec import Codec
from cape_stream.ports.object_store import ObjectStore
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import MessageType, OwnContract

QUEUE = "jobs"


class ClaimCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record lies that is too large for the queue."""

    bucket: str
    key: str
    sha256: str


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job as it lies in its topic: in place, or by claim check; one of the two."""

    queue: str
    """The worker queue its topic names; not part of the record."""
    record: str | None = None
    """Base64 of the record."""
    claim: ClaimCheck | None = None


TYPE = MessageType("cape.job", JobRecord)
CONTRACT = OwnContract(QUEUE, (TYPE,))


def in_place(queue: str, record: bytes) -> JobRecord:
    """A message that carries the record."""
    return JobRecord(queue=queue, record=base64.b64encode(record).decode())


def claim_of(bucket: str, prefix: str, record: bytes) -> ClaimCheck:
    """Where a record goes: named by its content, so that a repeat writes the same object."""
    digest = digest_of(record)
    return ClaimCheck(bucket=bucket, key=f"{prefix}{digest[:2]}/{digest}", sha256=digest)


def digest_of(record: bytes) -> str:
    """What names a record by its content."""
    return hashlib.sha256(record).hexdigest()


class JobRunner(Protocol):
    """Runs a job's handler and reports its status."""

    def run(self, job: Job, remaining_ms: int) -> Awaitable[None]:
        """Run it, within ``remaining_ms`` at most, and wait until the report is in the log.

        Raises:
            Retry: the report could not be stored; the job comes again.
        """
        ...


@dataclass(slots=True)
class JobsHandler:
    """Runs Cape jobs."""

    codec: Codec
    runner: JobRunner
    store: ObjectStore | None = None
    """Where claim checks lead; None: such jobs go back to the queue."""

    async def __call__(self, message: JobRecord, context: JobContext) -> None:
        """See `cape_stream.queues.contract.Handler`."""
        job = self.codec.decode_job(await self._record(message), message.queue)
        await self.runner.run(job, context.remaining_ms)

    async def _record(self, message: JobRecord) -> bytes:
        if message.record is not None:
            try:
                return base64.b64decode(message.record, validate=True)
            except binascii.Error as error:
                raise Reject(f"record is not base64: {error}") from error
        if message.claim is None:
            raise Reject("a job without record and without claim")
        claim = message.claim
        if self.store is None:
            raise Reject(f"this worker has no object store for claim {claim.bucket}/{claim.key}")
        found = await self.store.get(claim.bucket, claim.key)
        if found is None:
            raise Retry(f"the claim {claim.bucket}/{claim.key} is not there")
        if digest_of(found) != claim.sha256:
            raise Reject(f"the claim {claim.bucket}/{claim.key} has other content")
        return found
