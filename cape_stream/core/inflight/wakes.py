"""When to look at a subject again: one time each, the earliest that was asked for.

A heap of short time buckets, as in `cape_stream.core.inflight.deadlines` and for the same reason: a
subject that leaves memory must leave nothing behind, whenever it would have been due.
"""

from heapq import heappop, heappush

from cape_stream.core.inflight.subject import SubjectState

BUCKET_MS = 16
EXACT_MAX = 64
"""A bucket with more subjects counts as due at its end: finding the first would cost too much."""


class Wakes:
    """Subjects in memory by the time at which something of them is due."""

    __slots__ = ("_buckets", "_due_ms", "_starts")

    def __init__(self) -> None:
        self._due_ms: dict[SubjectState, int] = {}
        self._buckets: dict[int, dict[SubjectState, None]] = {}
        self._starts: list[int] = []
        """Heap of the keys of `_buckets`."""

    def add(self, subject: SubjectState, due_ms: int) -> None:
        """Look at it at ``due_ms``, unless that will be done earlier anyway."""
        known_ms = self._due_ms.get(subject)
        if known_ms is not None:
            if known_ms <= due_ms:
                return
            del self._buckets[known_ms // BUCKET_MS][subject]
        self._due_ms[subject] = due_ms
        bucket = due_ms // BUCKET_MS
        subjects = self._buckets.get(bucket)
        if subjects is None:
            self._buckets[bucket] = {subject: None}
            heappush(self._starts, bucket)
        else:
            subjects[subject] = None

    def discard(self, subject: SubjectState) -> None:
        """It has left, or is looked at anyway."""
        due_ms = self._due_ms.pop(subject, None)
        if due_ms is not None:
            del self._buckets[due_ms // BUCKET_MS][subject]

    def take(self, now_ms: int) -> list[SubjectState]:
        """Subjects that are due, the earliest first; to be added anew for what comes next."""
        due: list[tuple[int, int, SubjectState]] = []
        while self._starts and self._starts[0] * BUCKET_MS <= now_ms:
            bucket = self._starts[0]
            subjects = self._buckets[bucket]
            for subject in list(subjects):
                due_ms = self._due_ms[subject]
                if due_ms <= now_ms:
                    due.append((due_ms, len(due), subject))
                    self.discard(subject)
            if subjects:
                break
            heappop(self._starts)
            del self._buckets[bucket]
        due.sort()
        return [subject for _, _, subject in due]

    def next_ms(self) -> int | None:
        """When `take` has something; less than `BUCKET_MS` late where many wait."""
        while self._starts and not self._buckets[self._starts[0]]:
            del self._buckets[heappop(self._starts)]
        if not self._starts:
            return None
        subjects = self._buckets[self._starts[0]]
        if len(subjects) > EXACT_MAX:
            return (self._starts[0] + 1) * BUCKET_MS - 1
        return min(self._due_ms[subject] for subject in subjects)
