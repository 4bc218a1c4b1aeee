from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cape_stream.adapters.simulated import MemoryTable
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.source import Changes, NotAskedError
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.questions import Questions
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.source_calls import Answer
from cape_stream.runtime.task import Task
from tests.desk import topology
from tests.unit.runtime.engine_worlds import EngineWorld, InlineBackground

GROUP = EngineWorld(topology("T1")).group()


class OddSource:
    """A source that does what the test says; it notes what it was asked."""

    def __init__(self, reply: Callable[[Sequence[EventQuery]], Any]) -> None:
        self.reply = reply
        self.calls: list[list[str]] = []

    def fetch_many(self, queries: Sequence[EventQuery]) -> Any:
        """See `EventSource.fetch_many`."""
        self.calls.append([query.subject for query in queries])
        return self.reply(queries)

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """Not asked here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free."""


def pages(queries: Sequence[EventQuery]) -> list[EventPage]:
    return [EventPage(query) for query in queries]


def query(subject: str) -> EventQuery:
    return EventQuery(subject, 0, 10)


class Desk:
    """Questions to one source from one task."""

    def __init__(self, reply: Callable[[Sequence[EventQuery]], Any], **settings: int) -> None:
        self.source = OddSource(reply)
        self.background = InlineBackground()
        self.task = Task(GROUP, 0, MemoryTable())
        bounds = EngineSettings(**{"source_timeout_ms": 1_000, **settings})
        self.questions = Questions(self.source, self.background, bounds)

    def ask(self, *subjects: str, task: Task | None = None) -> None:
        self.questions.ask(task or self.task, [query(subject) for subject in subjects])

    def answers(self, now_ms: int = 0, turns: int = 5) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        for _ in range(turns):
            for _, answers in self.questions.turn(now_ms):
                for answer in answers:
                    assert answer.query.subject not in found, "answered twice"
                    found[answer.query.subject] = answer
        return found


def test_questions_of_many_subjects_go_out_in_one_call() -> None:
    desk = Desk(pages)
    desk.ask("A", "B")
    desk.ask("C")

    assert desk.questions.busy
    assert desk.answers() == {subject: EventPage(query(subject)) for subject in "ABC"}
    assert desk.source.calls == [["A", "B", "C"]]
    assert not desk.questions.busy


def test_questions_are_split_into_calls_of_bounded_size_and_number() -> None:
    desk = Desk(pages, source_batch_max=2, source_calls_max=2)
    desk.background.holds = True
    desk.ask(*"ABCDE")
    desk.questions.turn(0)

    assert len(desk.background.waiting) == 2
    desk.background.holds = False
    desk.background.release()
    assert sorted(desk.answers()) == list("ABCDE")
    assert desk.source.calls == [["A", "B"], ["C", "D"], ["E"]]


def raising_for(*bad: str, error: Exception) -> Callable[[Sequence[EventQuery]], Any]:
    def reply(queries: Sequence[EventQuery]) -> list[EventPage]:
        if any(each.subject in bad for each in queries):
            raise error
        return pages(queries)

    return reply


@pytest.mark.parametrize("error", [TypeError("no"), OSError("gone"), KeyError("x"), Exception()])
def test_call_that_fails_is_asked_again_one_by_one(error: Exception) -> None:
    desk = Desk(raising_for("B", error=error))
    desk.ask("A", "B", "C")
    answers = desk.answers()

    assert answers["A"] == EventPage(query("A"))
    assert answers["C"] == EventPage(query("C"))
    assert answers["B"] == QueryFault(query("B"), f"{type(error).__name__}: {error}")
    assert desk.source.calls == [["A", "B", "C"], ["A"], ["B"], ["C"]]
    assert desk.questions.counters.failed_calls == 2


def test_call_that_hangs_is_given_up_and_asked_again_one_by_one() -> None:
    desk = Desk(pages)
    desk.background.holds = True
    desk.ask("A", "B")
    desk.questions.turn(0)
    assert desk.answers(999) == {}
    hanging = desk.background.waiting[:]
    desk.background.waiting.clear()
    assert desk.answers(1_000) == {}
    assert len(desk.background.waiting) == 2

    assert desk.answers(2_000) == {
        subject: QueryFault(query(subject), "no answer within the timeout") for subject in "AB"
    }
    assert desk.questions.counters.timed_out_calls == 3
    hanging[0].run()
    assert desk.answers(2_000) == {}
    assert not desk.questions.busy


