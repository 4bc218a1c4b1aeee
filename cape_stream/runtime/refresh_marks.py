"""What the refresh leader remembers in the log, so that the next one goes on where it stopped.

One record a domain, keyed by its name; the newest one counts.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cape_stream.errors import Fenced, Reject, Retry
from cape_stream.ports.background import Background, Pending
from cape_stream.ports.log import Committer, Log, Ownership, TopicPartition, Write

RETRY_MS = 500
"""Pause after the log was away, where it does not say how long."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Mark:
    """How far one source has been swept."""

    watermark: str | None = None
    """The source's own; None: from the beginning."""
    full_ms: int = 0
    """When a sweep from the very beginning last came to its end, Unix milliseconds; 0: never."""

    def encode(self) -> bytes:
        """As a record value."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(value: bytes) -> "Mark":
        """From a record value; raises ValueError where it is none."""
        fields = json.loads(value)
        if not isinstance(fields, dict):
            raise ValueError(f"a mark is an object, not {type(fields).__name__}")
        watermark, full_ms = fields.get("watermark"), fields.get("full_ms")
        if not isinstance(watermark, str | None) or not isinstance(full_ms, int):
            raise ValueError(f"a mark has a watermark and full_ms, not {sorted(fields)}")
        return Mark(watermark, full_ms)


@dataclass(slots=True, frozen=True)
class StoredMarks:
    """Everything stored, and where the topic ended when it was read."""

    marks: Mapping[str, Mark]
    end: int


def read_marks(log: Log, partition: TopicPartition) -> StoredMarks:
    """The newest mark of every domain. Raises Retry while the log is away."""
    reader = log.reader()
    try:
        kept = reader.watermarks(partition)
        marks: dict[str, Mark] = {}
        for records in reader.read(partition, kept.low, kept.high):
            for record in records:
                if record.key is None or record.value is None:
                    continue
                domain = record.key.decode(errors="replace")
                try:
                    marks[domain] = Mark.decode(record.value)
                except ValueError as error:
                    marks.pop(domain, None)
                    logger.warning(
                        "the mark of %s at offset %d of %s does not decode (%s): its source is"
                        " swept from the beginning",
                        *(domain, record.offset, partition.topic, error),
                    )
        return StoredMarks(marks, kept.high)
    finally:
        reader.close()


class MarkKeeper:
    """Reads and stores marks in the background, one at a time; the caller looks again later."""

    def __init__(
        self, log: Log, committer: Committer, partition: TopicPartition, background: Background
    ) -> None:
        self._log = log
        self._committer = committer
        self._partition = partition
        self._background = background
        self._reading: Pending[StoredMarks] | None = None
        self._storing: Pending[Mapping[TopicPartition, int]] | None = None
        self._moved: dict[str, Mark] = {}
        """Marks in the commit under way."""
        self._end = 0
        """Next offset of the topic; goes into every commit as the proof of the lead."""
        self._not_before_ms = 0
        self.stored: dict[str, Mark] = {}
        """Marks that are in the log, as far as this process knows."""
        self.commits = 0
        self.commits_failed = 0

    @property
    def busy(self) -> bool:
        """True while something runs in the background."""
        return self._reading is not None or self._storing is not None

    def forget(self) -> None:
        """Somebody else leads: what was read is out of date."""
        self._reading = None
        self._not_before_ms = 0

    def read(self, now_ms: int) -> bool:
        """Read what is stored; call again until it says True."""
        if self._reading is None:
            if now_ms >= self._not_before_ms and self._storing is None:
                log, partition = self._log, self._partition
                self._reading = self._background.submit(lambda: read_marks(log, partition))
            return False
        if not self._reading.done():
            return False
        reading, self._reading = self._reading, None
        try:
            found = reading.result()
        except Retry as error:
            self._not_before_ms = now_ms + (error.after_ms or RETRY_MS)
            return False
        self.stored = dict(found.marks)
        self._end = found.end
        return True

    def store(self, marks: Mapping[str, Mark], ownership: Ownership) -> None:
        """Begin to store the marks that differ from the stored ones."""
        assert self._storing is None, "one commit at a time"
        stored = self.stored
        moved = {n: mark for n, mark in marks.items() if mark != stored.get(n, Mark())}
        if not moved:
            return
        topic, partition = self._partition
        writes = [Write(topic, partition, n.encode(), m.encode()) for n, m in moved.items()]
        offsets = {self._partition: self._end}
        committer = self._committer
        self._moved = moved
        self._storing = self._background.submit(
            lambda: committer.commit(writes, offsets, ownership)
        )

    def is_stored(self, *, waiting: bool = False) -> bool:
        """True if no commit is under way (any more).

        Args:
            waiting: do not come back before.

        Raises:
            Fenced: the commit was refused because somebody else leads.
        """
        if self._storing is None:
            return True
        if not waiting and not self._storing.done():
            return False
        storing, self._storing = self._storing, None
        try:
            last = storing.result()
        except Fenced:
            self.commits_failed += 1
            raise
        except (Retry, Reject) as error:
            self.commits_failed += 1
            logger.warning("marks of %s not stored: %s", ", ".join(self._moved), error)
        else:
            self.commits += 1
            self._end = last[self._partition] + 1
            self.stored.update(self._moved)
        return True
