"""Which member owns which partition: pure, sticky, even, and the same number on one member."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from cape_stream.ports.log import TopicPartition


def assign(
    subscriptions: Mapping[int, Collection[str]],
    partition_counts: Mapping[str, int],
    owners: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Owner of every partition that somebody subscribes to.

    Topics with the same subscribers and the same number of partitions form one bundle: a
    partition number of it is one unit and never splits. Within a bundle every member gets its
    even share, the odd ones go to members that have least so far, and no unit moves that need
    not move.

    Args:
        subscriptions: member id → topics.
        partition_counts: topic → partitions, of the topics that exist.
        owners: who has what now; owners that are not members any more do not count.
    """
    bundles: dict[tuple[tuple[int, ...], int], list[str]] = defaultdict(list)
    for topic in sorted(partition_counts):
        subscribers = tuple(sorted(m for m, topics in subscriptions.items() if topic in topics))
        if subscribers:
            bundles[subscribers, partition_counts[topic]].append(topic)
    loads = dict.fromkeys(subscriptions, 0)
    target: dict[TopicPartition, int] = {}
    for (subscribers, units), topics in bundles.items():
        held = _held_units(topics, units, subscribers, owners)
        for unit, member in _share(units, subscribers, held, loads).items():
            loads[member] += len(topics)
            target.update((TopicPartition(topic, unit), member) for topic in topics)
    return target


def _held_units(
    topics: Sequence[str],
    units: int,
    subscribers: Sequence[int],
    owners: Mapping[TopicPartition, int],
) -> dict[int, list[int]]:
    """Member → units it has now, ascending; a unit counts for the owner of its first topic."""
    held: dict[int, list[int]] = {member: [] for member in subscribers}
    for unit in range(units):
        for topic in topics:
            owner = owners.get(TopicPartition(topic, unit))
            if owner in held:
                held[owner].append(unit)
                break
    return held


def _share(
    units: int,
    subscribers: Sequence[int],
    held: Mapping[int, Sequence[int]],
    loads: Mapping[int, int],
) -> dict[int, int]:
    """Unit → member, keeping what fits into each member's share."""
    share, odd = divmod(units, len(subscribers))
    by_need = sorted(subscribers, key=lambda member: (loads[member], -len(held[member]), member))
    shares = {member: share + (place < odd) for place, member in enumerate(by_need)}
    owner_of = {unit: m for m in subscribers for unit in held[m][: shares[m]]}
    free = [unit for unit in range(units) if unit not in owner_of]
    for member in by_need:
        kept = min(len(held[member]), shares[member])
        for _ in range(shares[member] - kept):
            owner_of[free.pop(0)] = member
    return owner_of
