"""The embedded log's assignor, over random groups: complete, even, together, and sticky."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.adapters.embedded.assignment import assign
from cape_stream.ports.log import TopicPartition

TOPICS = ["p", "q", "r", "s"]
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
GROUPS = st.dictionaries(
    st.integers(1, 6), st.sets(st.sampled_from(TOPICS), min_size=1), min_size=1
)


def _subscribers(subscriptions: dict[int, set[str]], topic: str) -> frozenset[int]:
    return frozenset(member for member, topics in subscriptions.items() if topic in topics)


@given(GROUPS, GROUPS, COUNTS)
def test_assignment_is_complete_even_and_together(
    before: dict[int, set[str]], now: dict[int, set[str]], counts: dict[str, int]
) -> None:
    """Whatever the members owned before."""
    target = assign(now, counts, assign(before, counts, {}))

    wanted = {topic for topics in now.values() for topic in topics} & counts.keys()
    assert target.keys() == {TopicPartition(t, n) for t in wanted for n in range(counts[t])}
    bundles: dict[tuple[frozenset[int], int], list[str]] = defaultdict(list)
    for topic in wanted:
        subscribers = _subscribers(now, topic)
        bundles[subscribers, counts[topic]].append(topic)
        shares = Counter(target[TopicPartition(topic, n)] for n in range(counts[topic]))
        assert shares.keys() <= subscribers
        assert max(shares.values()) - min(shares[member] for member in subscribers) <= 1
    for (_, count), topics in bundles.items():
        for number in range(count):
            assert len({target[TopicPartition(topic, number)] for topic in topics}) == 1


@given(GROUPS, COUNTS)
def test_assignment_stays_when_nothing_changes(
    subscriptions: dict[int, set[str]], counts: dict[str, int]
) -> None:
    """Deciding again, with what everybody got, moves nothing."""
    target = assign(subscriptions, counts, {})

    assert assign(subscriptions, counts, target) == target


@given(st.integers(1, 5), st.integers(1, 20), st.booleans())
def test_assignment_moves_as_little_as_evenness_allows(
    members: int, partitions: int, joins: bool
) -> None:
    """One topic, one member comes or goes: only its own share moves."""
    small = {member: {"p"} for member in range(members)}
    large = {member: {"p"} for member in range(members + 1)}
    before, now = (small, large) if joins else (large, small)
    owners = assign(before, {"p": partitions}, {})

    target = assign(now, {"p": partitions}, owners)

    moved = [name for name in target if target[name] != owners[name]]
    of_the_one = target if joins else owners
    assert len(moved) == sum(1 for owner in of_the_one.values() if owner == members)
