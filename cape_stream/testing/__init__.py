"""Simulated worlds: whole dispatchers and workers under one seed, in harm and in peace.

    verdict = live_through(draw_scenario(7), AvroCodec())
    assert not verdict.violations, verdict.report(Path("build/simulation/seed-7.txt"))

The engine, the processor and the codec are the real ones; log, disks, clocks and sources are
the twins of `cape_stream.adapters.simulated`. A `Scenario` of your own puts your topologies, load
and faults into a world. `trace_lines` explains the columns of a trace.
"""

from cape_stream.testing.behaviour import Behaviour
from cape_stream.testing.scenario import Harm, Load, Scenario, draw_scenario
from cape_stream.testing.verdict import Verdict, live_through, trace_lines
from cape_stream.testing.violation import Violation
from cape_stream.testing.world import World

__all__ = [
    "Behaviour",
    "Harm",
    "Load",
    "Scenario",
    "Verdict",
    "Violation",
    "World",
    "draw_scenario",
    "live_through",
    "trace_lines",
]
