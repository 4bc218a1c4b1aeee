"""Questions to sources that fail, hang, come back and cannot read some subjects, in any order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.adapters.simulated import MemoryTable
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.background import Background, Pending
from cape_stream.ports.source import Changes
from cape_stream.runtime.questions import Questions
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.source_pacing import SourceState
from cape_stream.runtime.task import Task
from tests.desk import topology
from tests.unit.runtime.engine_worlds import EngineWorld

T = TypeVar("T")
GROUP = EngineWorld(topology("T1")).group()
STEP_MS = 10


class Later(Generic[T]):
    """A piece of work that ends at a time."""

    def __init__(self, work: Callable[[], T], ends_ms: float, clock: "Clock") -> None:
        self._work = work
        self.ends_ms = ends_ms
        self._clock = clock

    def done(self) -> bool:
        """See `Pending.done`."""
        return self._clock.now_ms >= self.ends_ms

    def result(self) -> T:
        """See `Pending.result`."""
        return self._work()


@dataclass
class Clock:
    now_ms: int = 0


@dataclass
class Source(Background):
    """A source, and the threads that ask it: how a call ends is settled when it begins."""

    clock: Clock
    chance: Random
    down: bool = False
    hang_share: float = 0.0
    bad: frozenset[str] = frozenset()
    out: list[Later[Any]] = field(default_factory=list)
    asked: list[tuple[int, list[str]]] = field(default_factory=list)

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `EventSource.fetch_many`; how it ends is told by `submit`."""
        raise NotImplementedError

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """Not asked here."""
        raise NotImplementedError

    def submit(self, work: Callable[[], T], /) -> Pending[T]:
        """See `Background.submit`."""
        queries: list[EventQuery] = getattr(work, "queries")  # noqa: B009  # not of the port
        subjects = [query.subject for query in queries]
        self.asked.append((self.clock.now_ms, subjects))
        fails = self.down or not self.bad.isdisjoint(subjects)
        hangs = self.chance.random() < self.hang_share
        takes_ms = 100_000 if hangs else self.chance.choice([0, 5, 30, 120])

        def end() -> Any:
            if fails:
                raise OSError("no")
            return [EventPage(query) for query in queries]

        self.out = [each for each in self.out if not each.done()]
        self.out.append(Later(end, self.clock.now_ms + takes_ms, self.clock))
        return self.out[-1]

    def close(self) -> None:
        """Nothing to free."""


@dataclass
class Stage:
    """One source, its questions, and what was answered."""

    seed: int
    settings: EngineSettings
    answers: list[str] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.source = Source(self.clock, Random(self.seed))
        self.questions = Questions(self.source, self.source, self.settings)
        self.task = Task(GROUP, 0, MemoryTable())

    def ask(self, *subjects: str) -> None:
        self.asked += len(subjects)
        self.questions.ask(self.task, [EventQuery(each, 0, 10) for each in subjects])

    def turn(self) -> None:
        """One turn, held against everything that must be true of it."""
        questions, bounds = self.questions, self.settings
        began, was = len(self.source.asked), questions.state
        until_ms = questions.opens_until_ms
        for _, found in questions.turn(self.clock.now_ms):
            self.answers += [each.query.subject for each in found]
        fresh = len(self.source.asked) - began
        probes = fresh if questions.state is SourceState.HALF_OPEN else 0
        assert 1 <= questions.limit <= bounds.source_calls_max
        assert questions.calls_out + questions.calls_hanging <= bounds.source_calls_max
        assert len([each for each in self.source.out if not each.done()]) <= bounds.source_calls_max
        if fresh and not probes:
            assert questions.calls_out <= questions.limit
        assert probes <= 1
        if was is SourceState.OPEN and questions.state is SourceState.OPEN:
            assert not fresh
            assert until_ms is not None
            assert self.clock.now_ms < until_ms or questions.calls_hanging
        self.clock.now_ms += STEP_MS

    def turn_until_quiet(self) -> None:
        for _ in range(100_000):
            if not self.questions.busy:
                return
            self.turn()
        raise AssertionError("queries are lost")


