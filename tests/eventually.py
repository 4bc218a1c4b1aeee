"""Waiting for conditions in tests that run an event loop."""

import asyncio
from collections.abc import Callable

WAIT_S = 20
LOOK_S = 0.01


async def until(condition: Callable[[], object], wait_s: float = WAIT_S) -> None:
    """Look again and again until the condition is true; TimeoutError if it never is."""
    async with asyncio.timeout(wait_s):
        while True:
            if condition():
                return
            await asyncio.sleep(LOOK_S)
