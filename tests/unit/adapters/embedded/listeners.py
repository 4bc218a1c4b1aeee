"""A listener for members that a test polls itself."""

from collections.abc import Sequence

from cape_stream.adapters.embedded import EmbeddedLog
from cape_stream.ports.log import Member, Record, TopicPartition, Watermarks


class Follower:
    """A member that resumes whatever it gets; `records` are all it has received."""

    def __init__(self, log: EmbeddedLog, group: str, topics: Sequence[str]) -> None:
        self.records: list[Record] = []
        self.repositions: list[tuple[TopicPartition, int, Watermarks]] = []
        self.told: list[str] = []
        self.member: Member = log.member(group, topics, self)

    def poll(self, max_records: int = 100, timeout_ms: int = 0) -> list[Record]:
        records = self.member.poll(max_records, timeout_ms)
        self.records += records
        return records

    def drain(self, max_records: int = 100) -> list[Record]:
        """Poll twice for the assignment, then until nothing comes."""
        self.poll(max_records)
        while self.poll(max_records):
            pass
        return self.records

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append("assigned")
        self.member.resume(partitions)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append("revoked")

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append("lost")

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        self.repositions.append((partition, committed, kept))
