"""A simulated process: what can be killed or stopped, and everything that dies with it."""

from collections.abc import Callable

from cape_stream.adapters.simulated.timeline import Fiber, ProcessKilled, Timeline


class SimProcess:
    """One process of a simulated world.

    Every adapter object is bound to one and passes through `touch` on each call, so a process
    can die, or be stopped like by SIGSTOP, between any two effects.

    Args:
        timeline: where its call stacks run.
        name: for traces; unique to this start of the process.
    """

    def __init__(self, timeline: Timeline, name: str) -> None:
        self.timeline = timeline
        self.name = name
        self.alive = True
        self.resumes_ms = 0
        """While this lies in the future the process is stopped."""
        self._fibers: dict[Fiber, None] = {}
        self._at_death: list[Callable[[], None]] = []
        self._fuse: tuple[int, Callable[[], None]] | None = None

    def start(
        self,
        work: Callable[[], None],
        delay_ms: int = 0,
        ended: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        """Run ``work`` in a call stack of its own, ``delay_ms`` from now.

        Args:
            work: a loop, or a piece of background work.
            delay_ms: virtual milliseconds until it begins.
            ended: gets the exception of the work, or None; not called for a killed process.
                Without it an exception comes out of the event that ran the work.
        """

        def body() -> None:
            error: BaseException | None = None
            try:
                work()
            except ProcessKilled:
                raise
            except BaseException as caught:
                if ended is None:
                    raise
                error = caught
            finally:
                self._fibers.pop(fiber, None)
            if ended is not None:
                ended(error)

        fiber = self.timeline.fiber(body, lambda: self.resumes_ms)
        self._fibers[fiber] = None
        fiber.wake(fiber.ticket, delay_ms)

    def touch(self) -> None:
        """One effect is about to happen: the place where a process dies or is stopped."""
        if not self.alive:
            raise ProcessKilled
        if self._fuse is None:
            return
        left, burn = self._fuse
        self._fuse = (left - 1, burn) if left > 1 else None
        if self._fuse is None:
            burn()
            if not self.alive:
                raise ProcessKilled

    def kill(self) -> None:
        """It dies now: its call stacks unwind, its buffers are gone, its connections close."""
        if not self.alive:
            return
        self.alive = False
        self.timeline.note(self.name, "killed")
        at_death, self._at_death = self._at_death, []
        for forget in at_death:
            forget()
        if self.timeline.current is None:
            self._reap()
        else:
            self.timeline.after(0, self._reap)

    def kill_after(self, effects: int) -> None:
        """It dies just before its ``effects``-th effect from now, >= 1."""
        self._fuse = (effects, self.kill)

    def stop(self, duration_ms: int) -> None:
        """Stop it where it stands; nothing of it moves for ``duration_ms``."""
        self.resumes_ms = max(self.resumes_ms, self.timeline.now_ms + duration_ms)
        self.timeline.note(self.name, "stopped", f"{duration_ms} ms")
        self.timeline.sleep(duration_ms if self._runs() else 0)

    def stop_after(self, effects: int, duration_ms: int) -> None:
        """Stop it for so long just before its ``effects``-th effect from now, >= 1."""
        self._fuse = (effects, lambda: self.stop(duration_ms))

    def at_death(self, forget: Callable[[], None]) -> None:
        """Call ``forget`` when the process is killed, such as to release a file lock."""
        self._at_death.append(forget)

    @property
    def stopped(self) -> bool:
        """True while nothing of it moves."""
        return self.resumes_ms > self.timeline.now_ms

    def _runs(self) -> bool:
        return self.timeline.current in self._fibers

    def _reap(self) -> None:
        fibers, self._fibers = self._fibers, {}
        for fiber in fibers:
            fiber.kill()
