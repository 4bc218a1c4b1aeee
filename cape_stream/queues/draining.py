"""The stop: nothing new, the last receives, what can finish, everything else back, one report.

In this order, for a receive that is cut off may have taken a message nobody gets, and a message
that is given back while a receive is open comes straight back to a process that is about to end.
"""

import asyncio
import logging
from collections.abc import Iterable

from cape_stream.ports.clock import Clock
from cape_stream.queues.context import Loss
from cape_stream.queues.endings import Endings
from cape_stream.queues.held import Held
from cape_stream.queues.lane import Lane
from cape_stream.queues.ledger import DrainReport, Ledger
from cape_stream.queues.settings import ProcessorSettings

CANCEL_MS = 1_000
"""How long handlers that were cancelled may take to end."""
RESERVE_MS = 3_000
"""Kept of the grace period for cancelling, handing back and flushing."""

logger = logging.getLogger(__name__)


class Draining:
    """One stop of one processor.

    Args:
        lanes: its queues.
        ledger: its books.
        endings: gives messages back.
        settings: how long it may take.
        clock: the steady clock of the process.
    """

    def __init__(
        self,
        lanes: Iterable[Lane],
        ledger: Ledger,
        endings: Endings,
        settings: ProcessorSettings,
        clock: Clock,
    ) -> None:
        self._lanes = list(lanes)
        self._ledger = ledger
        self._endings = endings
        self._clock = clock
        self._start_ms = clock.now_ms()
        self._deadline_ms = self._start_ms + settings.grace_ms

    async def run(self, pollers: set[asyncio.Task[None]]) -> DrainReport:
        """Drain; afterwards nothing is held."""
        self._endings.may_release.clear()
        for held in self._running():
            if held.context is not None:
                held.context.stop_soon()
        work_ms = self._deadline_ms - RESERVE_MS
        finishing = asyncio.create_task(self._wait(self._tasks(), work_ms))
        abandoned = await self._wait(pollers, work_ms)
        self._endings.may_release.set()
        for lane in self._lanes:
            for held in lane.book.take_waiting():
                lane.spawn(self._endings.hand_back(lane, held))
        await finishing
        for lane in self._lanes:
            lane.deletes.hurry()
            lane.changes.hurry()
        hung = await self._interrupt()
        mute = {held.task for held in hung}
        await self._wait(self._tasks() - mute, self._deadline_ms)
        report = self._ledger.report(
            polls_abandoned=len(abandoned),
            hung=len(hung),
            duration_ms=self._clock.now_ms() - self._start_ms,
        )
        if not report.adds_up:
            logger.error("the drain does not add up: %s", report.as_json())
        return report

    async def _interrupt(self) -> list[Held]:
        """Cancel what still runs; what does not end even so, whose messages are given back."""
        rest = self._running()
        for held in rest:
            if held.loss is None:
                held.loss = Loss.DRAIN
                if held.context is not None:
                    held.context.loss = Loss.DRAIN
                if held.task is not None:
                    held.task.cancel()
        tasks = {held.task for held in rest if held.task is not None}
        await self._wait(tasks, self._clock.now_ms() + CANCEL_MS)
        hung = self._running()
        for held in hung:
            held.abandoned = True
            lane = next(each for each in self._lanes if each.name == held.lane)
            logger.error(
                "%s: the handler of message %s does not end", lane.name, held.message.message_id
            )
            if held.loss is Loss.DRAIN:
                lane.spawn(self._endings.hand_back(lane, held))
            else:
                self._endings.lost(lane, held)
        return hung

    async def _wait(self, tasks: set[asyncio.Task[None]], until_ms: int) -> set[asyncio.Task[None]]:
        """Wait for tasks; those that have not ended by then."""
        if not tasks:
            return set()
        left_s = max(0, until_ms - self._clock.now_ms()) / 1_000
        _, pending = await asyncio.wait(tasks, timeout=left_s)
        return pending

    def _running(self) -> list[Held]:
        return [held for lane in self._lanes for held in lane.book.running]

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {task for lane in self._lanes for task in lane.tasks}
