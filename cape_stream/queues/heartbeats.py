"""Carries out what the wheel says: one loop for all messages, ten renewals a call."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from cape_stream.errors import CapeError
from cape_stream.ports.clock import Clock
from cape_stream.ports.queue import BATCH_MAX, EntryFailure, FailureKind
from cape_stream.queues.backoff import within_lease_s
from cape_stream.queues.context import Loss
from cape_stream.queues.held import Flight, Held
from cape_stream.queues.lane import Lane
from cape_stream.queues.wheel import HeartbeatWheel

IDLE_MS = 3_600_000

logger = logging.getLogger(__name__)


class Heartbeats:
    """Renews what is held.

    Args:
        lanes: by name.
        clock: the steady clock of the process.
        on_loss: told once that a message is not ours any more, before it can show up elsewhere.
    """

    def __init__(
        self, lanes: Mapping[str, Lane], clock: Clock, on_loss: Callable[[Held, Loss], None]
    ) -> None:
        self._lanes = lanes
        self._clock = clock
        self._on_loss = on_loss
        self._wheel = HeartbeatWheel()
        self._earlier = asyncio.Event()
        """Set when something is due before the time that the loop sleeps until."""
        self._sleeping_until_ms = 0
        self.renewals = 0
        """Messages renewed so far."""

    def live(self, lane: str) -> int:
        """Messages of a lane that are held and renewed."""
        return self._wheel.lane_count(lane)

    def add(self, held: Held) -> None:
        """Renew it from now on."""
        self._wheel.add(held)
        self._look()

    def started(self, held: Held, deadline_ms: int) -> None:
        """Its run has begun; it is lost at ``deadline_ms``."""
        self._wheel.started(held, deadline_ms)
        self._look()

    async def stop(self, held: Held) -> bool:
        """Renew it no more, and wait until no renewal is under way that could undo what comes
        next; False if it was lost by then."""
        self._wheel.remove(held)
        await self._land(held)
        if held.visible_ms <= self._clock.now_ms():
            return False  # the process was stopped and woken, say
        return held.loss is None or held.loss is Loss.DRAIN

    def forget(self, held: Held) -> None:
        """Renew it no more."""
        self._wheel.remove(held)

    async def extend(self, held: Held, seconds: int) -> None:
        """Keep it for at least so long; nothing happens to a message that is lost."""
        await self._land(held)
        if held not in self._wheel:
            return
        now_ms = self._clock.now_ms()
        allowed_s = within_lease_s(seconds, now_ms - held.received_ms)
        failure = await self._lanes[held.lane].changes.submit((held.message.receipt, allowed_s))
        if failure is None and held in self._wheel:
            self._wheel.renewed(held, now_ms, allowed_s)

    async def run(self) -> None:
        """Renew what is due until cancelled."""
        while True:
            now_ms = self._clock.now_ms()
            next_ms = self._wheel.next_ms
            self._sleeping_until_ms = now_ms + IDLE_MS if next_ms is None else next_ms
            self._earlier.clear()
            if self._sleeping_until_ms > now_ms:
                with suppress(TimeoutError):
                    wait_s = (self._sleeping_until_ms - now_ms) / 1_000
                    await asyncio.wait_for(self._earlier.wait(), wait_s)
                continue
            due = self._wheel.due(now_ms)
            for held, loss in due.losses:
                self._lose(held, loss, "no renewal was in time")
            for lane in self._lanes.values():
                mine = [held for held in due.beats if held.lane == lane.name]
                for start in range(0, len(mine), BATCH_MAX):
                    self._renew(lane, mine[start : start + BATCH_MAX], now_ms)

    def _renew(self, lane: Lane, batch: list[Held], now_ms: int) -> None:
        wanted_s = lane.settings.visibility_s
        seconds = [within_lease_s(wanted_s, now_ms - held.received_ms) for held in batch]
        changes = [(held.message.receipt, each) for held, each in zip(batch, seconds, strict=True)]
        flight: Flight = asyncio.ensure_future(lane.queue.change_visibility(changes))
        for held in batch:
            held.flights.add(flight)
        # No answer in time counts as a failure; the call itself may succeed all the same.
        patience_s = lane.settings.visibility_ms / 6_000
        timer = asyncio.get_running_loop().call_later(patience_s, self._all_failed, batch)

        def landed(_: Flight) -> None:
            was_late = asyncio.get_running_loop().time() >= timer.when()
            timer.cancel()
            answers = _answers(flight, len(batch))
            for held, each, failure in zip(batch, seconds, answers, strict=True):
                held.flights.discard(flight)
                if held in self._wheel:
                    self._landed(held, now_ms, each, failure, was_late=was_late)
            self._look()

        flight.add_done_callback(landed)

    def _landed(
        self,
        held: Held,
        sent_ms: int,
        seconds: int,
        failure: EntryFailure | None,
        *,
        was_late: bool,
    ) -> None:
        if failure is None:
            self.renewals += 1
            self._wheel.renewed(held, sent_ms, seconds)
        elif failure.kind is not FailureKind.TRANSIENT:
            self._lose(held, Loss.REFUSED, failure.reason)
        elif not was_late:
            self._failed(held)

    def _all_failed(self, batch: list[Held]) -> None:
        for held in batch:
            if held in self._wheel:
                self._failed(held)
        self._look()

    def _failed(self, held: Held) -> None:
        loss = self._wheel.failed(held, self._clock.now_ms())
        if loss is not None:
            self._lose(held, loss, "two renewals in a row failed")

    def _lose(self, held: Held, loss: Loss, reason: str) -> None:
        if loss is Loss.CEILING:
            reason = "it ran as long as a job may"
        logger.warning("%s: message %s is given up: %s", held.lane, held.message.message_id, reason)
        self._wheel.remove(held)
        self._on_loss(held, loss)

    async def _land(self, held: Held) -> None:
        while held.flights:
            await asyncio.wait(set(held.flights))

    def _look(self) -> None:
        next_ms = self._wheel.next_ms
        if next_ms is not None and next_ms < self._sleeping_until_ms:
            self._earlier.set()


def _answers(flight: Flight, count: int) -> list[EntryFailure | None]:
    """What a call that has ended says of its entries."""
    if flight.cancelled():
        return [EntryFailure(FailureKind.TRANSIENT, "cancelled")] * count
    error = flight.exception()
    if error is None:
        return flight.result()
    if not isinstance(error, CapeError):
        logger.error("a renewal failed by a defect", exc_info=error)
    return [EntryFailure(FailureKind.TRANSIENT, str(error))] * count
