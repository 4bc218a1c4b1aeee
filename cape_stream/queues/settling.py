"""Deletes and visibility changes in batches of ten, each entry tried again alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from cape_stream.errors import CapeError
from cape_stream.ports.queue import BATCH_MAX, EntryFailure, FailureKind

E = TypeVar("E")

TRIES = 8
PAUSE_S = 0.1
"""Before the second try; doubles up to `PAUSE_S_MAX`."""
PAUSE_S_MAX = 5.0

logger = logging.getLogger(__name__)


class _Waiting(NamedTuple, Generic[E]):
    entry: E
    answer: asyncio.Future[EntryFailure | None]
    attempt: int


class Batcher(Generic[E]):
    """Collects entries of one call of one queue.

    Args:
        name: for log lines.
        call: carries out up to ten entries.
        linger_ms: how long an entry waits for others.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[Sequence[E]], Awaitable[list[EntryFailure | None]]],
        linger_ms: int,
    ) -> None:
        self._name = name
        self._call = call
        self._linger_s = linger_ms / 1_000
        self._waiting: list[_Waiting[E]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()

    def submit(self, entry: E) -> asyncio.Future[EntryFailure | None]:
        """Carry out an entry soon; the answer, None when it was done.

        A failure that may pass is tried again some times; it is the answer when it does not.
        """
        answer: asyncio.Future[EntryFailure | None] = asyncio.get_running_loop().create_future()
        self._add(_Waiting(entry, answer, 1))
        return answer

    def flush(self) -> None:
        """Send what has been collected, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            call = asyncio.ensure_future(self._carry_out(batch))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    def hurry(self) -> None:
        """From now on nothing waits for company: the process ends."""
        self._linger_s = 0.0
        self.flush()

    def _add(self, waiting: _Waiting[E]) -> None:
        self._waiting.append(waiting)
        if len(self._waiting) >= BATCH_MAX:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self.flush)

    async def _carry_out(self, batch: list[_Waiting[E]]) -> None:
        try:
            answers = await self._call([each.entry for each in batch])
        except CapeError as error:
            answers = [EntryFailure(FailureKind.TRANSIENT, error.reason)] * len(batch)
        except Exception as error:  # a defect must not leave the callers waiting for ever
            logger.exception("%s failed", self._name)
            answers = [EntryFailure(FailureKind.TRANSIENT, repr(error))] * len(batch)
        for each, failure in zip(batch, answers, strict=True):
            if each.answer.done():
                continue
            again = failure is not None and failure.kind is FailureKind.TRANSIENT
            if again and each.attempt < TRIES:
                pause_s = min(PAUSE_S_MAX, PAUSE_S * 2 ** (each.attempt - 1))
                later = _Waiting(each.entry, each.answer, each.attempt + 1)
                asyncio.get_running_loop().call_later(pause_s, self._add, later)
            else:
                each.answer.set_result(failure)
