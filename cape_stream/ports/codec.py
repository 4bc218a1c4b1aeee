"""Bytes on public topics ↔ values of the model."""

from typing import Protocol

from cape_stream.model.cursor import CursorInfo
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.job import Job
from cape_stream.model.operation import AuditEntry, Operation
from cape_stream.model.ping import Ping
from cape_stream.model.status import JobStatus


class Codec(Protocol):
    """Pure functions; every ``decode_*`` raises Reject with a short stable reason for bytes it
    does not accept, and never allocates by a length the bytes merely claim.

    A key that names the subject must agree with the record; sequence ids are checked. A null
    value is refused as ``null value``; where it is a tombstone, the caller does not ask.
    """

    def encode_ping(self, ping: Ping) -> bytes:
        """Raises Reject naming field and value when the ping is not valid."""
        ...

    def decode_ping(self, key: bytes | None, value: bytes | None) -> Ping:
        """A ping from its record."""
        ...

    def decode_lone_ping(self, value: bytes) -> Ping:
        """A ping that came by another way than the log, so without a key."""
        ...

    def encode_job(self, job: Job) -> bytes:
        """Hot path."""
        ...

    def decode_job(self, value: bytes | None, queue: str) -> Job:
        """A job; ``queue`` is the one its topic names."""
        ...

    def encode_status(self, status: JobStatus) -> bytes:
        """Hot path of workers."""
        ...

    def decode_status(self, key: bytes | None, value: bytes | None) -> JobStatus:
        """Hot path of dispatchers."""
        ...

    def decode_signed_status(self, value: bytes) -> tuple[JobStatus, str | None]:
        """A status that came by another way than the log, and the token of its job, if any."""
        ...

    def encode_cursors(self, info: CursorInfo) -> bytes:
        """Hot path: one per subject and commit."""
        ...

    def decode_cursors(self, value: bytes | None) -> CursorInfo:
        """A cursor info row."""
        ...

    def encode_operation(self, operation: Operation) -> bytes:
        """Raises Reject naming field and value when the order is not valid."""
        ...

    def decode_operation(self, key: bytes | None, value: bytes | None) -> Operation:
        """An order; the key must agree where it names a subject."""
        ...

    def encode_audit_entry(self, entry: AuditEntry) -> bytes:
        """What became of an order."""
        ...

    def decode_audit_entry(self, value: bytes | None) -> AuditEntry:
        """An audit entry; for tools and people."""
        ...

    def encode_dead_letter(self, letter: DeadLetter) -> bytes:
        """The letter with the refused record's bytes unchanged."""
        ...

    def decode_dead_letter(self, value: bytes | None) -> DeadLetter:
        """A dead letter from its record; for tools and people."""
        ...
