"""What the end of a run means for the message: delete it, give it back now or later, or nothing.

A message is given back by its visibility and never sent again, so its id, its body and the count
of its receives stay what they are.
"""

import asyncio
import logging
from collections.abc import Callable

from cape_stream.errors import CapeError, Reject, Retry
from cape_stream.ports.clock import Clock
from cape_stream.ports.progress import Progress
from cape_stream.ports.queue import FailureKind
from cape_stream.queues.backoff import Backoff, within_lease_s
from cape_stream.queues.context import HandedBackError, Loss
from cape_stream.queues.contract import Unhandled
from cape_stream.queues.heartbeats import Heartbeats
from cape_stream.queues.held import Fate, Held
from cape_stream.queues.lane import Lane
from cape_stream.queues.ledger import Ledger

logger = logging.getLogger(__name__)


class StrangerError(Exception):
    """Nobody here can handle the message."""


class WornOutError(Exception):
    """The message has had all its attempts; each further receive brings it nearer to the DLQ."""


class Endings:
    """Ends messages.

    Args:
        ledger: notes how.
        heartbeats: stopped before anything else is said of a message.
        clock: the steady clock of the process.
        interruptions: counts runs that were interrupted; None: nobody counts them.
        chance: 0.0 to 1.0, for backoff.
    """

    def __init__(
        self,
        ledger: Ledger,
        heartbeats: Heartbeats,
        clock: Clock,
        interruptions: Progress | None,
        chance: Callable[[], float],
    ) -> None:
        self.may_release = asyncio.Event()
        """Cleared while the process stops and receives are still under way: they would get what
        is given back."""
        self.may_release.set()
        self._ledger = ledger
        self._heartbeats = heartbeats
        self._clock = clock
        self._interruptions = interruptions
        self._chance = chance

    async def attempt(self, lane: Lane, held: Held) -> int:
        """Which run this is, interrupted ones not counted.

        Raises:
            WornOutError: it has had them all.
        """
        receives = held.message.receive_count
        if receives <= 1 or self._interruptions is None:
            attempt = receives
        else:
            try:
                interrupted = await self._interruptions.read(_name(held))
            except CapeError as error:
                # Better one run too many than a healthy message in the DLQ.
                logger.warning("interruptions are not known: %s", error.reason)
                return 1
            attempt = max(1, receives - interrupted)
        limit = lane.settings.attempts_max
        if limit is not None and attempt > limit and lane.has_dead_letters:
            raise WornOutError(f"{limit} attempts have failed")
        return attempt

    def stranger(self, lane: Lane, held: Held, found: Unhandled) -> StrangerError:
        """Count and tell a message that nobody here can handle."""
        self._ledger.count_stranger(lane.name, found.label)
        logger.warning(
            "%s: no handler for message %s of type %s, receive %d: %s",
            *(lane.name, held.message.message_id, found.label),
            *(held.message.receive_count, found.reason),
        )
        return StrangerError(found.reason)

    async def settle(self, lane: Lane, held: Held, error: BaseException | None) -> None:
        """Tell the queue how a run ended.

        Args:
            lane: of the message.
            held: the message; its slot is free already.
            error: what ended the run; None if it is done.
        """
        if held.loss in (Loss.REFUSED, Loss.UNRENEWED):
            self.lost(lane, held)
        elif held.loss is Loss.CEILING:
            await self._return(lane, held, Fate.RETURNED, self._wait_s(lane, held, error))
        elif error is None:
            await self._delete(lane, held)
        elif isinstance(error, HandedBackError | asyncio.CancelledError):
            await self.hand_back(lane, held)
        elif isinstance(error, WornOutError):
            await self._return(lane, held, Fate.RETURNED, 0)
        elif isinstance(error, StrangerError):
            wait_s = self._backed_off_s(lane.settings.unhandled, held)
            await self._return(lane, held, Fate.UNHANDLED, wait_s)
        elif isinstance(error, Reject):
            self.stranger(lane, held, Unhandled("rejected", error.reason))
            wait_s = self._backed_off_s(lane.settings.unhandled, held)
            await self._return(lane, held, Fate.UNHANDLED, wait_s)
        else:
            self._tell(lane, held, error)
            await self._return(lane, held, Fate.RETURNED, self._wait_s(lane, held, error))

    async def hand_back(self, lane: Lane, held: Held) -> None:
        """Give a message back at once, and note that this receive was no attempt."""
        await self.may_release.wait()
        if not await self._heartbeats.stop(held):
            self.lost(lane, held)
            return
        await self._note_interruption(held)
        await self._release(lane, held, Fate.HANDED_BACK, 0)

    def lost(self, lane: Lane, held: Held) -> None:
        """The message is not ours any more: say nothing of it. What waits behind it in its group
        must not run before it, so that goes back."""
        self._heartbeats.forget(held)
        self._ledger.close(held, Fate.LOST)
        self._hand_back_followers(lane, held)

    async def _delete(self, lane: Lane, held: Held) -> None:
        if not await self._heartbeats.stop(held):
            self.lost(lane, held)
            return
        failure = await lane.deletes.submit(held.message.receipt)
        if failure is None:
            self._ledger.close(held, Fate.DONE)
            return
        logger.error(
            "%s: message %s is done but could not be deleted, it may come again: %s",
            *(lane.name, held.message.message_id, failure.reason),
        )
        self._ledger.close(held, Fate.LOST if failure.kind is FailureKind.STALE else Fate.UNDELETED)
        self._hand_back_followers(lane, held)

    async def _return(self, lane: Lane, held: Held, fate: Fate, wait_s: int) -> None:
        """Give a message back, to show up again after ``wait_s``."""
        await self.may_release.wait()
        ours = await self._heartbeats.stop(held) or held.loss is Loss.CEILING
        if not ours or held.visible_ms <= self._clock.now_ms():
            self.lost(lane, held)
            return
        await self._release(lane, held, fate, wait_s)
        self._hand_back_followers(lane, held)

    async def _release(self, lane: Lane, held: Held, fate: Fate, wait_s: int) -> None:
        allowed_s = within_lease_s(wait_s, self._clock.now_ms() - held.received_ms)
        failure = await lane.changes.submit((held.message.receipt, allowed_s))
        if failure is None:
            self._ledger.close(held, fate)
        elif failure.kind is FailureKind.STALE:
            self._ledger.close(held, Fate.LOST)
        else:
            logger.error(
                "%s: message %s could not be given back: %s",
                *(lane.name, held.message.message_id, failure.reason),
            )
            self._ledger.close(held, Fate.STRANDED)

    def _hand_back_followers(self, lane: Lane, held: Held) -> None:
        for follower in lane.book.take_followers(held):
            lane.spawn(self.hand_back(lane, follower))

    async def _note_interruption(self, held: Held) -> None:
        if self._interruptions is not None:
            try:
                await self._interruptions.add(_name(held))
            except CapeError as error:
                logger.warning(
                    "the interruption of %s is not counted: %s",
                    *(held.message.message_id, error.reason),
                )

    def _wait_s(self, lane: Lane, held: Held, error: BaseException | None) -> int:
        if isinstance(error, Retry) and error.after_ms is not None:
            return -(-error.after_ms // 1_000)
        return self._backed_off_s(lane.settings.backoff, held)

    def _backed_off_s(self, backoff: Backoff, held: Held) -> int:
        return backoff.wait_s(held.message.receive_count, self._chance())

    def _tell(self, lane: Lane, held: Held, error: BaseException) -> None:
        expected = isinstance(error, CapeError)
        logger.warning(
            "%s: message %s failed at receive %d: %r",
            *(lane.name, held.message.message_id, held.message.receive_count, error),
            exc_info=None if expected else error,
        )


def _name(held: Held) -> str:
    return f"interrupted/{held.message.message_id}"
