"""A crowd of subjects that always fail, beside healthy ones that must not feel it."""

from dataclasses import replace

from cape_stream.adapters.avro import AvroCodec
from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.topology import DomainSpec, LambdaSpec, TopologySpec
from cape_stream.runtime.settings import EngineSettings
from cape_stream.testing import Load, Scenario, World, live_through
from cape_stream.testing.job_runs import POISON
from cape_stream.testing.scenario import BROKER, RETRY
from cape_stream.testing.stage import START_MS

HEALTHY = Load(subjects=8, events=30, gap_ms=100, pings_lost=0.0)
CROWD = 60
"""Failing subjects; each is tried again several times a second."""
WARM_MS = 1_000
"""By then everybody has joined."""


def topology(name: str, *, after: tuple[str, ...] = ()) -> TopologySpec:
    """Ordered, so that a subject waits for itself."""
    entry = LambdaSpec(lambda_id="main", timeout_ms=300)
    return TopologySpec(name=name, lambdas=(entry,), ordering="ordered", after=after, retry=RETRY)


CALM = Scenario(
    seed=1,
    domains=(
        DomainSpec(
            name="flights", topologies=(topology("line"), topology("next", after=("line",)))
        ),
    ),
    load=HEALTHY,
    safety_ms=4_000,
    probe_ms=1_000,
    engine=EngineSettings(busy_poll_ms=5),
    scheduler=SchedulerSettings(breaker_cooldown_ms=150),
    broker=BROKER,
)


def delays_ms(scenario: Scenario) -> list[int]:
    """Virtual time until every topology has done an event, ascending; of healthy subjects only."""
    with World(scenario, AvroCodec()) as world:
        world.run()
        assert world.finished
        history = world.stage.history
        done: dict[tuple[str, int], int] = {}
        for (place, sequence), moment in history.delivered.items():
            if not place.subject.startswith(POISON):
                at = place.subject, sequence
                done[at] = max(done.get(at, 0), moment.ms)
        published = {at: history.published["flights", *at].ms for at in done}
        warm = [at for at in done if published[at] >= START_MS + WARM_MS]
        return sorted(done[at] - published[at] for at in warm)


def test_healthy_subjects_are_as_quick_beside_a_crowd_that_always_fails() -> None:
    """Half as long again in the worst of a hundred cases; standing in line would be far more."""
    alone = delays_ms(CALM)
    crowded = delays_ms(replace(CALM, load=replace(HEALTHY, poisoned=CROWD)))

    assert len(alone) > 100
    assert crowded[len(crowded) * 99 // 100] <= alone[len(alone) * 99 // 100] * 3 // 2
    assert crowded[len(crowded) // 2] <= alone[len(alone) // 2] * 3 // 2


def test_judge_sees_when_a_crowd_stands_in_the_way() -> None:
    """Pings are not taken while more is in memory than allowed; a crowd of that size is felt."""
    tight = replace(CALM.engine, load_max=CROWD // 4)
    load = replace(HEALTHY, events=5, poisoned=CROWD)

    verdict = live_through(replace(CALM, load=load, engine=tight), AvroCodec())

    assert "late" in {each.rule for each in verdict.violations}
