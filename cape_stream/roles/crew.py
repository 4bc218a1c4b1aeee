"""The loops of one process: each in a thread of its own, until a signal or the first failure.

A part that fails takes the whole process down: a dispatcher without its worker, or the other way
round, would look healthy and do nothing. The parts stop in the reverse of the order they started.
"""

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Protocol

from cape_stream.errors import CapeError, Fatal

LOOK_S = 0.1
"""How often `Crew.wait` looks whether a signal came; bounds how late it is followed."""

logger = logging.getLogger(__name__)


class Part(Protocol):
    """One loop of a process."""

    name: str

    def run(self) -> None:
        """Work until `stop`, then leave in good order. Called in a thread of its own.

        Raises:
            Fatal: it cannot go on; it has closed.
        """
        ...

    def stop(self) -> None:
        """Make `run` end soon. From any thread."""
        ...

    def figures(self) -> Mapping[str, int]:
        """How far it is, for people. From any thread."""
        ...


class Crew:
    """Runs parts until `stop`, or until one of them fails.

    Args:
        parts: in the order in which they start.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._running: list[tuple[Part, threading.Thread]] = []
        self._over = threading.Event()
        self._asked = False
        self.failure: BaseException | None = None
        """What ended the first part that did not end in good order."""

    def start(self) -> None:
        """Start every part."""
        for part in self._parts:
            thread = threading.Thread(
                target=self._run, args=(part,), name=f"cape-{part.name}", daemon=True
            )
            self._running.append((part, thread))
            thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until `end` was called or a part has ended; False if the time ran out first."""
        deadline_s = None if timeout_s is None else monotonic() + timeout_s
        while not self._asked:
            left_s = LOOK_S if deadline_s is None else min(LOOK_S, deadline_s - monotonic())
            if self._over.wait(max(left_s, 0.0)):
                return True
            if deadline_s is not None and monotonic() >= deadline_s:
                return self._asked
        return True

    def end(self) -> None:
        """Make `wait` return. From anywhere, a signal handler too: it takes no lock, for the code
        it interrupts may hold the very same one."""
        self._asked = True

    def stop(self) -> None:
        """Stop all parts, last one first, each when the one before it has ended."""
        self._over.set()
        for part, thread in reversed(self._running):
            part.stop()
            thread.join()

    def figures(self) -> dict[str, int]:
        """How far all parts are; what several of them count is added up."""
        figures: dict[str, int] = {}
        for part in self._parts:
            for name, value in part.figures().items():
                figures[name] = figures.get(name, 0) + value
        return figures

    def _run(self, part: Part) -> None:
        try:
            part.run()
        except BaseException as error:  # noqa: BLE001  # a thread ends: the main one tells why
            if self.failure is None:
                self.failure = error
        finally:
            self._over.set()


@contextmanager
def signals(crew: Crew) -> Iterator[None]:
    """SIGTERM and SIGINT end the crew; a second one ends the process at once, which loses nothing
    either: what was acknowledged is in the log."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if asked:
            os._exit(128 + number)
        asked.append(number)
        crew.end()

    numbers = (signal.SIGTERM, signal.SIGINT)
    former = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def say(text: str) -> None:
    """One line for people, on stderr."""
    sys.stderr.write(f"cape: {text}\n")
    sys.stderr.flush()


def raise_failure(failure: BaseException | None) -> None:
    """Raise what ended a part, as something the command line can explain."""
    if failure is None:
        return
    if isinstance(failure, Fatal):
        raise failure
    lines = "".join(traceback.format_exception(failure))
    kind = "an error that nobody caught" if isinstance(failure, CapeError) else "a defect"
    raise Fatal(f"{kind}: {failure!r}\n{lines}") from failure
