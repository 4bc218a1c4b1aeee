"""Questions to an event source: many subjects in one call, and nobody waits for a slow one.

A call that fails or takes too long is split: each of its subjects is asked again alone, so one bad
subject spoils nobody else's answer. A subject that fails alone gets a `QueryFault`, the scheduler
backs off for that subject only, and from then on it is asked apart from the others. When many
subjects fail alone and none is answered, it is the source: queries wait then, and get no faults.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cape_stream.model.request import EventQuery, QueryFault
from cape_stream.ports.background import Background
from cape_stream.ports.source import EventSource, NotAskedError
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.source_calls import Answer, Asked, Call, Fetch, checked
from cape_stream.runtime.source_pacing import ConcurrencyLimit, SourceBreaker, SourceState
from cape_stream.runtime.task import Task

logger = logging.getLogger(__name__)

APART_MAX = 10_000
"""Subjects remembered as failing alone; beyond that the oldest is asked with the others again."""

HANGING_MAX = 2
"""Calls of one subject that may hang: one may have lost its connection, two tell of the subject,
and it shall not take the threads of all."""

TELL_EVERY_MS = 10_000
"""Pause between two lines about subjects that a source fails for."""

STILL_HANGING = "two earlier calls for this subject were given up and have not returned"


@dataclass(slots=True)
class SourceCounters:
    """For metrics; each grows only."""

    calls: int = 0
    queries: int = 0
    failed_calls: int = 0
    timed_out_calls: int = 0
    slow_calls: int = 0
    """Answered, but so late that fewer calls go out at a time."""
    probes: int = 0
    """Calls to see whether a source that was down is back."""
    not_asked: int = 0
    """Calls that never reached the source, because others asked it as much as it bears."""


class SourceStanding(NamedTuple):
    """How it goes with one source."""

    state: SourceState
    opens_until_ms: int | None
    """While it is taken for down: when it is looked at again, Unix milliseconds."""
    calls_out: int
    calls_max: int
    """Calls that may be out now."""
    calls_hanging: int
    """Calls that were given up and have not returned."""
    failing: Mapping[str, str]
    """Subjects that it fails for, though not for all, and why; of very many the newest."""


class Questions:
    """Asks one source on behalf of all tasks of a group; ``name`` is the group's, for people."""

    def __init__(
        self,
        source: EventSource,
        background: Background,
        settings: EngineSettings,
        name: str = "",
    ) -> None:
        self._name = name
        self._source = source
        self._background = background
        self._settings = settings
        self._waiting: deque[Asked] = deque()
        self._alone: deque[Asked] = deque()
        """Queries that get a call of their own: one they shared has failed, or they always do."""
        self._apart: dict[str, None] = {}
        """Subjects that failed alone and have not been answered since."""
        self._calls: list[Call] = []
        self._hanging: list[Call] = []
        """Calls that were given up and have not returned: each still holds a thread."""
        self.failing: dict[str, str] = {}
        """Subjects whose last answer was a fault, and the reason."""
        self._told_ms: int | None = None
        self._last_was_alone = False
        self._answered_ms: int | None = None
        """When a call was last answered."""
        self.pace = ConcurrencyLimit(settings)
        self.breaker = SourceBreaker(settings)
        self.counters = SourceCounters()

    @property
    def busy(self) -> bool:
        """True while an answer is expected."""
        return bool(self._calls or self._waiting or self._alone)

    def next_ms(self, now_ms: int) -> int | None:
        """When `turn` may have something; None: not before another question is asked."""
        if not self.busy:
            return None
        opens_until_ms = self.opens_until_ms
        return now_ms if self._calls or opens_until_ms is None else opens_until_ms

    @property
    def state(self) -> SourceState:
        """What the source is taken for."""
        if len(self._hanging) >= self._settings.source_calls_max:
            return SourceState.HANGING
        return self.breaker.state

    @property
    def limit(self) -> int:
        """Calls that may be out now, from 1 to ``source_calls_max``."""
        return self.pace.calls

    @property
    def opens_until_ms(self) -> int | None:
        """While the source is taken for down: when it is looked at again, Unix milliseconds."""
        return self.breaker.opens_until_ms

    @property
    def calls_out(self) -> int:
        """Calls that are out and not given up; at most `limit` when one starts, but for a probe."""
        return len(self._calls)

    @property
    def calls_hanging(self) -> int:
        """Calls that were given up and have not returned."""
        return len(self._hanging)

    def standing(self) -> SourceStanding:
        """All of the above at one moment, to look at."""
        return SourceStanding(
            self.state,
            self.opens_until_ms,
            self.calls_out,
            self.limit,
            self.calls_hanging,
            self.failing,
        )

    def ask(self, task: Task, queries: Sequence[EventQuery]) -> None:
        """Queue questions of a task."""
        for query in queries:
            queue = self._alone if query.subject in self._apart else self._waiting
            queue.append((task, query))

    def turn(self, now_ms: int) -> list[tuple[Task, list[Answer]]]:
        """Start what may start; answers that have come, by task that is still open."""
        answers: dict[int, tuple[Task, list[Answer]]] = {}
        for (task, _), answer in [*self._ended(now_ms), *self._start(now_ms)]:
            self._note(answer, now_ms)
            if task.open:
                answers.setdefault(id(task), (task, []))[1].append(answer)
        return list(answers.values())

    def _note(self, answer: Answer, now_ms: int) -> None:
        """Keep who cannot be read, and tell of it now and then: nobody else waits for them, so it
        would go unnoticed."""
        subject = answer.query.subject
        if not isinstance(answer, QueryFault):
            if self.failing:
                self.failing.pop(subject, None)
            return
        if subject not in self.failing and now_ms >= (self._told_ms or 0) + TELL_EVERY_MS:
            self._told_ms = now_ms
            logger.warning("the source of %s fails for %r: %s", self._name, subject, answer.reason)
        self.failing[subject] = answer.reason
        if len(self.failing) > APART_MAX:
            del self.failing[next(iter(self.failing))]

    # --- starting calls ------------------------------------------------------------------------

    def _start(self, now_ms: int) -> list[tuple[Asked, Answer]]:
        """Start calls; answers that need none."""
        self._hanging = [call for call in self._hanging if not call.pending.done()]
        refused: list[tuple[Asked, Answer]] = []
        while (self._waiting or self._alone) and self._has_room(now_ms):
            is_probe = self.breaker.state is not SourceState.CLOSED
            is_alone = self._turn_of_alone(is_probe)
            queue = self._alone if is_alone else self._waiting
            is_single = is_alone or is_probe
            size = 1 if is_single else min(len(queue), self._settings.source_batch_max)
            asked = [each for each in (queue.popleft() for _ in range(size)) if each[0].open]
            if is_alone and asked and self._hangs(asked[0][1].subject):
                refused.append((asked[0], QueryFault(asked[0][1], STILL_HANGING)))
            elif asked:
                self._submit(asked, is_single, is_probe, now_ms)
                self._last_was_alone = is_alone
        return refused

    def _has_room(self, now_ms: int) -> bool:
        """Hanging calls count against the maximum only: against the limit, which is 1 in bad times,
        a single one that never returns would stop everything."""
        out = len(self._calls)
        if out + len(self._hanging) >= self._settings.source_calls_max:
            return False
        if self.breaker.state is SourceState.CLOSED:
            return out < self.limit
        return self.breaker.may_probe(now_ms)

    def _turn_of_alone(self, is_probe: bool) -> bool:
        """Whose turn it is: those that are asked alone get at most half of the slots while others
        wait, and a probe is none of them, for they may be at fault themselves."""
        if not self._waiting or not self._alone:
            return bool(self._alone)
        if is_probe:
            return False
        if self.limit == 1:
            return not self._last_was_alone
        return sum(call.is_alone for call in self._calls) < self.limit // 2

    def _submit(self, asked: list[Asked], is_alone: bool, is_probe: bool, now_ms: int) -> None:
        queries = [query for _, query in asked]
        self.counters.calls += 1
        self.counters.queries += len(queries)
        if is_probe:
            self.counters.probes += 1
            self.breaker.probe()
        pending = self._background.submit(Fetch(self._source, queries))
        self._calls.append(Call(asked, pending, now_ms, is_alone, is_probe))
        if len(self._calls) >= self.limit:
            for call in self._calls:
                call.met_limit = True

    def _hangs(self, subject: str) -> bool:
        """True if too many of the subject's own calls still hang."""
        hanging = [call.asked[0][1].subject for call in self._hanging if len(call.asked) == 1]
        return hanging.count(subject) >= HANGING_MAX

    # --- calls that have ended -----------------------------------------------------------------

    def _ended(self, now_ms: int) -> list[tuple[Asked, Answer]]:
        """What the calls bring that have come back, or have had their time."""
        ended: list[tuple[Asked, Answer]] = []
        running: list[Call] = []
        for call in self._calls:
            if call.pending.done():
                ended += self._collect(call, now_ms)
            elif now_ms - call.started_ms >= self._settings.source_timeout_ms:
                self.counters.timed_out_calls += 1
                self._hanging.append(call)
                ended += self._give_up(call, "no answer within the timeout", now_ms)
            else:
                running.append(call)
        self._calls = running
        return ended

    def _collect(self, call: Call, now_ms: int) -> list[tuple[Asked, Answer]]:
        try:
            answers = list(call.pending.result())
        except NotAskedError:
            self._ask_again(call, now_ms)
            return []
        except Exception as error:  # noqa: BLE001  # foreign code may raise anything
            self.counters.failed_calls += 1
            return self._give_up(call, f"{type(error).__name__}: {error}", now_ms)
        if len(answers) != len(call.asked):
            self.counters.failed_calls += 1
            reason = f"{len(answers)} answers for {len(call.asked)} queries"
            return self._give_up(call, reason, now_ms)
        self._learn_from_success(call, now_ms)
        return [
            (asked, checked(asked[1], answer))
            for asked, answer in zip(call.asked, answers, strict=True)
        ]

    def _ask_again(self, call: Call, now_ms: int) -> None:
        """The call never left: its queries are the first of the next one."""
        self.counters.not_asked += 1
        queue = self._alone if call.is_alone else self._waiting
        queue.extendleft(reversed(call.asked))
        if call.is_probe:
            self.breaker.probe_withdrawn(now_ms)

    def _learn_from_success(self, call: Call, now_ms: int) -> None:
        self.breaker.answered()
        self._answered_ms = now_ms
        if len(call.asked) == 1:
            self._apart.pop(call.asked[0][1].subject, None)
        if now_ms - call.started_ms >= self._settings.source_slow_ms:
            self.counters.slow_calls += 1
            self.pace.cut(call.started_ms, now_ms)
        elif call.met_limit:
            self.pace.grow()

    def _give_up(self, call: Call, reason: str, now_ms: int) -> list[tuple[Asked, Answer]]:
        """What becomes of the queries of a call that has failed."""
        if len(call.asked) > 1:
            self.pace.cut(call.started_ms, now_ms)
            self._alone.extend(call.asked)
            return []
        if not self._others_are_answered(now_ms):
            self.pace.cut(call.started_ms, now_ms)
        (asked,) = call.asked
        subject = asked[1].subject
        if call.is_probe:
            self.breaker.probe_failed(now_ms)
        elif self.breaker.failed(subject, now_ms):
            self._settle_down()
        if self.breaker.state is not SourceState.CLOSED:
            self._alone.append(asked)
            return []
        self._remember_apart(subject)
        return [(asked, QueryFault(asked[1], reason))]

    def _others_are_answered(self, now_ms: int) -> bool:
        """True if a subject that fails alone is most likely itself at fault."""
        answered_ms, window_ms = self._answered_ms, self._settings.source_window_ms
        return answered_ms is not None and now_ms - answered_ms < window_ms

    def _settle_down(self) -> None:
        """The breaker has opened: it was not their fault that calls they shared failed."""
        apart = [asked for asked in self._alone if asked[1].subject in self._apart]
        self._waiting += [asked for asked in self._alone if asked[1].subject not in self._apart]
        self._alone = deque(apart)
        self.pace.restart()

    def _remember_apart(self, subject: str) -> None:
        self._apart[subject] = None
        if len(self._apart) > APART_MAX:
            del self._apart[next(iter(self._apart))]