def test_hanging_calls_do_not_hold_up_the_others_while_slots_are_free() -> None:
    desk = Desk(pages, source_batch_max=1, source_calls_max=2)
    desk.background.holds = True
    desk.ask("slow")
    desk.questions.turn(0)
    desk.background.holds = False
    desk.ask("A", "B", "C")

    assert sorted(desk.answers()) == list("ABC")
    assert desk.questions.busy


class Sized:
    """Has a length and nothing else."""

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    "reply",
    [
        lambda queries: None,
        lambda queries: 7,
        lambda queries: Sized(),
        lambda queries: [],
        lambda queries: pages(queries)[:-1],
        lambda queries: [*pages(queries), pages(queries)[0]],
    ],
)
def test_call_with_a_wrong_number_of_answers_is_a_fault_of_each(
    reply: Callable[[Sequence[EventQuery]], Any],
) -> None:
    desk = Desk(reply)
    desk.ask("A", "B")
    answers = desk.answers()

    assert sorted(answers) == ["A", "B"]
    assert all(isinstance(answer, QueryFault) for answer in answers.values())


@pytest.mark.parametrize("answer", [None, "page", 7, EventPage(query("other")), []])
def test_answer_that_is_none_is_a_fault_of_its_subject_only(answer: Any) -> None:
    desk = Desk(lambda queries: [answer if q.subject == "B" else EventPage(q) for q in queries])
    desk.ask("A", "B")

    assert desk.answers() == {
        "A": EventPage(query("A")),
        "B": QueryFault(query("B"), "the source answered something else"),
    }


def test_answers_in_a_wrong_order_are_faults() -> None:
    desk = Desk(lambda queries: pages(queries)[::-1])
    desk.ask("A", "B")

    assert all(isinstance(answer, QueryFault) for answer in desk.answers().values())


def test_answer_may_be_any_iterable_of_the_right_length() -> None:
    desk = Desk(lambda queries: (page for page in pages(queries)))
    desk.ask("A", "B")

    assert sorted(desk.answers()) == ["A", "B"]


def test_fault_of_the_source_itself_is_handed_on() -> None:
    desk = Desk(lambda queries: [QueryFault(each, "row is broken") for each in queries])
    desk.ask("A")

    assert desk.answers() == {"A": QueryFault(query("A"), "row is broken")}


def test_answers_go_to_the_task_that_asked() -> None:
    desk = Desk(pages)
    other = Task(GROUP, 1, MemoryTable())
    desk.ask("A")
    desk.ask("B", task=other)
    desk.ask("C")
    found: dict[str, list[str]] = {}
    for _ in range(3):
        for task, answers in desk.questions.turn(0):
            found.setdefault(task.name, []).extend(each.query.subject for each in answers)

    assert found == {"flights-0": ["A", "C"], "flights-1": ["B"]}


def test_questions_of_a_task_that_left_are_dropped() -> None:
    desk = Desk(pages)
    desk.background.holds = True
    other = Task(GROUP, 1, MemoryTable())
    desk.ask("A", task=other)
    desk.questions.turn(0)
    desk.ask("B", task=other)
    desk.ask("C")
    other.move_to(TaskState.CLOSED)
    desk.background.holds = False
    desk.background.release()

    assert sorted(desk.answers()) == ["C"]
    assert desk.source.calls == [["A"], ["C"]]


def test_call_that_never_reached_the_source_is_made_again_as_it_was() -> None:
    refusals = [NotAskedError("busy"), NotAskedError("busy")]

    def reply(queries: Sequence[EventQuery]) -> list[EventPage]:
        if refusals:
            raise refusals.pop()
        return pages(queries)

    desk = Desk(reply, source_batch_max=2, source_calls_max=1)
    desk.ask(*"ABC")

    assert sorted(desk.answers()) == list("ABC")
    assert desk.source.calls == [["A", "B"], ["A", "B"], ["A", "B"], ["C"]]
    assert desk.questions.counters.not_asked == 2
    assert desk.questions.counters.failed_calls == 0
    assert desk.questions.pace.cuts == 0
