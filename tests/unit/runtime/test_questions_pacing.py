"""What `Questions` does when a source, or a subject of it, is in trouble."""

from collections.abc import Sequence
from itertools import pairwise
from threading import Event as Flag
from typing import Any

import pytest

from cape_stream.adapters.simulated import MemoryTable
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.source import NotAskedError
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.questions import STILL_HANGING, Questions
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.source_pacing import SourceState
from cape_stream.runtime.steady import ThreadBackground
from cape_stream.runtime.task import Task
from tests.unit.runtime.test_questions import GROUP, Desk, OddSource, pages, query

NAMES = [f"S{number:02}" for number in range(40)]


class Trouble:
    """A source that is down, or cannot read some subjects."""

    def __init__(self) -> None:
        self.down = False
        self.bad: set[str] = set()

    def __call__(self, queries: Sequence[EventQuery]) -> list[EventPage]:
        if self.down or any(each.subject in self.bad for each in queries):
            raise OSError("no")
        return pages(queries)


def desk_with(trouble: Trouble, **settings: int) -> Desk:
    return Desk(trouble, **{"source_failing_subjects": 3, **settings})


def opened(trouble: Trouble, *subjects: str) -> Desk:
    """A desk whose source went down; three of its subjects made that known."""
    trouble.down = True
    desk = desk_with(trouble, source_backoff_ms=1_000, source_backoff_max_ms=1_000)
    desk.ask(*subjects)
    assert list(desk.answers(0)) == list(subjects[:2])
    assert desk.questions.state is SourceState.OPEN
    return desk


def test_queries_of_a_source_that_is_down_wait_and_get_no_faults() -> None:
    trouble = Trouble()
    desk = opened(trouble, *NAMES)
    calls = len(desk.source.calls)

    assert calls == 1 + 4, "all together, then four alone, the limit after the first failure"
    assert desk.answers(499, turns=20) == {}
    assert len(desk.source.calls) == calls
    assert desk.questions.busy


def test_half_open_lets_one_call_through_for_a_subject_that_has_not_failed() -> None:
    desk = opened(Trouble(), *NAMES)
    before = len(desk.source.calls)
    asked: list[list[str]] = []
    now_ms = 0
    for _ in range(4):
        now_ms = desk.questions.opens_until_ms or 0
        assert desk.answers(now_ms, turns=10) == {}
        asked += desk.source.calls[before + len(asked) :]

    assert [len(call) for call in asked] == [1, 1, 1, 1]
    assert len({subject for (subject,) in asked}) == 4
    assert {subject for (subject,) in asked}.isdisjoint(NAMES[:3])


def test_source_that_is_back_answers_everything_that_waited_in_few_calls() -> None:
    trouble = Trouble()
    desk = opened(trouble, *NAMES)
    trouble.down = False
    before = len(desk.source.calls)
    answers = desk.answers(1_000, turns=20)

    assert answers == {name: EventPage(query(name)) for name in NAMES[2:]}
    assert desk.questions.state is SourceState.CLOSED
    assert sorted(len(call) for call in desk.source.calls[before:]) == [1, 1, 1, 35]


def test_probe_that_never_reached_the_source_is_made_again_at_once() -> None:
    trouble = Trouble()
    desk = opened(trouble, *NAMES)
    reply, refusals = desk.source.reply, [NotAskedError("busy")]

    def busy_once(queries: Sequence[EventQuery]) -> list[EventPage]:
        if refusals:
            raise refusals.pop()
        answers: list[EventPage] = reply(queries)
        return answers

    desk.source.reply = busy_once
    trouble.down = False

    assert len(desk.answers(1_000, turns=20)) == len(NAMES) - 2
    assert desk.questions.state is SourceState.CLOSED
    assert not refusals


def test_probe_is_not_held_up_by_a_call_that_was_out_when_the_breaker_opened() -> None:
    trouble = Trouble()
    desk = desk_with(trouble, source_batch_max=1, source_timeout_ms=100_000)
    desk.background.holds = True
    desk.ask("slow")
    desk.questions.turn(0)
    desk.background.holds = False
    trouble.down = True
    desk.ask("A", "B", "C", "D")
    desk.answers(0)
    assert desk.questions.state is SourceState.OPEN
    trouble.down = False

    assert sorted(desk.answers(1_000, turns=10)) == ["C", "D"]


