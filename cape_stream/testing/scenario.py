"""What a seed means: the domains, the load, the faults and the harm of one simulated world.

Each seed switches most dials off and turns the others to where they hurt (swarm testing): a world
in which everything goes wrong at once hides what a single fault does.

Source: "Swarm Testing", Groce et al., ISSTA 2012.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

from cape_stream.adapters.simulated import ROUGH, STEADY, BrokerSettings, Faults
from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.sequence import SEQUENCE_MAX
from cape_stream.model.topology import DomainSpec, LambdaSpec, RetrySpec, TopologySpec
from cape_stream.runtime.refresh_settings import RefreshSettings
from cape_stream.runtime.settings import EngineSettings
from cape_stream.testing.behaviour import Behaviour


class Harm(StrEnum):
    """What happens to a world from outside."""

    KILL = "kill"
    """A dispatcher dies between two events of the world."""
    KILL_BETWEEN = "kill between"
    """It dies between two effects of its own."""
    STOP = "stop"
    """It is stopped and wakes up later, perhaps after it was replaced."""
    STOP_BETWEEN = "stop between"
    """The same between two effects of its own."""
    LEAVE = "leave"
    """It stops gracefully and comes back: two rebalances."""
    TABLE_LOST = "table lost"
    """It dies and its disk with it."""
    TABLE_STALE = "table stale"
    """It dies and comes back with an old copy of its disk."""
    TABLE_DAMAGED = "table damaged"
    """Its rows become unreadable, while it is at work or while it is away."""
    OUTAGE = "outage"
    """The log is away for everybody."""
    COMPACT = "compact"
    """The cleaner goes over the changelog."""
    EXPIRE_PINGS = "expire pings"
    """Retention drops pings, read or not."""
    EXPIRE_JOBS = "expire jobs"
    """Retention drops jobs that workers have taken and dispatchers have accounted for."""
    SOURCE_DOWN = "source down"
    """Every call to the sources fails."""
    WORKER_KILL = "worker kill"
    WORKER_KILL_BETWEEN = "worker kill between"
    WORKER_STOP = "worker stop"
    """It wakes up and goes on with jobs that were given to others meanwhile."""
    WORKER_LEAVE = "worker leave"
    """It hands back what it does not finish in time."""
    REFRESHER_KILL_BETWEEN = "refresher kill between"
    REFRESHER_STOP_BETWEEN = "refresher stop between"
    REFRESHER_LEAVE = "refresher leave"
    JUNK = "junk"
    """Somebody writes bytes, nulls and lies to the topics."""
    TRUNCATE = "truncate"
    """An unclean election: the newest pings, statuses or jobs of a partition are gone."""
    CHANGELOG_LOST = "changelog lost"
    """Somebody deletes a changelog and makes it again, while nobody is at work."""


BROKEN_BY: Mapping[Harm, frozenset[str]] = {
    Harm.TRUNCATE: frozenset({"twice"}),
    Harm.CHANGELOG_LOST: frozenset({"twice", "backwards", "owner", "rival"}),
}
"""Promises that nobody can keep once the log has lost what it had acknowledged."""


SESSION_MS = 1_000
BROKER = BrokerSettings(
    session_timeout_ms=SESSION_MS,
    message_timeout_ms=400,
    transaction_timeout_ms=1_500,
    delete_retention_ms=3_600_000,
)
"""The usual proportions, six times as fast."""

RETRY = RetrySpec(first_ms=30, max_ms=400, floor_ms=10)

REFRESH = RefreshSettings(
    interval_ms=300,
    full_interval_ms=2_000,
    full_pause_ms=20,
    store_interval_ms=150,
    backoff_first_ms=50,
    backoff_max_ms=400,
    call_timeout_ms=400,
)


@dataclass(slots=True, frozen=True, kw_only=True)
class Load:
    """What is published, and how much of it the dispatchers are told."""

    subjects: int = 6
    """Per domain."""
    events: int = 20
    """Per subject."""
    gap_ms: int = 150
    """Mean time between two events of a subject."""
    first: int = 0
    """First sequence id of every subject."""
    steps: tuple[int, ...] = (1,)
    """What the next sequence id is drawn from: gaps are allowed."""
    payload_bytes_max: int = 100
    late_ms_max: int = 0
    """Events become visible up to so long after they were published."""
    pings_lost: float = 0.4
    pings_repeated: float = 0.1
    pings_vague: float = 0.2
    """Pings that do not say which event is the newest."""
    ping_delay_ms_max: int = 50
    poisoned: int = 0
    """Subjects per domain on which every topology fails until the cure."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Scenario:
    """Everything that is fixed before the first event of a world happens."""

    seed: int
    domains: tuple[DomainSpec, ...]
    partitions: int = 2
    dispatchers: int = 2
    workers: int = 2
    real_workers: int = 0
    """Beside those: the real worker, see `cape_stream.testing.real_workers`."""
    refreshers: int = 1
    load: Load = field(default_factory=Load)
    behaviour: Behaviour = field(default_factory=Behaviour)
    faults: Faults = STEADY
    """While it is not safe; afterwards `STEADY`."""
    harm_gaps_ms: Mapping[Harm, int] = field(default_factory=dict)
    """Mean time between two of a kind; what is not named never happens."""
    restart_ms: tuple[int, int] = (5, 300)
    """How long a supervisor takes to start a process again."""
    stop_ms: tuple[int, int] = (20, 2_000)
    """How long a stopped process stays stopped."""
    outage_ms: tuple[int, int] = (20, 1_500)
    skew_ms_max: int = 0
    """How wrong the clock of a machine may be when a process starts."""
    safety_ms: int = 6_000
    """How long the harm goes on."""
    settling_ms: int = 4_000
    """How long after that the last stopped process wakes, the last session and transaction run out
    and the last call of a source hangs."""
    probe_ms: int = 4_000
    """In peace a healthy subject's new event is done by every topology within this, whatever
    becomes of its neighbours."""
    bound_ms: int = 60_000
    """After the cure every cursor reaches its head within this."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    refresh: RefreshSettings = field(default_factory=lambda: REFRESH)
    broker: BrokerSettings = field(default_factory=BrokerSettings)

    @property
    def excused(self) -> frozenset[str]:
        """Rules that may be broken here, see `BROKEN_BY`."""
        return frozenset[str]().union(*(BROKEN_BY.get(harm, ()) for harm in self.harm_gaps_ms))


def draw_scenario(seed: int) -> Scenario:
    """The scenario that ``seed`` names; the same one for ever on the same release."""
    random = Random(f"scenario {seed}")
    names = ["flights", "parcels"][: random.choice([1, 1, 1, 2])]
    return Scenario(
        seed=seed,
        domains=tuple(_limited(seed, _draw_domain(random, name)) for name in names),
        partitions=random.randint(1, 4),
        dispatchers=random.randint(1, 3),
        workers=random.randint(1, 3),
        real_workers=random.choice([0, 0, 1, 2]),
        refreshers=random.randint(1, 2),
        load=_draw_load(random, len(names)),
        behaviour=_draw_behaviour(random),
        faults=_draw_faults(random),
        harm_gaps_ms=_draw_harms(random),
        skew_ms_max=random.choice([0, 0, 5_000, 86_400_000]),
        safety_ms=random.randint(2_000, 5_000),
        engine=_draw_engine(random),
        scheduler=SchedulerSettings(
            job_bytes_max=random.choice([1_000, 2_000, 900_000]),
            source_retry=RetrySpec(first_ms=20, max_ms=300, floor_ms=5),
            buffered_events_max=random.choice([4, 12, 400]),
            # Of its own, so that the seeds of before mean what they meant.
            sleep_after_ms=Random(f"sleep {seed}").choice([0, 50, 60_000]),
            breaker_subjects=Random(f"breaker {seed}").choice([2, 4, 10]),
            breaker_cooldown_ms=50,
            breaker_cooldown_max_ms=300,
            backlog_after_events=Random(f"lanes {seed}").choice([2, 200]),
        ),
        refresh=replace(REFRESH, limit=random.choice([1, 3, 1_000])),
        broker=BROKER,
    )


def _draw_domain(random: Random, name: str) -> DomainSpec:
    """An ordered topology, one after it, one with a chain of lambdas, one that has no order."""
    topologies = [
        _topology(random, "first", ["main"], ordering="ordered"),
        _topology(random, "second", ["main"], after=("first",)),
        _topology(random, "chain", ["parse", "store"]),
        _topology(random, "free", ["main"]),
    ]
    more = [
        _topology(random, "line", ["parse", "store"], ordering="ordered"),
        _topology(random, "last", ["main"], after=("second", "chain"), ordering="ordered"),
        _topology(random, "diamond", ["root", "left", "right", "join"]),
    ]
    topologies += [topology for topology in more if random.random() < 0.25]
    return DomainSpec(name=name, topologies=tuple(topologies), page_limit=random.choice([2, 5, 20]))


def _limited(seed: int, domain: DomainSpec) -> DomainSpec:
    """Some topologies may have few jobs out at a time, or a second."""
    random = Random(f"limits {seed} {domain.name}")
    topologies = [
        replace(
            topology,
            in_flight_max=random.choice([None, None, 4, 12]),
            jobs_per_s_max=random.choice([None, None, None, 200.0]),
        )
        for topology in domain.topologies
    ]
    return replace(domain, topologies=tuple(topologies))


_INPUTS = {"store": ("parse",), "left": ("root",), "right": ("root",), "join": ("left", "right")}


def _topology(
    random: Random,
    name: str,
    lambdas: list[str],
    *,
    ordering: str = "parallel",
    after: tuple[str, ...] = (),
) -> TopologySpec:
    return TopologySpec(
        name=name,
        lambdas=tuple(
            LambdaSpec(
                lambda_id=lambda_id,
                queue=random.choice(["general", "general", "bulk"]),
                inputs=_INPUTS.get(lambda_id, ()),
                max_batch=random.choice([1, 3, 10]),
                timeout_ms=random.choice([200, 500, 1_000]),
            )
            for lambda_id in lambdas
        ),
        ordering="ordered" if ordering == "ordered" else "parallel",
        after=after,
        start=random.choice([0, 0, 0, 3]),
        window=random.choice([3, 10, 1_000]),
        retry=RETRY,
    )


def _draw_load(random: Random, domains: int) -> Load:
    events = random.choice([5, 10, 18])
    return Load(
        subjects=random.choice([1, 2, 4]) if domains == 1 else 1,
        events=events,
        gap_ms=random.choice([5, 60, 200]),
        first=random.choice([0, 0, 0, 7, SEQUENCE_MAX - 10 * (events + 1)]),
        steps=random.choice([(1,), (1, 1, 1, 3), (1, 2, 9)]),
        payload_bytes_max=random.choice([20, 200]),
        late_ms_max=random.choice([0, 100]),
        pings_repeated=random.choice([0.0, 0.1, 0.4]),
        pings_vague=random.choice([0.0, 0.2, 1.0]),
        ping_delay_ms_max=random.choice([0, 50, 400]),
        poisoned=random.choice([0, 1]),
    )


def _draw_behaviour(random: Random) -> Behaviour:
    return Behaviour(
        latencies_ms=random.choice([(0, 1), (1, 3, 10, 40), (1, 3, 10, 40, 150)]),
        slow=random.choice([0.0, 0.02, 0.1]),
        beating=random.choice([0.0, 0.5, 1.0]),
        failing=random.choice([0.0, 0.1, 0.3]),
        forgetting=random.choice([0.0, 0.05]),
        handing_back=random.choice([0.0, 0.05]),
        repeating=random.choice([0.0, 0.05, 0.3]),
        lagging=random.choice([0.0, 0.1]),
        concurrency=random.choice([2, 8, 50]),
    )


def _draw_faults(random: Random) -> Faults:
    """Each probability is off, as in `ROUGH`, or thrice that; each span steady or rough."""
    odds = {
        name: getattr(ROUGH, name) * random.choice([0, 1, 3])
        for name in Faults.__dataclass_fields__
        if not name.endswith("_ms")
    }
    odds["source_garbage"] = random.choice([0.0, 0.0, 0.05])
    odds["source_hang"] = random.choice([0.0, 0.02])
    spans = {
        name: getattr(random.choice([STEADY, ROUGH]), name)
        for name in Faults.__dataclass_fields__
        if name.endswith("_ms")
    }
    spans["hang_ms"] = (300, 1_500)
    return Faults(**odds, **spans)


def _draw_harms(random: Random) -> Mapping[Harm, int]:
    kinds = [harm for harm in Harm if random.random() < (0.04 if harm in BROKEN_BY else 0.4)]
    return {harm: random.choice([400, 1_000, 3_000]) for harm in kinds}


def _draw_engine(random: Random) -> EngineSettings:
    return EngineSettings(
        commit_interval_ms=random.choice([20, 50, 100]),
        poll_records_max=random.choice([3, 500]),
        busy_poll_ms=5,
        load_max=random.choice([12, 50_000]),
        close_timeout_ms=random.choice([50, 1_000]),
        sweep_interval_ms=random.choice([0, 200, 1_000]),
        sweep_rows=random.choice([1, 500]),
        due_scan_interval_ms=40,
        source_calls_max=random.choice([1, 8]),
        source_batch_max=random.choice([1, 3, 200]),
        source_timeout_ms=random.choice([150, 600]),
    )
