from cape_stream.core.inflight.subject import SubjectState
from cape_stream.model.sequence import SEQUENCE_MAX


def test_subject_begins_with_one_state_per_lambda() -> None:
    subject = SubjectState("S", [10, 90], 90)

    assert [(state.cursor, state.high) for state in subject.lambdas] == [(10, 10), (90, 90)]
    assert (subject.head, subject.seen, subject.open_jobs, subject.parked) == (90, 90, 0, 0)


def test_subject_cursor_of_a_topology_is_the_lowest_of_its_lambdas() -> None:
    subject = SubjectState("S", [10, 90, 50], 90)

    assert subject.cursor_of(range(1, 2)) == 90
    assert subject.cursor_of(range(1, 3)) == 50


def test_subject_looks_for_unnamed_news_above_all_it_knows() -> None:
    assert SubjectState("S", [-1], -1).next_unknown() == 0
    assert SubjectState("S", [10, 90], 95).next_unknown() == 96
    assert SubjectState("S", [10, 99], 95).next_unknown() == 100
    assert SubjectState("S", [-1], SEQUENCE_MAX).next_unknown() == SEQUENCE_MAX
