"""Bytes on public topics ↔ values of the model."""

from typing import Protocol

from cape_stream.model.cursor import CursorInfo
from cape_stream.model.job import Job
from cape_stream.model.ping import Ping
from cape_stream.model.status import JobStatus


class Codec(Protocol):
    """Pure functions; every ``decode_*`` raises Reject with a short stable reason for bytes it
    does not accept, and never allocates by a length the bytes merely claim.

    A key that names the subject must agree with the record; sequence ids are checked.
    """

    def encode_ping(self, ping: Ping) -> bytes:
        """Raises Reject naming field and value when the ping is not valid."""
        ...

    def decode_ping(self, key: bytes | None, value: bytes) -> Ping:
        """A ping from its record."""
        ...

    def encode_job(self, job: Job) -> bytes:
        """Hot path."""
        ...

    def decode_job(self, value: bytes, queue: str) -> Job:
        """A job; ``queue`` is the one its topic names."""
        ...

    def encode_status(self, status: JobStatus) -> bytes:
        """Hot path of workers."""
        ...

    def decode_status(self, key: bytes | None, value: bytes) -> JobStatus:
        """Hot path of dispatchers."""
        ...

    def encode_cursors(self, info: CursorInfo) -> bytes:
        """Hot path: one per subject and commit."""
        ...

    def decode_cursors(self, value: bytes) -> CursorInfo:
        """A cursor info row."""
        ...
