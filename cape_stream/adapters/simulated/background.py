"""Background work on virtual time."""

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from cape_stream.adapters.simulated.faults import Dice
from cape_stream.adapters.simulated.process import SimProcess
from cape_stream.adapters.simulated.timeline import Signal

T = TypeVar("T")

CLOSE_WAIT_MS_MAX = 10_000
"""How long `SimBackground.close` waits for work that hangs."""


class SimPending(Generic[T]):
    """A piece of work under way; done some time after it really ended."""

    def __init__(self, signal: Signal, process: SimProcess) -> None:
        self._signal = signal
        self._process = process
        self._done = False
        self._result: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """True once `result` returns (or raises) at once."""
        return self._done

    def result(self) -> T:
        """The work's result, or the exception it raised; a fiber waits for it."""
        self._process.touch()
        while not self._done:
            assert self._process.timeline.current is not None, "only a fiber can wait for a result"
            self._signal.wait(CLOSE_WAIT_MS_MAX)
        if self._error is not None:
            raise self._error
        return cast("T", self._result)

    def settle(self, result: T | None, error: BaseException | None) -> None:
        """Show the outcome; called by the background."""
        self._result, self._error, self._done = result, error, True
        self._signal.notify()


class SimBackground:
    """Runs each piece of work in a fiber of its process, after a drawn delay.

    The outcome shows after another drawn delay, so a kill may fall before the work, in the
    middle of it, or after it and before the loop knows.

    Args:
        process: whose death or stop also kills or stops the work.
        dice: draws the delays.
    """

    def __init__(self, process: SimProcess, dice: Dice) -> None:
        self._process = process
        self._dice = dice
        self._signal = Signal(process.timeline)
        self._open = 0
        self._closed = False

    def submit(self, work: Callable[[], T], /) -> SimPending[T]:
        """Start ``work`` after a drawn delay."""
        self._process.touch()
        assert not self._closed, "the background is closed"
        pending: SimPending[T] = SimPending(self._signal, self._process)
        self._open += 1
        faults = self._dice.faults

        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except Exception as caught:  # noqa: BLE001  handed to whoever asks for the result
                error = caught
            self._process.timeline.sleep(self._dice.draw_ms(faults.show_ms))
            self._open -= 1
            pending.settle(result, error)

        self._process.start(run, self._dice.draw_ms(faults.start_ms))
        return pending

    def close(self) -> None:
        """Take no more work and wait, in a fiber, for what runs; at most ten seconds."""
        self._closed = True
        timeline = self._process.timeline
        deadline_ms = timeline.now_ms + CLOSE_WAIT_MS_MAX
        while self._open and timeline.current is not None and timeline.now_ms < deadline_ms:
            self._signal.wait(deadline_ms - timeline.now_ms)
