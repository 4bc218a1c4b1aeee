"""What everybody in a simulated world shares: time, chance, the log, the sources, the history."""

from collections.abc import Iterable

from cape_stream.adapters.simulated import Broker, Dice, SimSource, Timeline
from cape_stream.core.plan import compile_plan
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import TopicSpec
from cape_stream.runtime.recovery import META_KEY, TaskMeta
from cape_stream.testing.history import History
from cape_stream.testing.scenario import Scenario

START_MS = 10_000_000_000
"""Where virtual time begins; traces count from here."""


class Stage:
    """The shared part of one world.

    Args:
        scenario: what it is like.
        codec: how records are written.
    """

    def __init__(self, scenario: Scenario, codec: Codec) -> None:
        self.scenario = scenario
        self.codec = codec
        self.timeline = Timeline(START_MS)
        self.dice = Dice(scenario.seed, scenario.faults)
        self.broker = Broker(self.timeline, self.dice, scenario.broker)
        self.history = History(self.timeline)
        self.names = TopicNames("sim")
        self.plans = {domain.name: compile_plan(domain) for domain in scenario.domains}
        self.sources = {name: SimSource(self.timeline, self.dice) for name in self.plans}
        self.cured: set[str] = set()
        """Domains whose poisoned subjects do not fail any more."""
        self.safe = False
        """True once nothing goes wrong any more."""
        self.broker.create_topics([*self._topics()])

    @property
    def queues(self) -> list[str]:
        """Worker queues of all domains."""
        lambdas = (entry for plan in self.plans.values() for entry in plan.lambdas)
        return sorted({entry.queue for entry in lambdas})

    def happens(self, probability: float) -> bool:
        """True with ``probability`` while harm goes on, never after."""
        return not self.safe and self.dice.happens(probability)

    def draw_skew_ms(self) -> int:
        """How wrong a machine's clock is when a process starts."""
        worst_ms = self.scenario.skew_ms_max
        return self.dice.draw_ms((-worst_ms, worst_ms))

    def note(self, who: str, what: str, detail: str = "") -> None:
        """One line of the trace."""
        self.timeline.note(who, what, detail)

    def read_changelogs(self) -> None:
        """Bring the history up to what is committed."""
        for domain in self.plans:
            for partition in range(self.scenario.partitions):
                topic = self.names.changelog(domain)
                self.history.read_changelog(self.broker, domain, topic, partition)

    def bound(self, domain: str, topic: str, partition: int) -> int:
        """Offset of ``topic`` below which the domain's committed state accounts for every job."""
        rows = self.history.last_rows.get((domain, partition), {})
        return TaskMeta.decode(rows.get(META_KEY)).bounds.get(topic, 0)

    def forget_changelog(self, domain: str) -> None:
        """The domain's changelog is deleted and made again; what it held stays in the history."""
        self.read_changelogs()
        self.broker.recreate(self.names.changelog(domain))
        self.history.start_over(domain)

    def _topics(self) -> Iterable[TopicSpec]:
        names = list(self.names.job_topics(self.queues))
        for domain in self.plans:
            names += [self.names.pings(domain), self.names.statuses(domain)]
            names += [self.names.operations(domain), self.names.audit(domain)]
            names.append(self.names.changelog(domain))
        for name in [*names, self.names.dead_letters]:
            yield TopicSpec(name=name, partitions=self.scenario.partitions, config={})
        yield TopicSpec(name=self.names.refresh, partitions=1, config={})
