"""The judge sees: with any one rule of the protocol switched off, some world breaks a promise."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.simulated import STEADY, Faults
from cape_stream.adapters.simulated.committer import SimCommitter
from cape_stream.core import issuing
from cape_stream.core.plan import LambdaPlan
from cape_stream.core.settling import Settler
from cape_stream.model.topology import DomainSpec, LambdaSpec, TopologySpec
from cape_stream.runtime.dispatching import DispatchProcessor
from cape_stream.runtime.lease import Lease
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.task import Task
from cape_stream.testing import Behaviour, Harm, Load, Scenario, live_through
from cape_stream.testing.scenario import BROKER, RETRY

pytestmark = pytest.mark.timeout(300)  # a rule may take dozens of worlds to show

SEEDS_MAX = 40
"""Worlds tried before a rule counts as unwatched; most need one or two."""

HARSH = {Harm.KILL_BETWEEN: 2_000, Harm.STOP_BETWEEN: 250}
STOP_MS = (900, 1_600)
"""About a session: some wake up just before they are replaced, most just after."""
SLOW_TO_HEAR = replace(STEADY, answer_ms=(100, 400))
"""Whoever wakes up goes on for a while before the group tells it."""
SLOW_TO_SEND = replace(STEADY, send_ms=(0, 250))
"""Much is in the producer's buffer at any moment."""
CLUMSY = Behaviour(slow=0.1, beating=0.0, failing=0.1, lagging=0.3, repeating=0.3)


def topology(name: str, **terms: Any) -> TopologySpec:
    """One lambda of the same name."""
    entry = LambdaSpec(lambda_id=name, max_batch=3, timeout_ms=300)
    return TopologySpec(name=name, lambdas=(entry,), retry=RETRY, **terms)


FLIGHTS = DomainSpec(
    name="flights",
    topologies=(topology("line", ordering="ordered"), topology("after", after=("line",))),
)


def worlds(faults: Faults, message_timeout_ms: int = 400) -> Iterator[Scenario]:
    """Busy worlds of three dispatchers that are stopped and killed all the time."""
    for seed in range(SEEDS_MAX):
        yield Scenario(
            seed=seed,
            domains=(FLIGHTS,),
            dispatchers=3,
            partitions=3,
            load=Load(subjects=6, events=40, gap_ms=80, pings_lost=0.0),
            faults=faults,
            behaviour=CLUMSY,
            harm_gaps_ms=HARSH,
            stop_ms=STOP_MS,
            safety_ms=5_000,
            engine=EngineSettings(commit_interval_ms=20, busy_poll_ms=5),
            broker=replace(BROKER, message_timeout_ms=message_timeout_ms),
        )


def breaks(scenarios: Iterator[Scenario], rule: str) -> bool:
    """True once ``rule`` is broken in one of the worlds."""
    codec = AvroCodec()
    verdicts = (live_through(scenario, codec) for scenario in scenarios)
    return any(each.rule == rule for verdict in verdicts for each in verdict.violations)


def no_adoption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DispatchProcessor, "adopt", lambda *_: 0)


def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: Callable[[Lease, Task], int] = Lease.ends_ms
    monkeypatch.setattr(Lease, "ends_ms", lambda lease, task: ends(lease, task) * 1_000)


def no_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimCommitter, "_check_owner", lambda *_: None)


def no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuing, "gates_open", lambda *_: True)


def no_current_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    takes: Callable[..., bool] = Settler._takes

    def takes_any(self: Settler, subject: object, plan: LambdaPlan, *rest: object) -> bool:
        return takes(self, subject, replace(plan, ordered=False), *rest)

    monkeypatch.setattr(Settler, "_takes", takes_any)


@pytest.mark.parametrize(
    ("switch_off", "rule"),
    [
        (no_adoption, "twice"),
        (no_lease, "twice"),
        (no_fencing, "owner"),
        (no_gate, "dependency"),
        (no_current_attempt, "rival"),
    ],
)
def test_judge_sees_when_a_rule_is_off(
    switch_off: Callable[[pytest.MonkeyPatch], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rule is needed, and each is watched."""
    switch_off(monkeypatch)

    assert breaks(worlds(SLOW_TO_HEAR), rule)


def test_judge_sees_when_no_message_times_out() -> None:
    """A producer that never gives up sends jobs after its partition has changed hands."""
    assert breaks(worlds(SLOW_TO_SEND, message_timeout_ms=1_000_000), "twice")


@pytest.mark.parametrize("faults", [SLOW_TO_HEAR, SLOW_TO_SEND], ids=["hear", "send"])
def test_judge_sees_nothing_when_every_rule_is_on(faults: Faults) -> None:
    """The same worlds with all rules keep every promise, or the tests above prove nothing."""
    codec = AvroCodec()

    verdicts = [live_through(scenario, codec) for scenario in islice(worlds(faults), 4)]

    assert [str(each) for verdict in verdicts for each in verdict.violations] == []
