"""Questions to an event source: many subjects in one call, and nobody waits for a slow one.

A call that fails or takes too long is split: each of its subjects is asked again alone, so one bad
subject spoils nobody else's answer. A subject that fails alone gets a `QueryFault`, and the
scheduler backs off for that subject only.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.background import Background, Pending
from cape_stream.ports.source import EventSource
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.task import Task

Answer = EventPage | QueryFault


@dataclass(slots=True)
class _Call:
    """One call that is out."""

    asked: list[tuple[Task, EventQuery]]
    pending: Pending[Sequence[Answer]]
    started_ms: int


@dataclass(slots=True)
class SourceCounters:
    """For metrics; each grows only."""

    calls: int = 0
    queries: int = 0
    failed_calls: int = 0
    timed_out_calls: int = 0


class Questions:
    """Asks one source on behalf of all tasks of a group."""

    def __init__(
        self, source: EventSource, background: Background, settings: EngineSettings
    ) -> None:
        self._source = source
        self._background = background
        self._settings = settings
        self._waiting: deque[tuple[Task, EventQuery]] = deque()
        self._alone: deque[tuple[Task, EventQuery]] = deque()
        """Queries whose call failed: each gets a call of its own."""
        self._calls: list[_Call] = []
        self._hanging: list[Pending[Sequence[Answer]]] = []
        """Calls that were given up and have not returned: each still holds a thread."""
        self.counters = SourceCounters()

    @property
    def busy(self) -> bool:
        """True while an answer is expected."""
        return bool(self._calls or self._waiting or self._alone)

    def ask(self, task: Task, queries: Sequence[EventQuery]) -> None:
        """Queue questions of a task."""
        self._waiting.extend((task, query) for query in queries)

    def turn(self, now_ms: int) -> list[tuple[Task, list[Answer]]]:
        """Start what may start; answers that have come, by task that is still open."""
        answers: dict[int, tuple[Task, list[Answer]]] = {}
        running: list[_Call] = []
        for call in self._calls:
            if call.pending.done():
                found = self._collect(call)
            elif now_ms - call.started_ms >= self._settings.source_timeout_ms:
                self.counters.timed_out_calls += 1
                self._hanging.append(call.pending)
                found = self._give_up(call, "no answer within the timeout")
            else:
                running.append(call)
                continue
            for (task, _), answer in found:
                if task.open:
                    answers.setdefault(id(task), (task, []))[1].append(answer)
        self._calls = running
        self._start(now_ms)
        return list(answers.values())

    def _start(self, now_ms: int) -> None:
        self._hanging = [pending for pending in self._hanging if not pending.done()]
        while len(self._calls) + len(self._hanging) < self._settings.source_calls_max:
            if self._alone:
                batch = [self._alone.popleft()]
            elif self._waiting:
                size = min(len(self._waiting), self._settings.source_batch_max)
                batch = [self._waiting.popleft() for _ in range(size)]
            else:
                return
            batch = [(task, query) for task, query in batch if task.open]
            if not batch:
                continue
            queries = [query for _, query in batch]
            self.counters.calls += 1
            self.counters.queries += len(queries)
            pending = self._background.submit(self._call_for(queries))
            self._calls.append(_Call(batch, pending, now_ms))

    def _call_for(self, queries: list[EventQuery]) -> "_Fetch":
        return _Fetch(self._source, queries)

    def _collect(self, call: _Call) -> list[tuple[tuple[Task, EventQuery], Answer]]:
        try:
            answers = list(call.pending.result())
            if len(answers) != len(call.asked):
                reason = f"{len(answers)} answers for {len(call.asked)} queries"
                return self._give_up(call, reason)
        except Exception as error:  # noqa: BLE001  # foreign code may raise anything
            self.counters.failed_calls += 1
            return self._give_up(call, f"{type(error).__name__}: {error}")
        return [
            (asked, _checked(asked[1], answer))
            for asked, answer in zip(call.asked, answers, strict=True)
        ]

    def _give_up(self, call: _Call, reason: str) -> list[tuple[tuple[Task, EventQuery], Answer]]:
        if len(call.asked) > 1:
            self._alone.extend(call.asked)
            return []
        return [(asked, QueryFault(asked[1], reason)) for asked in call.asked]


@dataclass(slots=True)
class _Fetch:
    """One call, ready to run in the background."""

    source: EventSource
    queries: list[EventQuery]

    def __call__(self) -> Sequence[Answer]:
        return self.source.fetch_many(self.queries)


def _checked(query: EventQuery, answer: object) -> Answer:
    """The source's answer, if it is one to this query."""
    if isinstance(answer, EventPage | QueryFault) and answer.query == query:
        return answer
    return QueryFault(query, "the source answered something else")
