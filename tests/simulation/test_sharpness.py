"""The judge sees: with any one rule of the protocol switched off, some world breaks a promise."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.simulated.committer import SimCommitter
from cape_stream.core.issuing import Issuer
from cape_stream.core.plan import LambdaPlan
from cape_stream.core.settling import Settler
from cape_stream.runtime.dispatching import DispatchProcessor
from cape_stream.runtime.lease import Lease
from cape_stream.testing import Harm, Scenario, draw_scenario, live_through

SEEDS_MAX = 40
"""Worlds tried before a rule counts as unwatched; most need one or two."""

HARSH = {Harm.KILL_BETWEEN: 700, Harm.STOP_BETWEEN: 400, Harm.WORKER_STOP: 1_000}
STOP_MS = (800, 2_000)
"""About a session: some wake up just before they are replaced, most just after."""


def worlds(*, message_timeout_ms: int | None = None) -> Iterator[Scenario]:
    """Worlds of three dispatchers that die and are stopped all the time."""
    for seed in range(SEEDS_MAX):
        scenario = draw_scenario(seed)
        broker = scenario.broker
        if message_timeout_ms is not None:
            broker = replace(broker, message_timeout_ms=message_timeout_ms)
        yield replace(scenario, dispatchers=3, harm_gaps_ms=HARSH, stop_ms=STOP_MS, broker=broker)


def first_broken(scenarios: Iterator[Scenario], rule: str) -> bool:
    """True once ``rule`` is broken in one of the worlds."""
    codec = AvroCodec()
    for scenario in scenarios:
        try:
            verdict = live_through(scenario, codec)
        except AssertionError:
            continue
        if any(violation.rule == rule for violation in verdict.violations):
            return True
    return False


def no_adoption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DispatchProcessor, "adopt", lambda *_: None)


def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "holds", lambda _, task, now_ms: task.proof_ms is not None)


def no_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimCommitter, "_check_owner", lambda *_: None)


def no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Issuer, "_gates_open", lambda *_: True)


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

    assert first_broken(worlds(), rule)


def test_judge_sees_when_no_message_times_out() -> None:
    """A producer that never gives up sends jobs after its partition has changed hands."""
    assert first_broken(worlds(message_timeout_ms=1_000_000), "twice")


def test_judge_sees_nothing_when_every_rule_is_on() -> None:
    """The same worlds with all rules keep every promise, or the tests above prove nothing."""
    codec = AvroCodec()

    verdicts = [live_through(scenario, codec) for scenario in islice(worlds(), 8)]

    assert [violation for verdict in verdicts for violation in verdict.violations] == []
