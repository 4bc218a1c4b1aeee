"""One wake-up time a subject, and nothing left behind by those that leave."""

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.inflight.wakes import EXACT_MAX, Wakes


def subjects(count: int) -> list[SubjectState]:
    return [SubjectState(f"S{number}", [-1], -1) for number in range(count)]


def test_earliest_of_several_times_counts() -> None:
    wakes, (one,) = Wakes(), subjects(1)
    for due_ms in (500, 100, 300):
        wakes.add(one, due_ms)

    assert wakes.next_ms() == 100
    assert wakes.take(99) == []
    assert wakes.take(100) == [one]
    assert (wakes.take(1_000), wakes.next_ms()) == ([], None)


def test_subject_that_left_leaves_nothing_behind() -> None:
    wakes, some = Wakes(), subjects(1_000)
    for number, each in enumerate(some):
        wakes.add(each, 300_000 + 97 * number)
    for each in some:
        wakes.discard(each)

    assert wakes.next_ms() is None
    assert wakes._due_ms == {}
    assert wakes._buckets == {}


def test_crowd_that_is_due_together_is_looked_for_at_the_end_of_its_bucket() -> None:
    wakes, some = Wakes(), subjects(EXACT_MAX + 1)
    for each in some:
        wakes.add(each, 160)

    assert wakes.next_ms() == 175
    assert wakes.take(160) == some


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 4), st.integers(0, 200)),
            st.tuples(st.just("discard"), st.integers(0, 4), st.just(0)),
            st.tuples(st.just("take"), st.just(0), st.integers(0, 220)),
        )
    )
)
def test_wakes_do_what_a_plain_table_would(steps: list[tuple[str, int, int]]) -> None:
    wakes, some = Wakes(), subjects(5)
    table: dict[int, int] = {}
    for what, number, ms in steps:
        if what == "add":
            wakes.add(some[number], ms)
            table[number] = min(ms, table.get(number, ms))
        elif what == "discard":
            wakes.discard(some[number])
            table.pop(number, None)
        else:
            due = {each for each, due_ms in table.items() if due_ms <= ms}
            taken = wakes.take(ms)
            assert {some.index(each) for each in taken} == due
            assert [table[some.index(e)] for e in taken] == sorted(table[e] for e in due)
            for each in due:
                del table[each]
        assert wakes.next_ms() == min(table.values(), default=None)
