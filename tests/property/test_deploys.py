"""Dispatchers of several releases take turns over one state, in any order: no topology or lambda
ever misses an event, however often it was taken away and brought back."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.status import FailureClass
from cape_stream.model.topology import LambdaSpec, Ordering, RetrySpec, TopologySpec
from tests.desk import Desk, topology

TURNS_MAX = 400
RETRY = RetrySpec(first_ms=100, max_ms=1_000, floor_ms=10)


def plain(
    name: str,
    *lambda_ids: str,
    ordering: Ordering = "parallel",
    after: tuple[str, ...] = (),
    start: int = 0,
) -> TopologySpec:
    parts = [LambdaSpec(lambda_id=each, max_batch=2) for each in lambda_ids or ("only",)]
    return topology(name, *parts, retry=RETRY, ordering=ordering, after=after, start=start)


RELEASES: tuple[tuple[TopologySpec, ...], ...] = (
    (plain("T1"), plain("T2")),
    (plain("T1"),),
    (plain("T1"), plain("T2", ordering="ordered", after=("T1",)), plain("T3", start=3)),
    (plain("T2", "only", "more"), plain("T1")),
    (plain("T3", start=3), plain("T2", "more")),
)

moves = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("deploy"), st.sampled_from(range(len(RELEASES)))),
    st.tuples(st.just("crash"), st.sampled_from(range(len(RELEASES)))),
    st.tuples(st.just("done"), st.integers(0, 9)),
    st.tuples(st.just("fail"), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.sampled_from([50, 1_000, 40_000])),
    st.tuples(st.just("sweep"), st.just(0)),
)


class Story:
    """One subject, and everything that any release has done of it."""

    def __init__(self, release: int, sleep_after_ms: int) -> None:
        self.desk = Desk(
            *RELEASES[release],
            page_limit=3,
            settings=SchedulerSettings(sleep_after_ms=sleep_after_ms),
        )
        self.newest = -1
        self.done: set[tuple[str, int]] = set()
        self.stood: dict[tuple[str, str], int] = {}
        """Where each lambda was when its dispatcher went last, in good order."""

    def publish(self, count: int) -> None:
        self.desk.publish("S", range(self.newest + 1, self.newest + 1 + count))
        self.newest += count
        self.desk.ping("S", self.newest)
        self.desk.serve()

    def deploy(self, release: int) -> None:
        self.desk.commit()
        for entry, cursor in zip(self.desk.plan.lambdas, self.desk.peek("S"), strict=True):
            self.stood[entry.topology, entry.lambda_id] = cursor
        self.desk.deploy(*RELEASES[release])
        for entry, cursor in zip(self.desk.plan.lambdas, self.desk.peek("S"), strict=True):
            stood = self.stood.get((entry.topology, entry.lambda_id), cursor)
            assert cursor >= stood, f"{entry.topology} fell from {stood} to {cursor}"
        self.desk.serve()

    def crash(self, release: int) -> None:
        """The other release takes over from what was stored last."""
        self.desk.plan = Desk(*RELEASES[release]).plan
        self.desk.crash(adopting=())
        self.desk.serve()

    def finish(self, pick: int) -> None:
        if names := self.desk.names_out():
            name = names[pick % len(names)]
            job = self.desk.jobs[name]
            self.done.update((job.topology, each.sequence) for each in job.events)
            self.desk.report(name)
            self.desk.serve()

    def fail(self, pick: int) -> None:
        if names := self.desk.names_out():
            name = names[pick % len(names)]
            first = self.desk.jobs[name].events[0].sequence
            self.desk.report(name, done=(), failed={first: FailureClass.BUG})
            self.desk.serve()

    def heal(self) -> None:
        for _ in range(TURNS_MAX):
            self.desk.serve()
            if self.desk.names_out():
                self.finish(0)
                continue
            self.desk.commit()
            due_ms = self.desk.next_ms()
            if due_ms is not None:
                self.desk.tick(max(due_ms - self.desk.now_ms, 0))
                self.desk.wake_due()
                continue
            self.desk.sweep()
            if not self.desk.scheduler.active_subjects:
                return
        raise AssertionError("it does not come to rest")


@settings(max_examples=150)
@given(
    first=st.sampled_from(range(len(RELEASES))),
    last=st.sampled_from(range(len(RELEASES))),
    sleep_after_ms=st.sampled_from([0, 60_000]),
    history=st.lists(moves, max_size=25),
)
def test_no_event_is_skipped_when_releases_take_turns(
    first: int, last: int, sleep_after_ms: int, history: list[tuple[str, int]]
) -> None:
    story = Story(first, sleep_after_ms)
    acts: dict[str, Callable[[int], None]] = {
        "publish": story.publish,
        "deploy": story.deploy,
        "crash": story.crash,
        "done": story.finish,
        "fail": story.fail,
        "pass": story.desk.wait,
        "sweep": lambda _: story.desk.sweep(),
    }

    story.publish(2)
    story.desk.commit()
    for act, value in history:
        acts[act](value)
    story.deploy(last)
    story.publish(1)
    story.heal()

    for entry in story.desk.plan.lambdas:
        reached = {each for name, each in story.done if name == entry.topology}
        missing = set(range(entry.start, story.newest + 1)) - reached
        assert not missing, f"{entry.topology} never had {sorted(missing)}"
        assert story.desk.cursor("S", entry.topology) == story.newest
