"""S3 says that an object was created: scanners look at it, and its domain is told.

Takes the notification bare, inside an SNS envelope, and as an EventBridge event. Notifications may
repeat and come in any order, so scanners are idempotent by bucket, key and version of the content.
"""

import hashlib
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote_plus

from cape_stream.errors import Reject
from cape_stream.model.subject import SUBJECT_BYTES_MAX
from cape_stream.ports.object_store import ObjectStore
from cape_stream.ports.queue import OutgoingMessage
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import Decoded, Unhandled, encode
from cape_stream.queues.envelopes import Document, decoded_key, open_document, part, text_at

QUEUE = "file-scan"
OBJECTS = "file_scan"
TEST_EVENT = "s3_test_event"
SCAN_BYTES_MAX = 256 * 1024 * 1024
"""An object is read into memory as a whole, and ten are scanned at once; S3 takes 5 TB."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True, kw_only=True)
class StoredObject:
    """One object that was created."""

    bucket: str
    key: str
    """As it is in the store, not as the notification spells it."""
    size: int
    etag: str
    sequencer: str = ""
    """Orders the events of one key; hexadecimal, compared after padding to equal length."""


@dataclass(slots=True, frozen=True)
class Verdict:
    """What one scanner says of one object."""

    scanner: str
    is_clean: bool
    findings: tuple[str, ...] = ()


class Scanner(Protocol):
    """Looks at an object's content; a plug-in, such as for viruses or personal data."""

    @property
    def name(self) -> str:
        """Of the scanner, unique among those of a worker."""
        ...

    def scan(self, found: StoredObject, content: bytes) -> Awaitable[Verdict]:
        """Its verdict. Raises Retry if it cannot say now."""
        ...


class ScanLog(Protocol):
    """Keeps verdicts, and pings the object's domain so that its topologies get them."""

    def record(self, subject: str, found: StoredObject, verdicts: Sequence[Verdict]) -> None:
        """Store the verdicts and ping ``subject``. Idempotent by object and etag."""
        ...


@dataclass(slots=True, frozen=True)
class FileScanContract:
    """The file-scan queue. Implements `Contract`."""

    queue: str = QUEUE

    def decode(self, body: str) -> Decoded | Unhandled:
        """See `Contract.decode`."""
        try:
            document = open_document(body)
            if document.get("Event") == "s3:TestEvent":
                return Decoded(TEST_EVENT, str(document.get("Bucket", "")))
            if "Records" in document:
                return Decoded(OBJECTS, _records(document))
            if document.get("source") == "aws.s3" and "detail" in document:
                return _of_event_bridge(document)
        except Reject as error:
            return Unhandled("undecodable", error.reason)
        return Unhandled("unknown", "neither an S3 notification nor an S3 event of EventBridge")


CONTRACT = FileScanContract()


def _records(document: Document) -> tuple[StoredObject, ...]:
    records = document["Records"]
    if not isinstance(records, list):
        raise Reject("Records is no list")
    return tuple(
        _of_record(part(each, "s3"))
        for each in records
        if isinstance(each, dict) and str(each.get("eventName", "")).startswith("ObjectCreated:")
    )


def _of_record(found: Document) -> StoredObject:
    entry = part(found, "object")
    return StoredObject(
        bucket=text_at(found, "bucket", "name"),
        key=decoded_key(text_at(found, "object", "key")),
        size=_size(entry),
        etag=str(entry.get("eTag", "")),
        sequencer=str(entry.get("sequencer", "")),
    )


def _of_event_bridge(document: Document) -> Decoded | Unhandled:
    """EventBridge spells keys as they are. Source: Amazon S3 user guide, EventBridge mapping."""
    kind = str(document.get("detail-type", ""))
    if kind != "Object Created":
        return Unhandled(f"eventbridge {kind}"[:60], "only 'Object Created' is scanned")
    detail = part(document, "detail")
    entry = part(detail, "object")
    return Decoded(
        OBJECTS,
        (
            StoredObject(
                bucket=text_at(detail, "bucket", "name"),
                key=text_at(detail, "object", "key"),
                size=_size(entry),
                etag=str(entry.get("etag", "")),
                sequencer=str(entry.get("sequencer", "")),
            ),
        ),
    )


def _size(entry: Document) -> int:
    size = entry.get("size", 0)
    return size if isinstance(size, int) else 0


def object_created(bucket: str, key: str, content: bytes) -> OutgoingMessage:
    """What S3 would send; for stores that send nothing, and for tests."""
    entry = {
        "key": quote_plus(key, safe="/"),
        "size": len(content),
        "eTag": hashlib.md5(content, usedforsecurity=False).hexdigest(),
    }
    record: Mapping[str, Any] = {
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": bucket}, "object": entry},
    }
    return OutgoingMessage(encode({"Records": [record]}))


def subject_of(found: StoredObject) -> str:
    """The subject an object's verdicts are delivered under: ``bucket/key``, cut if need be."""
    subject = f"{found.bucket}/{found.key}"
    if len(subject.encode()) <= SUBJECT_BYTES_MAX:
        return subject
    digest = hashlib.sha256(subject.encode()).hexdigest()
    return f"{found.bucket}/~{digest}"


@dataclass(slots=True)
class FileScanHandler:
    """Shows every object to every scanner."""

    store: ObjectStore
    scanners: Sequence[Scanner]
    log: ScanLog
    bytes_max: int = SCAN_BYTES_MAX
    """A larger object is shown to nobody: its one verdict says that it was not scanned."""
    missing: int = 0
    """Objects that were gone when we looked."""

    async def __call__(self, objects: Sequence[StoredObject], context: JobContext) -> None:
        """See `cape_stream.queues.contract.Handler`."""
        for found in objects:
            if found.size > self.bytes_max:
                self.log.record(subject_of(found), found, [self._too_large(found)])
                continue
            content = await self.store.get(found.bucket, found.key)
            if content is None:
                self.missing += 1
                logger.warning("nothing to scan: bucket %s has no %r", found.bucket, found.key)
                continue
            verdicts = [await scanner.scan(found, content) for scanner in self.scanners]
            self.log.record(subject_of(found), found, verdicts)

    def _too_large(self, found: StoredObject) -> Verdict:
        reason = f"not scanned: {found.size:,} bytes are over the {self.bytes_max:,} of a worker"
        logger.warning("bucket %s, %r is %s", found.bucket, found.key, reason)
        return Verdict("size", is_clean=False, findings=(reason,))


async def acknowledge_test_event(bucket: str, context: JobContext) -> None:
    """S3 says once that it can reach the queue; there is nothing to do."""
    logger.info("bucket %s is connected to queue %s", bucket, context.queue)
