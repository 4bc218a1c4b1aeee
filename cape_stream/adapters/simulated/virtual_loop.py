"""An event loop whose time is virtual: it never waits, it jumps to the next timer.

For twins that live in one process and touch no socket. What takes 12 hours takes milliseconds, and
two runs from the same start do the same things in the same order.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_S = 1_000_000.0


class _JumpingSelector(selectors.SelectSelector):
    """Sees what is ready now, and lets time jump where a real one would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S

    def select(self, wait_s: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Whatever is ready; otherwise time moves on by ``wait_s``."""
        ready = super().select(0)
        if ready:
            return ready
        if wait_s is None:
            raise RuntimeError("virtual time stands still: nothing is due and nothing can happen")
        self.now_s += max(wait_s, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. Its time begins at `START_S` seconds."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._jumping.now_s

    def freeze(self, seconds: float) -> None:
        """Let time pass while nothing runs, as for a process that was stopped and woken."""
        self._jumping.now_s += seconds


class VirtualClock:
    """The clock port over a `VirtualLoop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return round(self._loop.time() * 1_000)

    def sleep_ms(self, duration_ms: int) -> None:
        """Not here.

        Raises:
            RuntimeError: always; virtual time passes by awaiting.
        """
        raise RuntimeError(f"cannot block for {duration_ms} ms: await asyncio.sleep instead")


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
