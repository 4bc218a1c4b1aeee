"""A place for a process that somebody starts again whenever it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod

from cape_stream.adapters.simulated import SimProcess
from cape_stream.errors import Retry
from cape_stream.testing.stage import Stage


class Seat(ABC):
    """One process at a time, each start with a new name; see `SimProcess`.

    Args:
        stage: the world's shared part.
        name: of the place, such as ``d1``.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.process: SimProcess | None = None
        self.starts = 0
        self.leaving = False
        """True once the present process shall end gracefully."""
        self.faults: list[tuple[str, BaseException]] = []
        """Errors that ended a process by itself, with its name."""

    @property
    def alive(self) -> bool:
        """True while a process sits here, stopped or not."""
        return self.process is not None and self.process.alive

    @property
    def at_work(self) -> bool:
        """True while a process sits here and is not stopped."""
        return self.process is not None and self.process.alive and not self.process.stopped

    def start(self) -> None:
        """Start a process now, unless there is one."""
        if self.alive:
            return
        self.starts += 1
        self.leaving = False
        process = SimProcess(self.stage.timeline, f"{self.name}.{self.starts}")
        self.process = process
        process.at_death(self._restart)
        self.stage.note(process.name, "started")
        process.start(lambda: self.run(process), ended=lambda error: self._ended(process, error))

    def leave(self) -> None:
        """Ask the present process to end gracefully."""
        self.leaving = True

    @abstractmethod
    def run(self, process: SimProcess) -> None:
        """The main function of the process: until `leaving`."""

    @abstractmethod
    def bury(self) -> None:
        """The process has ended, one way or another."""

    def _ended(self, process: SimProcess, error: BaseException | None) -> None:
        if error is not None:
            self.stage.note(process.name, "ended", f"{type(error).__name__}: {error}")
            if not isinstance(error, Retry):
                self.faults.append((process.name, error))
        else:
            self.stage.note(process.name, "left")
        process.kill()

    def _restart(self) -> None:
        self.bury()
        stage = self.stage
        stage.timeline.after(stage.dice.draw_ms(stage.scenario.restart_ms), self.start)
