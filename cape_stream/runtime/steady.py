"""Time and threads of a real process."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class SteadyClock:
    """Implements `cape_stream.ports.clock.Clock` on the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        """Unix milliseconds at the start of the process plus what has passed since."""
        return time.monotonic_ns() // 1_000_000 + self._offset_ms

    def sleep_ms(self, duration_ms: int) -> None:
        """Block this thread."""
        time.sleep(duration_ms / 1_000)


class ThreadBackground:
    """Implements `cape_stream.ports.background.Background` on a thread pool."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, work: Callable[[], T], /) -> "Future[T]":
        """Run ``work`` on a free thread, or as soon as one is free."""
        return self._pool.submit(work)

    def close(self) -> None:
        """Drop what has not started; what hangs in foreign code is left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)
