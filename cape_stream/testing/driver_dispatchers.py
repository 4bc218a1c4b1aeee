"""Dispatchers of a driver: the real engine, in the caller's thread, on a simulated log."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

from cape_stream.adapters.simulated import (
    Broker,
    Disk,
    MemoryTable,
    ProcessKilled,
    SimClock,
    SimLog,
    SimProcess,
    Timeline,
)
from cape_stream.adapters.simulated.member import SimMember
from cape_stream.ports.background import Background, Pending
from cape_stream.ports.log import MemberListener, Record
from cape_stream.runtime.inspecting import Answer, Here, NotOursError, Steps
from cape_stream.runtime.loop import Backgrounds, Engine
from cape_stream.runtime.processor import TaskGroup
from cape_stream.runtime.settings import EngineSettings

T = TypeVar("T")

IDLE_MS = 60_000
"""The longest wait of a dispatcher that has nothing to do."""


class DonePending(Generic[T]):
    """A piece of work that has run."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._result: T | None = None
        self._error: Exception | None = None
        try:
            self._result = work()
        except Exception as error:  # noqa: BLE001  handed to whoever asks for the result
            self._error = error

    def done(self) -> bool:
        """See `Pending.done`."""
        return True

    def result(self) -> T:
        """See `Pending.result`."""
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class InlineBackground(Background):
    """Does every piece of work at once."""

    def submit(self, work: Callable[[], T], /) -> Pending[T]:
        """See `Background.submit`."""
        return DonePending(work)

    def close(self) -> None:
        """Nothing to free."""


class WatchedMember(SimMember):
    """Tells how long its dispatcher would have waited for records."""

    wait_ms = 0

    def poll(self, max_records: int, timeout_ms: int) -> list[Record]:
        """See `Member.poll`."""
        self.wait_ms = timeout_ms
        return super().poll(max_records, timeout_ms)


class WatchedLog(SimLog):
    """A process's log that keeps the member at hand."""

    def __init__(self, broker: Broker, process: SimProcess) -> None:
        super().__init__(broker, process)
        self.process = process
        self.watched: WatchedMember | None = None

    def member(self, group: str, topics: Sequence[str], listener: MemberListener) -> WatchedMember:
        """See `Log.member`."""
        self.watched = WatchedMember(self.broker, self.process, group, topics, listener)
        return self.watched


class Dispatcher:
    """One dispatcher process and the machine it runs on; the disk outlives the process."""

    def __init__(self, name: str, timeline: Timeline) -> None:
        self.name = name
        self.clock = SimClock(timeline)
        self.disk = Disk(name)
        self.starts = 0
        self.engine: Engine | None = None
        self.log: WatchedLog | None = None
        self.table: MemoryTable | None = None

    def start(self, broker: Broker, group_id: str, groups: Sequence[TaskGroup]) -> None:
        """A new process."""
        self.starts += 1
        process = SimProcess(broker.timeline, f"{self.name}.{self.starts}")
        self.log = WatchedLog(broker, process)
        self.table = MemoryTable(self.disk, process)
        background = InlineBackground()
        self.engine = Engine(
            log=self.log,
            table=self.table,
            clock=self.clock,
            groups=groups,
            group_id=group_id,
            member_name=process.name,
            backgrounds=Backgrounds(commits=background, restores=background, sources=background),
            settings=EngineSettings(idle_poll_ms=IDLE_MS),
        )

    def turn(self) -> int:
        """One turn; milliseconds until it has something to do, 0 for at once."""
        assert self.engine is not None, "it was started"
        assert self.log is not None, "it was started"
        records = self.engine.turn()
        member = self.log.watched
        return 0 if records or member is None else member.wait_ms

    @property
    def has_its_share(self) -> bool:
        """True once it is in the group and owns what the group wants it to."""
        member = None if self.log is None else self.log.watched
        if member is None or not member.seat.valid:
            return False
        return member.seat.owned == member.group.target(member.seat)

    def kill(self) -> None:
        """kill -9, and the group knows at once."""
        assert self.log is not None, "it was started"
        self.log.process.kill()
        member = self.log.watched
        if member is not None:
            member.group.leave(member.seat)

    def kill_after(self, effects: int) -> None:
        """kill -9 just before its ``effects``-th effect from now, >= 1."""
        assert self.log is not None, "it was started"
        self.log.process.kill_after(effects)

    def leave(self) -> None:
        """A graceful end."""
        assert self.engine is not None, "it was started"
        assert self.table is not None, "it was started"
        try:
            self.engine.close()
            self.table.close()
        except ProcessKilled:
            self.kill()

    def ask(self, steps: Callable[[Here, int], Steps]) -> list[Answer]:
        """Put a question to it; nothing if what is asked about is another's."""
        assert self.engine is not None, "it was started"
        sources = {name: each.standing() for name, each in self.engine.sources.items()}
        here = Here(self.engine.assignment.tasks, sources)
        now_ms = self.clock.now_ms()
        try:
            return [answer for answers in steps(here, now_ms) for answer in answers or ()]
        except NotOursError:
            return []

    @property
    def alive(self) -> bool:
        """False once its process was killed."""
        return self.log is not None and self.log.process.alive
