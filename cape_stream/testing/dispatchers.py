"""Dispatchers of a simulated world: the real engine with the real processor on simulated ports."""

from collections.abc import Callable, Iterator

from cape_stream.adapters.simulated import (
    Disk,
    MemoryTable,
    SimBackground,
    SimClock,
    SimLog,
    SimProcess,
)
from cape_stream.runtime.dispatching import DispatchProcessor, Routing, dispatcher_factory
from cape_stream.runtime.loop import Backgrounds, Engine
from cape_stream.runtime.processor import TaskGroup, TaskId
from cape_stream.testing.seat import Seat
from cape_stream.testing.stage import Stage

TURNS_A_MS = 30
"""How many turns of an engine take a millisecond, if nothing in them does."""


class DispatcherSeat(Seat):
    """A machine that runs a dispatcher; its disk outlives the process.

    Args:
        stage: the world's shared part.
        number: of the machine.
    """

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage, f"d{number}")
        self.disk = Disk(f"state-{number}")
        self.engine: Engine | None = None
        """Of the present process, to look at."""
        self.made: list[tuple[TaskId, DispatchProcessor]] = []
        """Every processor that was ever made here."""
        self.spins = 0
        """Milliseconds in which the engine did nothing but turn."""
        self._turned_ms = 0
        self._turns = 0

    def run(self, process: SimProcess) -> None:
        """See `Seat.run`."""
        stage = self.stage
        table = MemoryTable(self.disk, process)
        self.engine = Engine(
            log=SimLog(stage.broker, process),
            table=table,
            clock=SimClock(stage.timeline, stage.draw_skew_ms()),
            groups=[self._group(domain) for domain in stage.plans],
            group_id=stage.names.dispatcher_group,
            member_name=process.name,
            backgrounds=Backgrounds(
                commits=SimBackground(process, stage.dice),
                restores=SimBackground(process, stage.dice),
                sources=SimBackground(process, stage.dice),
            ),
            settings=stage.scenario.engine,
        )
        self.engine.run(self._turned)
        table.close()

    def bury(self) -> None:
        """See `Seat.bury`."""
        self.engine = None

    def _turned(self) -> bool:
        """Before each turn of the engine; True once it shall end. Turns cost time here, too."""
        now_ms = self.stage.timeline.now_ms
        self._turns = self._turns + 1 if now_ms == self._turned_ms else 1
        self._turned_ms = now_ms
        if self._turns == TURNS_A_MS:
            self.spins += 1
            self.stage.timeline.sleep(1)
        return self.leaving

    def processors(self) -> Iterator[DispatchProcessor]:
        """Of the tasks the present process owns."""
        if self.engine is not None:
            for task in self.engine.assignment.tasks.values():
                if isinstance(task.processor, DispatchProcessor):
                    yield task.processor

    def owned_tasks(self) -> list[str]:
        """Names of the tasks the present process owns and has restored."""
        tasks = self.engine.assignment.tasks.values() if self.engine is not None else ()
        return [task.name for task in tasks if task.processor is not None]

    def _group(self, domain: str) -> TaskGroup:
        stage = self.stage
        names = stage.names
        plan = stage.plans[domain]
        queues = sorted({entry.queue for entry in plan.lambdas})
        return TaskGroup(
            name=domain,
            inputs=(names.statuses(domain), names.pings(domain), names.operations(domain)),
            changelog=names.changelog(domain),
            make_processor=self._remembering(
                dispatcher_factory(
                    plan,
                    stage.codec,
                    Routing(names=names, domain=domain, partitions=stage.scenario.partitions),
                    stage.scenario.scheduler,
                )
            ),
            replayed_first=(names.statuses(domain),),
            always_open=(names.operations(domain),),
            outputs=names.job_topics(queues),
            source=stage.sources[domain],
        )

    def _remembering(
        self, make: Callable[[TaskId, int], DispatchProcessor]
    ) -> Callable[[TaskId, int], DispatchProcessor]:
        def made(task: TaskId, epoch: int) -> DispatchProcessor:
            processor = make(task, epoch)
            self.made.append((task, processor))
            return processor

        return made