def test_call_of_before_the_opening_that_is_answered_closes_the_breaker() -> None:
    trouble = Trouble()
    desk = desk_with(trouble, source_batch_max=1)
    desk.background.holds = True
    desk.ask("early")
    desk.questions.turn(0)
    desk.background.holds = False
    trouble.down = True
    desk.ask("A", "B", "C")
    desk.answers(0)
    trouble.down = False
    desk.background.release()

    assert sorted(desk.answers(1)) == ["C", "early"]
    assert desk.questions.state is SourceState.CLOSED


def test_call_of_before_the_opening_that_fails_later_waits_with_the_others() -> None:
    trouble = Trouble()
    desk = desk_with(trouble, source_batch_max=1)
    desk.background.holds = True
    desk.ask("early")
    desk.questions.turn(0)
    desk.background.holds = False
    trouble.down = True
    desk.ask("A", "B", "C")
    desk.answers(0)
    desk.background.release()
    assert desk.answers(1) == {}
    trouble.down = False

    assert sorted(desk.answers(1_000, turns=10)) == ["C", "early"]


def test_one_subject_that_fails_alone_opens_nothing() -> None:
    trouble = Trouble()
    trouble.bad = {"bad"}
    desk = desk_with(trouble)
    for now_ms in range(0, 100_000, 1_000):
        desk.ask("bad")
        assert isinstance(desk.answers(now_ms)["bad"], QueryFault)

    assert desk.questions.state is SourceState.CLOSED


def test_subject_that_failed_alone_is_asked_apart_until_it_is_answered() -> None:
    trouble = Trouble()
    trouble.bad = {"bad"}
    desk = desk_with(trouble)
    desk.ask("A", "bad")
    desk.answers()
    desk.source.calls.clear()
    desk.ask("A", "bad", "B")
    desk.answers()
    assert sorted(desk.source.calls) == [["A", "B"], ["bad"]]

    trouble.bad = set()
    desk.ask("bad")
    desk.answers()
    desk.source.calls.clear()
    desk.ask("A", "bad", "B")
    desk.answers()
    assert desk.source.calls == [["A", "bad", "B"]]


def test_subjects_asked_alone_take_at_most_half_of_the_calls_while_others_wait() -> None:
    trouble = Trouble()
    trouble.bad = set(NAMES[:10])
    desk = desk_with(trouble, source_failing_subjects=100, source_calls_max=4, source_batch_max=5)
    desk.ask(*NAMES[:10])
    desk.answers(turns=20)
    desk.source.calls.clear()
    trouble.bad = set()
    while desk.questions.limit < 4:
        desk.questions.pace.grow()
    desk.background.holds = True
    desk.ask(*NAMES)
    desk.questions.turn(10_000)
    desk.background.release()

    assert sorted(len(call) for call in desk.source.calls) == [1, 1, 5, 5]


@pytest.mark.parametrize("batch_max", [1, 5])
def test_subjects_asked_alone_get_their_turn_where_one_call_goes_out_at_a_time(
    batch_max: int,
) -> None:
    trouble = Trouble()
    trouble.bad = set(NAMES[:3])
    desk = desk_with(
        trouble, source_failing_subjects=100, source_calls_max=1, source_batch_max=batch_max
    )
    desk.ask(*NAMES[:3])
    desk.answers(turns=20)
    desk.source.calls.clear()
    desk.ask(*NAMES)
    desk.answers(10_000, turns=6)

    kinds = [call[0] in trouble.bad for call in desk.source.calls]
    assert sorted(kinds) == [False] * 3 + [True] * 3
    assert all(one is not next_one for one, next_one in pairwise(kinds)), "they take turns"


def test_slow_answers_mean_fewer_calls_and_quick_ones_more() -> None:
    desk = Desk(pages, source_batch_max=1, source_slow_ms=100, source_timeout_ms=10_000)
    desk.background.holds = True
    desk.ask(*NAMES)
    desk.questions.turn(0)
    assert desk.questions.calls_out == 8
    desk.background.release()
    desk.questions.turn(100)
    assert desk.questions.limit == 4
    assert desk.questions.counters.slow_calls == 8
    assert desk.questions.calls_out == 4

    desk.background.holds = False
    desk.background.release()
    desk.answers(150, turns=40)
    assert desk.questions.limit == 8