SUBJECTS = [f"S{number}" for number in range(30)]
deeds = st.one_of(
    st.tuples(st.just("ask"), st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=20)),
    st.tuples(st.just("down"), st.booleans()),
    st.tuples(st.just("hang"), st.sampled_from([0.0, 0.3])),
    st.tuples(st.just("bad"), st.frozensets(st.sampled_from(SUBJECTS), max_size=4)),
    st.tuples(st.just("pass"), st.integers(1, 60)),
)
bounds = st.builds(
    EngineSettings,
    source_calls_max=st.sampled_from([1, 2, 8]),
    source_batch_max=st.sampled_from([1, 5, 200]),
    source_timeout_ms=st.just(200),
    source_slow_ms=st.just(100),
    source_window_ms=st.sampled_from([1, 100]),
    source_failing_subjects=st.sampled_from([2, 5]),
    source_backoff_ms=st.just(100),
    source_backoff_max_ms=st.just(1_000),
)


def do(stage: Stage, deed: str, value: Any) -> None:
    if deed == "ask":
        stage.ask(*value)
    elif deed == "down":
        stage.source.down = value
    elif deed == "hang":
        stage.source.hang_share = value
    elif deed == "bad":
        stage.source.bad = value
    else:
        for _ in range(value):
            stage.turn()


@given(
    st.integers(0, 2**32), bounds, st.sampled_from([0.0, 0.3, 1.0]), st.lists(deeds, max_size=25)
)
def test_no_query_is_lost_and_no_call_is_too_many(
    seed: int, settings: EngineSettings, hang_share: float, story: list[tuple[str, Any]]
) -> None:
    stage = Stage(seed, settings)
    stage.source.hang_share = hang_share
    for deed, value in story:
        do(stage, deed, value)
    # With nobody left but subjects that cannot be read, a source that is down looks the same.
    stage.source.down, stage.source.hang_share, stage.source.bad = False, 0.0, frozenset()

    stage.turn_until_quiet()

    asked = [subject for deed, value in story if deed == "ask" for subject in value]
    assert sorted(stage.answers) == sorted(asked)
    assert stage.questions.state is not SourceState.HALF_OPEN


@given(st.integers(0, 2**32), bounds, st.integers(1, 500))
def test_source_that_comes_back_is_asked_within_one_backoff(
    seed: int, settings: EngineSettings, outage_turns: int
) -> None:
    stage = Stage(seed, settings)
    stage.source.down = True
    stage.ask(*SUBJECTS)
    for _ in range(outage_turns):
        stage.turn()
    stage.source.down = False
    back_ms = stage.clock.now_ms
    waited = stage.asked - len(stage.answers)

    while stage.questions.busy and not any(at_ms >= back_ms for at_ms, _ in stage.source.asked):
        stage.turn()

    longest_ms = settings.source_backoff_max_ms + settings.source_timeout_ms
    assert stage.clock.now_ms - back_ms <= longest_ms + STEP_MS
    stage.turn_until_quiet()
    assert len(stage.answers) == stage.asked
    assert waited == 0 or stage.questions.state is SourceState.CLOSED


@given(st.integers(0, 2**32), bounds)
def test_subject_that_fails_alone_costs_the_others_nothing_but_a_second_question(
    seed: int, settings: EngineSettings
) -> None:
    stage = Stage(seed, settings)
    stage.source.bad = frozenset({"S0"})
    for _ in range(20):
        stage.ask(*SUBJECTS)
        stage.turn_until_quiet()
        assert stage.questions.state is SourceState.CLOSED

    assert stage.questions.breaker.openings == 0
    assert sorted(stage.answers) == sorted(SUBJECTS * 20)
    shared = [subjects for _, subjects in stage.source.asked if "S0" in subjects]
    assert sum(len(subjects) > 1 for subjects in shared) <= 1, "it spoils one call, once"
