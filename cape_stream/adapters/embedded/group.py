"""One consumer group: members, who owns what, who shall own what, committed offsets."""

from collections.abc import Collection, Mapping
from itertools import count
from typing import Protocol

from cape_stream.adapters.embedded.assignment import assign
from cape_stream.ports.log import TopicPartition


class Joined(Protocol):
    """What a group must know of a member."""

    topics: Collection[str]
    silent_since_ms: int | None
    """When it last showed life; None while it waits in poll, which is life."""

    def wake(self) -> None:
        """End its wait in poll, so that it looks at its assignment."""
        ...


class Group:
    """Changed only under the log's lock.

    A partition has one owner at a time: it goes to the member that shall have it only after the
    one that had it let go. Members look at ``target`` from inside their own poll.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed: dict[TopicPartition, int] = {}
        self.members: dict[int, Joined] = {}
        self.owners: dict[TopicPartition, int] = {}
        self.claimed_at: dict[TopicPartition, int] = {}
        """Serial number of the claim by which the owner got it."""
        self.claims = 0
        """Claims so far; an ownership taken now vouches for claims up to this one."""
        self.target: dict[TopicPartition, int] = {}
        self.version = 0
        """Grows whenever a member may have something to do about its assignment."""
        self._ids = count(1)

    def join(self, member: Joined, partition_counts: Mapping[str, int]) -> int:
        """Add a member; its id is never used again."""
        member_id = next(self._ids)
        self.members[member_id] = member
        self.rebalance(partition_counts)
        return member_id

    def leave(self, member_id: int, partition_counts: Mapping[str, int]) -> None:
        """Remove a member and whatever it still owned."""
        del self.members[member_id]
        self.owners = {name: owner for name, owner in self.owners.items() if owner != member_id}
        self.rebalance(partition_counts)

    def rebalance(self, partition_counts: Mapping[str, int]) -> None:
        """Decide anew who shall own what."""
        subscriptions = {member_id: member.topics for member_id, member in self.members.items()}
        self.target = assign(subscriptions, partition_counts, self.owners)
        self.changed()

    def claim(self, member_id: int) -> list[TopicPartition]:
        """Make the member owner of what it shall have and nobody else has; returns what is new."""
        free = [
            name
            for name, wanted in self.target.items()
            if wanted == member_id and name not in self.owners
        ]
        self.claims += 1
        self.owners.update(dict.fromkeys(free, member_id))
        self.claimed_at.update(dict.fromkeys(free, self.claims))
        return free

    def owned_since(self, name: TopicPartition, member_id: int, claims: int) -> bool:
        """Whether the member owns it by a claim among the first ``claims``, so without a break."""
        return self.owners.get(name) == member_id and self.claimed_at[name] <= claims

    def release(self, member_id: int, names: Collection[TopicPartition]) -> None:
        """Let go, so that the members that wait for these can have them."""
        for name in names:
            if self.owners.get(name) == member_id:
                del self.owners[name]
        self.changed()

    def changed(self) -> None:
        """Have every member look."""
        self.version += 1
        for member in self.members.values():
            member.wake()

    def silent(self, now_ms: int, session_timeout_ms: int) -> list[int]:
        """Members that showed no life for too long, if anybody lively is there to take over."""
        gone = [
            member_id
            for member_id, member in self.members.items()
            if (since := member.silent_since_ms) is not None and now_ms - since > session_timeout_ms
        ]
        return gone if len(gone) < len(self.members) else []

    def consumed(self, name: TopicPartition) -> int | None:
        """Offset below which this group needs nothing; None if it has no say in the partition."""
        committed = self.committed.get(name)
        if committed is not None:
            return committed
        subscribed = any(name.topic in member.topics for member in self.members.values())
        return 0 if subscribed else None
