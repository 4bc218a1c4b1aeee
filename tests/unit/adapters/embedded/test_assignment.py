from cape_stream.adapters.embedded.assignment import assign
from cape_stream.ports.log import TopicPartition


def _owned(target: dict[TopicPartition, int], member: int) -> set[tuple[str, int]]:
    return {name for name, owner in target.items() if owner == member}


def test_assign_gives_everything_to_the_only_member() -> None:
    target = assign({7: ["a", "b"]}, {"a": 2, "b": 1, "other": 5}, {})

    assert _owned(target, 7) == {("a", 0), ("a", 1), ("b", 0)}
    assert len(target) == 3


def test_assign_keeps_the_numbers_of_equal_topics_together() -> None:
    target = assign({1: ["a", "b"], 2: ["a", "b"]}, {"a": 3, "b": 3}, {})

    assert [target[TopicPartition("a", n)] for n in range(3)] == [
        target[TopicPartition("b", n)] for n in range(3)
    ]
    assert sorted((len(_owned(target, 1)), len(_owned(target, 2)))) == [2, 4]


def test_assign_gives_the_odd_ones_to_members_that_have_least() -> None:
    topics = ["one", "two", "three"]

    target = assign({1: topics, 2: topics}, {"one": 1, "two": 3, "three": 5}, {})

    assert sorted((len(_owned(target, 1)), len(_owned(target, 2)))) == [4, 5]


def test_assign_moves_only_the_surplus_when_a_member_joins() -> None:
    before = assign({1: ["a"], 2: ["a"]}, {"a": 6}, {})

    after = assign({1: ["a"], 2: ["a"], 3: ["a"]}, {"a": 6}, before)

    moved = {name for name in after if after[name] != before[name]}
    assert moved == _owned(after, 3)
    assert len(moved) == 2


def test_assign_moves_only_what_is_free_when_a_member_leaves() -> None:
    before = assign({1: ["a"], 2: ["a"], 3: ["a"]}, {"a": 7}, {})

    after = assign({1: ["a"], 3: ["a"]}, {"a": 7}, before)

    assert {name for name in after if after[name] != before[name]} == _owned(before, 2)


def test_assign_leaves_nobody_but_subscribers_with_a_topic() -> None:
    target = assign({1: ["a"], 2: ["b"], 3: ["a", "b"]}, {"a": 4, "b": 4}, {})

    assert {owner for name, owner in target.items() if name.topic == "a"} == {1, 3}
    assert {owner for name, owner in target.items() if name.topic == "b"} == {2, 3}


def test_assign_leaves_out_topics_that_nobody_wants() -> None:
    assert assign({}, {"a": 4}, {TopicPartition("a", 0): 1}) == {}
