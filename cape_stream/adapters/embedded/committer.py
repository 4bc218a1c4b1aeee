"""A committer: records and offsets in one write batch, refused when ownership is out of date."""

from collections.abc import Mapping, Sequence

from cape_stream.adapters.embedded.member import EmbeddedOwnership
from cape_stream.adapters.embedded.partition import size_of
from cape_stream.adapters.embedded.state import Append, State
from cape_stream.errors import Fatal, Fenced, Retry
from cape_stream.ports.log import Ownership, TopicPartition, Write


class EmbeddedCommitter:
    """`cape_stream.ports.log.Committer`. Safe to call from another thread than the member's."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._partitions = state.partitions

    def commit(
        self,
        writes: Sequence[Write],
        offsets: Mapping[TopicPartition, int],
        ownership: Ownership,
    ) -> Mapping[TopicPartition, int]:
        """All or nothing; a topic that does not exist (yet) raises Retry."""
        assert isinstance(ownership, EmbeddedOwnership), "a proof comes from a member of this log"
        group, state = ownership.group, self._state
        with state.lock:
            self._check(ownership, offsets)
            appends = [self._resolved(write) for write in writes]
            member = group.members[ownership.member_id]
            if member.silent_since_ms is not None:
                member.silent_since_ms = state.now_ms()  # a commit proves life as a poll does
            appended = state.append(appends, group, offsets)
        return {target.name: records[-1].offset for target, records in appended.items()}

    def close(self) -> None:
        """Nothing is ever open between two commits."""

    def _check(self, ownership: EmbeddedOwnership, offsets: Mapping[TopicPartition, int]) -> None:
        group = ownership.group
        if ownership.member_id not in group.members:
            raise Fenced(f"group {group.name} goes on without this member")
        foreign = [
            f"{name.topic}[{name.partition}]"
            for name in offsets
            if not group.owned_since(name, ownership.member_id, ownership.claims)
        ]
        if foreign:
            raise Fenced(f"group {group.name}: no longer ours: {', '.join(sorted(foreign))}")

    def _resolved(self, write: Write) -> Append:
        partition = self._partitions.get(write[:2])
        if partition is None:
            raise Retry(f"partition {write.partition} of topic {write.topic} does not exist")
        size = size_of(write.key, write.value)
        if size > partition.record_bytes_max:
            raise Fatal(
                f"a state record of {size} bytes is over the limit of {partition.record_bytes_max}"
                f" of topic {write.topic} (max.message.bytes): raise the limit"
            )
        return partition, write.key, write.value
