"""The timeout list: when the next job expires, and which ones have.

A heap of short time buckets, each a table of jobs. Most jobs end long before they expire, so
taking one out must cost nothing that grows with the number of jobs; a plain heap would keep
every ended job until its time came.
"""

from heapq import heappop, heappush

from cape_stream.core.inflight.lambda_state import JobRecord

BUCKET_MS = 128


class Deadlines:
    """Jobs by expiry."""

    __slots__ = ("_buckets", "_starts")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[str, JobRecord]] = {}
        self._starts: list[int] = []
        """Heap of the keys of `_buckets`."""

    def add(self, record: JobRecord) -> None:
        """Watch a job; its ``expires_ms`` must not change without `move`."""
        bucket = record.expires_ms // BUCKET_MS
        jobs = self._buckets.get(bucket)
        if jobs is None:
            self._buckets[bucket] = {record.job_id: record}
            heappush(self._starts, bucket)
        else:
            jobs[record.job_id] = record

    def remove(self, record: JobRecord) -> None:
        """Stop watching a job."""
        jobs = self._buckets.get(record.expires_ms // BUCKET_MS)
        if jobs is not None:
            jobs.pop(record.job_id, None)

    def move(self, record: JobRecord, expires_ms: int) -> None:
        """Give a watched job another expiry."""
        self.remove(record)
        record.expires_ms = expires_ms
        self.add(record)

    def take_expired(self, now_ms: int) -> list[JobRecord]:
        """Jobs with ``expires_ms`` <= ``now_ms``, oldest bucket first; no longer watched."""
        expired: list[JobRecord] = []
        while self._starts and self._starts[0] * BUCKET_MS <= now_ms:
            bucket = self._starts[0]
            jobs = self._buckets[bucket]
            due = [record for record in jobs.values() if record.expires_ms <= now_ms]
            expired.extend(due)
            for record in due:
                del jobs[record.job_id]
            if jobs and (bucket + 1) * BUCKET_MS > now_ms:
                break
            heappop(self._starts)
            del self._buckets[bucket]
        return expired

    def next_ms(self) -> int | None:
        """When the oldest jobs have expired, less than `BUCKET_MS` after the first of them: whoever
        waits for it waits once. None when no job is watched."""
        while self._starts and not self._buckets[self._starts[0]]:
            del self._buckets[self._starts[0]]
            heappop(self._starts)
        return (self._starts[0] + 1) * BUCKET_MS - 1 if self._starts else None
