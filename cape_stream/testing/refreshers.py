"""Refreshers of a simulated world: the real ones; what pings have lost, only they find."""

from cape_stream.adapters.simulated import SimBackground, SimClock, SimLog, SimProcess
from cape_stream.runtime.refresh import RefreshBackgrounds, Refresher
from cape_stream.testing.seat import Seat
from cape_stream.testing.stage import Stage


class RefresherSeat(Seat):
    """A machine that runs a refresher.

    Args:
        stage: the world's shared part.
        number: of the machine.
    """

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage, f"r{number}")

    def run(self, process: SimProcess) -> None:
        """See `Seat.run`."""
        stage = self.stage
        refresher = Refresher(
            log=SimLog(stage.broker, process),
            codec=stage.codec,
            clock=SimClock(stage.timeline, stage.draw_skew_ms()),
            names=stage.names,
            partitions=stage.scenario.partitions,
            sources=stage.sources,
            backgrounds=RefreshBackgrounds(
                sources=SimBackground(process, stage.dice),
                marks=SimBackground(process, stage.dice),
            ),
            member_name=process.name,
            settings=stage.scenario.refresh,
        )
        while not self.leaving:
            refresher.turn()
        refresher.close()

    def bury(self) -> None:
        """See `Seat.bury`."""
