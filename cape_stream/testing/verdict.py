"""One seed from its scenario to its verdict, with the figures worth reporting and the trace."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cape_stream.errors import Corrupt
from cape_stream.ports.codec import Codec
from cape_stream.testing.checks import Judge
from cape_stream.testing.checks_at_rest import late_probes, table_faults, unfinished_rows
from cape_stream.testing.committed import CommittedJudge
from cape_stream.testing.figures import figures_of
from cape_stream.testing.scenario import Harm, Scenario
from cape_stream.testing.stage import START_MS, Stage
from cape_stream.testing.violation import Violation
from cape_stream.testing.world import World

VIOLATIONS_SHOWN = 12


@dataclass(slots=True)
class Verdict:
    """What became of one world."""

    seed: int
    violations: list[Violation]
    figures: Counter[str]
    """What happened in it, by name."""
    trace: list[str]
    """See `trace_lines`."""

    def report(self, path: Path) -> str:
        """Write the trace to ``path``; a text that says what was broken and how to see it again."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.trace) + "\n")
        shown = [f"  {each}" for each in self.violations[:VIOLATIONS_SHOWN]]
        return "\n".join(
            [
                f"seed {self.seed}: {len(self.violations)} broken promises",
                *shown,
                f"  trace: {path}",
                f"  again: make sim SEED={self.seed}",
            ]
        )


def live_through(scenario: Scenario, codec: Codec) -> Verdict:
    """Run one world to its end and judge it."""
    with World(scenario, codec) as world:
        world.run()
        violations = [
            *Judge(world.stage).violations(),
            *CommittedJudge(world.stage).violations(),
            *_at_rest(world),
        ]
        violations = [each for each in violations if each.rule not in scenario.excused]
        violations.sort(key=lambda violation: violation.ms)
        return Verdict(scenario.seed, violations, figures_of(world), trace_lines(world.stage))


def trace_lines(stage: Stage) -> list[str]:
    """The trace, one line an event, in columns of fixed width.

    12345  d1.2        committed    3 rows
    │      │           │            └ detail
    │      │           └ what happened
    │      └ who: d1.2 is the second process on dispatcher machine 1, w a worker; source,
    │        pinger, broker; world is who does harm and makes peace
    └ virtual milliseconds since the world began
    """
    return [
        f"{ms - START_MS:>7}  {who:<10}  {what:<12}  {detail}".rstrip()
        for ms, who, what, detail in stage.timeline.trace
    ]


def _at_rest(world: World) -> Iterator[Violation]:
    """What the end of the world tells."""
    stage = world.stage
    ms = stage.timeline.now_ms - START_MS
    for seat in world.seats:
        for name, error in seat.faults:
            if isinstance(error, Corrupt) and Harm.TABLE_DAMAGED in stage.scenario.harm_gaps_ms:
                continue  # the next process finds it, and rebuilds the table
            yield Violation("ended", ms, f"{name}: {type(error).__name__}: {error}")
    for fault in dict.fromkeys(world.inflight_faults):
        yield Violation("books", ms, fault)
    for fault in late_probes(stage, world.probes):
        yield Violation("late", ms, fault)
    if not world.finished:
        yield Violation("unfinished", ms, f"not at rest after {stage.scenario.bound_ms} ms")
        for fault in unfinished_rows(stage):
            yield Violation("unfinished", ms, fault)
        return
    owned = [(seat.disk, seat.owned_tasks()) for seat in world.dispatchers]
    for fault in table_faults(stage, owned):
        yield Violation("table", ms, fault)
