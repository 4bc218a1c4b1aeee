"""The processor: receives, runs handlers in slots, renews what it holds, settles, drains.

    pollers ──▶ waiting ──▶ slots ──▶ endings (deletes and releases in tens)
                   └──── heartbeats ────┘

It lives in one event loop. What it decides is in `slots`, `wheel`, `backoff` and `ledger`; what the
end of a run means is in `endings`; the stop is in `draining`.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from cape_stream.errors import Fatal
from cape_stream.ports.clock import Clock
from cape_stream.ports.progress import Progress
from cape_stream.ports.queue import QueueMessage
from cape_stream.queues.context import JobContext, Loss
from cape_stream.queues.contract import Unhandled
from cape_stream.queues.draining import Draining
from cape_stream.queues.endings import Endings
from cape_stream.queues.heartbeats import Heartbeats
from cape_stream.queues.held import Held
from cape_stream.queues.lane import Lane, run_handler
from cape_stream.queues.ledger import DrainReport, Ledger
from cape_stream.queues.settings import ProcessorSettings
from cape_stream.queues.slots import Slots

TRIP_MS = 1_000
"""How long an answer may have been on its way: a message that a receive brought may have been
handed out so much earlier."""

logger = logging.getLogger(__name__)


class HandlerCancelledError(Exception):
    """A handler ended as cancelled though nobody cancelled it."""


class Processor:
    """Works some queues until it is told to stop.

    Args:
        lanes: the queues.
        settings: see there.
        clock: the steady clock of the process.
        interruptions: counts runs that a stop interrupted, shared by the fleet; None: they count
            as attempts.
        chance: 0.0 to 1.0, for backoff.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        settings: ProcessorSettings,
        clock: Clock,
        *,
        interruptions: Progress | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.lanes = {lane.name: lane for lane in lanes}
        self.ledger = Ledger()
        self.heartbeats = Heartbeats(self.lanes, clock, self._lose)
        self._settings = settings
        self._clock = clock
        self._slots = Slots([lane.book for lane in lanes], settings.concurrency)
        self._endings = Endings(self.ledger, self.heartbeats, clock, interruptions, chance)
        self._stopping = asyncio.Event()
        slots = min(settings.concurrency, sum(lane.settings.concurrency for lane in lanes))
        self._threads = ThreadPoolExecutor(max(1, slots), thread_name_prefix="cape-job")

    @property
    def is_stopping(self) -> bool:
        """True since `stop`."""
        return self._stopping.is_set()

    @property
    def running(self) -> int:
        """Jobs that run now."""
        return self._slots.running

    def stop(self) -> None:
        """Begin the drain. From the event loop, such as by its signal handler; again: no effect."""
        self._stopping.set()
        for lane in self.lanes.values():
            lane.wakeup.set()

    async def run(self) -> DrainReport:
        """Work until `stop`, then drain; what became of everything received.

        Raises:
            Fatal: a loop of the processor ended by a defect; everything was drained.
        """
        pollers: set[asyncio.Task[None]] = set()
        for lane in self.lanes.values():
            lane.begin(self._settings)
            for number in range(lane.settings.pollers_max):
                pollers.add(asyncio.create_task(self._poll(lane, is_first=number == 0)))
        beats = asyncio.create_task(self.heartbeats.run())
        asked = asyncio.create_task(self._asked())
        loops = {beats, *pollers}
        try:
            await asyncio.wait({asked, *loops}, return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            draining = Draining(
                self.lanes.values(), self.ledger, self._endings, self._settings, self._clock
            )
            report = await draining.run(pollers)
        finally:
            for task in (asked, *loops):
                task.cancel()
            ends = await asyncio.gather(*loops, return_exceptions=True)
            self._threads.shutdown(wait=False, cancel_futures=True)
        for end in ends:
            if isinstance(end, Exception):
                raise Fatal(f"a defect ended a loop of the processor: {end!r}") from end
        return report

    async def _asked(self) -> None:
        await self._stopping.wait()

    # --- receiving -----------------------------------------------------------------------------

    async def _poll(self, lane: Lane, *, is_first: bool) -> None:
        """Receive again and again; all but the first poller of a lane only while it is busy."""
        while not self.is_stopping:
            asked = lane.book.reserve() if is_first or lane.is_hot else 0
            if not asked:
                lane.wakeup.clear()
                await lane.wakeup.wait()
                continue
            asked_ms = self._clock.now_ms()
            found, pause_s = await lane.receive(asked, self._settings.wait_s)
            self._take_in(lane, asked, found, asked_ms)
            if pause_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause_s)

    def _take_in(
        self, lane: Lane, asked: int, found: Sequence[QueueMessage], asked_ms: int
    ) -> None:
        visibility_ms = lane.settings.visibility_ms
        trip_ms = min(TRIP_MS, visibility_ms // 6)
        received_ms = max(asked_ms, self._clock.now_ms() - trip_ms)
        messages = [Held(lane.name, message, visibility_ms, received_ms) for message in found]
        for held in messages:
            self.ledger.take(held)
            self.heartbeats.add(held)
        lane.book.arrived(asked, messages)
        self._fill()
        if lane.is_hot:
            lane.wakeup.set()

    # --- running -------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Give every free slot a message, unless the process stops."""
        while not self.is_stopping and (held := self._slots.next()) is not None:
            lane = self.lanes[held.lane]
            held.task = lane.spawn(self._work(lane, held))

    async def _work(self, lane: Lane, held: Held) -> None:
        """One message from its slot to its settlement. Whatever fails, the slot comes back."""
        try:
            error = await self._run(lane, held)
        finally:
            held.deadline_ms = None
            lane.book.ended(held)
            self._freed(lane)
        try:
            if not held.abandoned:
                await self._endings.settle(lane, held, error)
        finally:
            lane.book.settled(held)
            self._freed(lane)

    def _freed(self, lane: Lane) -> None:
        self._fill()
        lane.wakeup.set()

    async def _run(self, lane: Lane, held: Held) -> BaseException | None:
        """Run the handler; what ended it, None if it is done."""
        try:
            decoded = lane.contract.decode(held.message.body)
            handler = lane.handlers.get(decoded.label)
            if isinstance(decoded, Unhandled):
                return self._endings.stranger(lane, held, decoded)
            if handler is None:
                nobody = Unhandled(decoded.label, "no handler is registered here")
                return self._endings.stranger(lane, held, nobody)
            attempt = await self._endings.attempt(lane, held)
            context = self._context(lane, held, attempt)
            await run_handler(handler, decoded.value, context, self._threads)
        except asyncio.CancelledError as error:
            return error if held.loss else HandlerCancelledError(str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # how user code ends decides
            return error
        return None

    def _context(self, lane: Lane, held: Held, attempt: int) -> JobContext:
        deadline_ms = self._clock.now_ms() + lane.settings.ceiling_s * 1_000

        async def extend(seconds: int) -> None:
            await self.heartbeats.extend(held, seconds)

        held.context = context = JobContext(
            queue=lane.name,
            message_id=held.message.message_id,
            attempt=attempt,
            clock=self._clock,
            deadline_ms=deadline_ms,
            extend=extend,
        )
        self.heartbeats.started(held, deadline_ms)
        if self.is_stopping:
            context.stop_soon()
        return context

    def _lose(self, held: Held, loss: Loss) -> None:
        """End the run of a message from outside; one that waits is dropped."""
        lane = self.lanes[held.lane]
        if held.loss is None or loss is not Loss.CEILING:
            held.loss = loss
        if held.context is not None:
            held.context.loss = held.loss
        if held in lane.book.running:
            assert held.task is not None, "what runs has a task"
            held.task.cancel()
        elif lane.book.drop(held):
            self._endings.lost(lane, held)
            self._freed(lane)
