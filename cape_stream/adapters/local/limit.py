"""An adaptive ceiling of concurrent calls for one process: additive growth, halving on refusal."""

import asyncio
import itertools
import logging
from collections import deque
from contextlib import suppress

from cape_stream.ports.limits import CallOutcome

SHRINK_WINDOW_S = 1.0
"""At most one shrink in so long: a burst of refusals is one message from the counterparty."""

logger = logging.getLogger(__name__)


class LocalLimit:
    """Implements `AdaptiveLimit`.

    Args:
        counterparty: for log lines.
        start: calls at a time in the beginning, >= 1.
        most: calls at a time at most.
    """

    def __init__(self, counterparty: str, *, start: int = 10, most: int = 100) -> None:
        self.ceiling = float(start)
        self.paused: str | None = None
        """Why no permits are given out."""
        self._counterparty = counterparty
        self._most = most
        self._out: set[str] = set()
        self._numbers = itertools.count(1)
        self._held_until_s = 0.0
        self._shrunk_s = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self, wait_ms: int) -> str | None:
        """See `AdaptiveLimit.acquire`."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_ms / 1_000
        while not self._is_open(loop.time()):
            left_s = end_s - loop.time()
            if left_s <= 0:
                return None
            news: asyncio.Future[None] = loop.create_future()
            self._waiting.append(news)
            hold_s = self._held_until_s - loop.time()
            wait_s = min(left_s, hold_s) if hold_s > 0 else left_s
            with suppress(TimeoutError):
                await asyncio.wait_for(news, wait_s)
        permit = f"{self._counterparty}-{next(self._numbers)}"
        self._out.add(permit)
        return permit

    async def release(
        self, permit: str, outcome: CallOutcome, retry_after_ms: int | None = None
    ) -> None:
        """See `AdaptiveLimit.release`."""
        was_full = len(self._out) >= int(self.ceiling)
        self._out.discard(permit)
        if outcome is CallOutcome.REFUSED:
            await self.shrink()
        elif outcome is CallOutcome.SUCCESS and was_full:
            self.ceiling = min(self._most, self.ceiling + 1 / self.ceiling)
        if retry_after_ms is not None:
            until_s = asyncio.get_running_loop().time() + retry_after_ms / 1_000
            self._held_until_s = max(self._held_until_s, until_s)
        self._tell()

    async def shrink(self) -> None:
        """See `AdaptiveLimit.shrink`."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._shrunk_s >= SHRINK_WINDOW_S:
            self._shrunk_s = now_s
            self.ceiling = max(1.0, self.ceiling / 2)
            logger.info("%s refuses: at most %d calls at a time", self._counterparty, self.ceiling)

    async def pause(self, reason: str) -> None:
        """See `AdaptiveLimit.pause`."""
        self.paused = reason

    async def resume(self) -> None:
        """See `AdaptiveLimit.resume`."""
        self.paused = None
        self._tell()

    def _is_open(self, now_s: float) -> bool:
        is_held = self.paused is not None or self._held_until_s > now_s
        return not is_held and len(self._out) < int(self.ceiling)

    def _tell(self) -> None:
        while self._waiting:
            news = self._waiting.popleft()
            if not news.done():
                news.set_result(None)
