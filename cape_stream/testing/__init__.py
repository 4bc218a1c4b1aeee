"""Your App without a broker, and simulated worlds of whole fleets under one seed.

`CapeDriver` runs an App's own handlers on a virtual clock, `explore` does so under many seeds
(docs/testing.md). Whole dispatchers and workers, in harm and in peace:

    verdict = live_through(draw_scenario(7), AvroCodec())
    assert not verdict.violations, verdict.report(Path("build/simulation/seed-7.txt"))

The engine, the processor and the codec are the real ones; log, disks, clocks and sources are
the twins of `cape_stream.adapters.simulated`. A `Scenario` of your own puts your topologies, load
and faults into a world. `trace_lines` explains the columns of a trace.
"""

from cape_stream.testing.behaviour import Behaviour
from cape_stream.testing.driven_jobs import Delivery, DrivenJob, DriverMisuseError
from cape_stream.testing.driver import CapeDriver
from cape_stream.testing.driver_chaos import Chaos
from cape_stream.testing.driver_views import ParkedEvent
from cape_stream.testing.exploring import explore
from cape_stream.testing.recorded_contexts import Published
from cape_stream.testing.scenario import Harm, Load, Scenario, draw_scenario
from cape_stream.testing.verdict import Verdict, live_through, trace_lines
from cape_stream.testing.violation import Violation
from cape_stream.testing.world import World

__all__ = [
    "Behaviour",
    "CapeDriver",
    "Chaos",
    "Delivery",
    "DrivenJob",
    "DriverMisuseError",
    "Harm",
    "Load",
    "ParkedEvent",
    "Published",
    "Scenario",
    "Verdict",
    "Violation",
    "World",
    "draw_scenario",
    "explore",
    "live_through",
    "trace_lines",
]
