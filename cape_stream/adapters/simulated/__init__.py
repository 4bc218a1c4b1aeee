"""Twins of the outside world in memory: plain ones for tests, seeded and faulty ones for worlds.

Without a `Timeline`, ``SimLog()``, ``MemoryTable()`` and ``SimSource()`` are plain in-memory
implementations of their ports. In a world one `Timeline`, one `Dice` and one `Broker` are shared;
every `SimProcess` gets objects of its own, all of which die or stop with it:

    timeline, dice = Timeline(), Dice(seed, ROUGH)
    broker, source, disk = Broker(timeline, dice), SimSource(timeline, dice), Disk()
    process = SimProcess(timeline, "dispatcher-1")
    log, table = SimLog(broker, process), MemoryTable(disk, process)
    background, clock = SimBackground(process, dice), SimClock(timeline)
    process.start(loop)                  # a call stack that may wait anywhere
    process.kill_after(17)               # die just before the 17th effect
    timeline.run_until(timeline.now_ms + 10_000)
    dice.faults = STEADY                 # heal
"""

from cape_stream.adapters.simulated.background import SimBackground, SimPending
from cape_stream.adapters.simulated.broker import Broker, BrokerSettings
from cape_stream.adapters.simulated.clock import SimClock
from cape_stream.adapters.simulated.faults import CALM, ROUGH, STEADY, Dice, Faults
from cape_stream.adapters.simulated.log import SimLog
from cape_stream.adapters.simulated.process import SimProcess
from cape_stream.adapters.simulated.source import SimSource, SourceDownError
from cape_stream.adapters.simulated.table import Disk, MemoryTable
from cape_stream.adapters.simulated.timeline import ProcessKilled, Signal, Timeline

__all__ = [
    "CALM",
    "ROUGH",
    "STEADY",
    "Broker",
    "BrokerSettings",
    "Dice",
    "Disk",
    "Faults",
    "MemoryTable",
    "ProcessKilled",
    "Signal",
    "SimBackground",
    "SimClock",
    "SimLog",
    "SimPending",
    "SimProcess",
    "SimSource",
    "SourceDownError",
    "Timeline",
]