def test_calls_that_time_out_mean_fewer_calls() -> None:
    desk = Desk(pages, source_batch_max=2, source_calls_max=8)
    desk.background.holds = True
    desk.ask(*NAMES[:4])
    desk.questions.turn(0)
    desk.questions.turn(1_000)

    assert desk.questions.limit == 4
    assert desk.questions.calls_hanging == 2


def test_subject_that_fails_alone_does_not_slow_down_the_others() -> None:
    trouble = Trouble()
    trouble.bad = {"bad"}
    desk = desk_with(trouble)
    desk.ask("bad")
    desk.answers(0)
    assert desk.questions.limit == 4, "nothing else was answered yet"
    desk.ask("A")
    desk.answers(5_000)
    desk.ask("bad")
    desk.answers(5_999)

    assert desk.questions.limit == 4
    desk.ask("bad")
    desk.answers(6_000)
    assert desk.questions.limit == 2


def test_subject_of_which_two_calls_hang_gets_no_third_thread() -> None:
    desk = Desk(pages, source_calls_max=3)
    desk.background.holds = True
    for now_ms in (0, 1_000):
        desk.ask("stuck")
        desk.questions.turn(now_ms)
        assert desk.answers(now_ms + 1_000) == {
            "stuck": QueryFault(query("stuck"), "no answer within the timeout")
        }
    desk.ask("stuck", "A")
    desk.background.holds = False

    assert desk.answers(3_000) == {
        "stuck": QueryFault(query("stuck"), STILL_HANGING),
        "A": EventPage(query("A")),
    }
    desk.background.release()
    desk.ask("stuck")
    assert desk.answers(4_000) == {"stuck": EventPage(query("stuck"))}


def test_source_of_which_all_calls_hang_says_so() -> None:
    desk = Desk(pages, source_batch_max=1, source_calls_max=2)
    desk.background.holds = True
    desk.ask("A", "B", "C")
    desk.questions.turn(0)
    desk.questions.turn(1_000)
    assert desk.questions.state is SourceState.HANGING
    assert len(desk.background.waiting) == 2
    desk.background.holds = False
    desk.background.release()

    assert sorted(desk.answers(1_001)) == ["C"]
    assert not desk.questions.calls_hanging


def test_source_that_answers_with_faults_is_not_down() -> None:
    desk = Desk(
        lambda queries: [QueryFault(each, "held back") for each in queries],
        source_failing_subjects=3,
        source_batch_max=1,
    )
    desk.ask(*NAMES)

    assert len(desk.answers(turns=20)) == len(NAMES)
    assert desk.questions.state is SourceState.CLOSED


def test_probe_of_a_task_that_left_meanwhile_still_tells_how_the_source_is() -> None:
    trouble = Trouble()
    desk = opened(trouble, *NAMES)
    trouble.down = False
    desk.background.holds = True
    desk.questions.turn(1_000)
    desk.task.move_to(TaskState.CLOSED)
    desk.background.release()

    assert desk.answers(1_001) == {}
    assert desk.questions.state is SourceState.CLOSED


def test_domain_whose_source_hangs_holds_no_other_domain_up() -> None:
    settings = EngineSettings(source_calls_max=2, source_batch_max=1)
    background = ThreadBackground(2 * settings.source_calls_max, "test-sources")
    returns, started = Flag(), Flag()

    def hang(queries: Sequence[EventQuery]) -> Any:
        started.set()
        returns.wait()
        return pages(queries)

    hanging = Questions(OddSource(hang), background, settings)
    healthy = Questions(OddSource(pages), background, settings)
    task = Task(GROUP, 0, MemoryTable())
    hanging.ask(task, [query(name) for name in NAMES])
    hanging.turn(0)
    assert started.wait(20)
    healthy.ask(task, [query(name) for name in NAMES])
    answered = 0
    while answered < len(NAMES):
        answered += sum(len(answers) for _, answers in healthy.turn(0))
        hanging.turn(0)

    assert healthy.state is SourceState.CLOSED
    returns.set()
    background.close()
