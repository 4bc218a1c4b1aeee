"""The thread under a fiber; it only ever runs while the thread that entered it waits."""

from collections.abc import Callable
from threading import Lock, Thread


class Carrier:
    """Runs one call stack at a time, hand in hand with whoever enters it.

    A thread is used for nothing but its stack: control is handed over explicitly, so exactly
    one of the two sides runs and the order of events never depends on the machine.
    """

    def __init__(self) -> None:
        self._go = Lock()
        self._back = Lock()
        self._go.acquire()
        self._back.acquire()
        self._work: Callable[[], None] | None = None
        self._thread = Thread(target=self._run, name="fiber", daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], None]) -> None:
        """Run ``work`` until it leaves or ends."""
        self._work = work
        self.enter()

    def enter(self) -> None:
        """Go on with the work until it leaves or ends; called from outside."""
        self._go.release()
        self._back.acquire()

    def leave(self) -> None:
        """Let the outside go on until it enters again; called by the work."""
        self._back.release()
        self._go.acquire()

    def stop(self) -> None:
        """End the thread; only when no work is under way."""
        self._work = None
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            work = self._work
            if work is None:
                return
            work()
            self._work = None
            self._back.release()
