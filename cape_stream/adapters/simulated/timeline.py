"""Virtual time: a heap of things that will happen, and call stacks that can stop in between.

Everything a simulated world does is an event on one `Timeline`. Between two events no time
passes; during one event the clock stands still. A `Fiber` is a call stack of its own, such as the
loop of a process or a commit in the background, which may stop in the middle of any call and go
on at a later virtual time. Only one call stack ever runs, so a run depends on its seed alone.

Outside of a fiber nothing can wait: `Timeline.sleep` returns at once. That is what lets the same
adapters serve as plain in-memory twins in tests that know no time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from cape_stream.adapters.simulated.carrier import Carrier

TRACE_LINES_MAX = 100_000
"""How many of the newest trace lines are kept; a failing seed is read from its end."""


class ProcessKilled(BaseException):
    """The simulated process died: unwinds its call stacks past every ``except Exception``."""


class Scheduled:
    """An event that has not happened yet."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        """It will not happen."""
        self.run = None


class Timeline:
    """The event heap and its clock, in virtual milliseconds.

    Args:
        start_ms: where the clock begins, Unix milliseconds.
    """

    def __init__(self, start_ms: int = 1_000_000) -> None:
        self.now_ms = start_ms
        self.current: Fiber | None = None
        """The fiber that runs now; None in an event of the world itself."""
        self.trace: deque[tuple[int, str, str, str]] = deque(maxlen=TRACE_LINES_MAX)
        """(virtual ms, who, what, detail) of everything worth reading after a failure."""
        self._heap: list[tuple[int, int, Scheduled]] = []
        self._count = 0
        self._running = False
        self._idle: list[Carrier] = []
        self._fibers: dict[Fiber, None] = {}

    def at(self, when_ms: int, run: Callable[[], None]) -> Scheduled:
        """Let ``run`` happen at ``when_ms``, or now if that has passed; ties keep their order."""
        scheduled = Scheduled(run)
        self._count += 1
        heapq.heappush(self._heap, (max(when_ms, self.now_ms), self._count, scheduled))
        return scheduled

    def after(self, delay_ms: int, run: Callable[[], None]) -> Scheduled:
        """Let ``run`` happen ``delay_ms`` from now."""
        return self.at(self.now_ms + delay_ms, run)

    def run_next(self) -> bool:
        """Let the next event happen; False when there is none. What it raises comes out here."""
        assert not self._running, "an event cannot run other events: schedule them"
        while self._heap:
            when_ms, _, scheduled = heapq.heappop(self._heap)
            if scheduled.run is None:
                continue
            self.now_ms = when_ms
            self._running = True
            try:
                scheduled.run()
            finally:
                self._running = False
            return True
        return False

    def run_until(self, until_ms: int, stop: Callable[[], bool] | None = None) -> bool:
        """Let events happen up to and including ``until_ms``.

        Returns:
            True as soon as ``stop``, asked after every event, says so; else False, with the
            clock at ``until_ms``.
        """
        while self._heap and self._heap[0][0] <= until_ms:
            self.run_next()
            if stop is not None and stop():
                return True
        self.now_ms = max(self.now_ms, until_ms)
        return False

    def sleep(self, duration_ms: int) -> None:
        """Let time pass for the fiber that calls; elsewhere nothing can wait, so go on."""
        if self.current is not None and duration_ms > 0:
            self.current.park(duration_ms)

    def note(self, who: str, what: str, detail: str = "") -> None:
        """Add a line to the trace."""
        self.trace.append((self.now_ms, who, what, detail))

    def fiber(self, work: Callable[[], None], resumes_ms: Callable[[], int]) -> Fiber:
        """A new fiber, which begins when an event resumes it; see `Fiber`."""
        fiber = Fiber(self, work, resumes_ms)
        self._fibers[fiber] = None
        return fiber

    def close(self) -> None:
        """Kill every fiber and free the threads that carry them."""
        for fiber in list(self._fibers):
            fiber.kill()
        for carrier in self._idle:
            carrier.stop()
        self._idle.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _borrow(self) -> Carrier:
        return self._idle.pop() if self._idle else Carrier()

    def _give_back(self, fiber: Fiber, carrier: Carrier | None) -> None:
        self._fibers.pop(fiber, None)
        if carrier is not None:
            self._idle.append(carrier)


class Fiber:
    """A call stack that can stop anywhere and go on at a later virtual time.

    Args:
        timeline: whose events resume it.
        work: what it does; its exception, except `ProcessKilled`, comes out of the event.
        resumes_ms: the earliest time its process can go on, asked whenever it should; a time
            in the future means the process is stopped until then.
    """

    def __init__(
        self, timeline: Timeline, work: Callable[[], None], resumes_ms: Callable[[], int]
    ) -> None:
        self.finished = False
        self._timeline = timeline
        self._work = work
        self._resumes_ms = resumes_ms
        self._carrier: Carrier | None = None
        self._error: BaseException | None = None
        self._killed = False
        self._ticket = 0

    def wake(self, ticket: int, delay_ms: int = 0) -> None:
        """Resume it ``delay_ms`` from now, unless something else has since ``ticket``."""
        self._timeline.after(delay_ms, lambda: self._resume(ticket))

    @property
    def ticket(self) -> int:
        """Names the present stop; `wake` for an older one does nothing."""
        return self._ticket

    def park(self, duration_ms: int | None) -> None:
        """Stop here (called by the fiber itself) for so long, or until somebody wakes it."""
        assert self._timeline.current is self, "a fiber can only stop itself"
        if self._killed:
            raise ProcessKilled
        if duration_ms is not None:
            self.wake(self._ticket, duration_ms)
        carrier = self._carrier
        assert carrier is not None, "a running fiber has a carrier"
        self._timeline.current = None
        carrier.leave()
        self._timeline.current = self
        if self._killed:
            raise ProcessKilled

    def kill(self) -> None:
        """Unwind it from where it stopped; called from outside of it."""
        self._killed = True
        if self.finished:
            return
        if self._carrier is None:
            self.finished = True
            self._timeline._give_back(self, None)
        else:
            self._enter()

    def _resume(self, ticket: int) -> None:
        if ticket != self._ticket or self.finished:
            return
        stopped_until_ms = self._resumes_ms()
        if stopped_until_ms > self._timeline.now_ms:
            self._timeline.at(stopped_until_ms, lambda: self._resume(ticket))
            return
        self._enter()

    def _enter(self) -> None:
        assert self._timeline.current is None, "fibers are resumed by events, not by each other"
        self._ticket += 1
        if self._carrier is None:
            self._carrier = self._timeline._borrow()
            self._carrier.begin(self._body)
        else:
            self._carrier.enter()
        if self.finished:
            carrier, self._carrier = self._carrier, None
            self._timeline._give_back(self, carrier)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _body(self) -> None:
        self._timeline.current = self
        try:
            self._work()
        except ProcessKilled:
            pass
        except BaseException as error:  # noqa: BLE001  it is raised again where the world sees it
            self._error = error
        finally:
            self.finished = True
            self._timeline.current = None


class Signal:
    """Something fibers can wait for; a call of `notify` resumes those it concerns."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._waiting: list[tuple[Fiber, int, Callable[[], bool] | None]] = []

    def wait(self, timeout_ms: int, concerned: Callable[[], bool] | None = None) -> None:
        """Stop the calling fiber until notified, at most ``timeout_ms``; elsewhere go on.

        Args:
            timeout_ms: virtual milliseconds.
            concerned: asked at every call of `notify`; while it says no, the fiber stays where it
                is, which costs nothing. None: any call resumes it.
        """
        fiber = self._timeline.current
        if fiber is not None and timeout_ms > 0:
            self._waiting.append((fiber, fiber.ticket, concerned))
            fiber.park(timeout_ms)

    def notify(self) -> None:
        """Resume everybody who waits and is concerned, in the order they came."""
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            fiber, ticket, concerned = entry
            if ticket != fiber.ticket or fiber.finished:
                continue
            if concerned is None or concerned():
                fiber.wake(ticket)
            else:
                self._waiting.append(entry)
