"""Apps of which something never comes back: a source's sweep, or a handler."""

import os
import threading

from cape_stream import App, Batch
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.ports.source import Changes

NEVER = threading.Event()


class HangingSource(MemoryEventSource):
    """A source whose sweep never answers."""

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """Hang."""
        print("sweep hangs", flush=True)
        NEVER.wait()
        raise AssertionError("nobody sets it")


def _filled(source: MemoryEventSource) -> MemoryEventSource:
    source.append("s", 0, b"x")
    return source


hanging_sweep = App("hanging-sweep", partitions=2)
sweeps = hanging_sweep.domain("sweeps", source=_filled(HangingSource()))
quiet = sweeps.topology("quiet")

hanging_handler = App("hanging-handler", partitions=2)
handlers = hanging_handler.domain("handlers", source=_filled(MemoryEventSource()))
stuck = handlers.topology("stuck")

bad_handler = App("bad-handler", partitions=2)
leavers = bad_handler.domain("leavers", source=_filled(MemoryEventSource()))
leaver = leavers.topology("leaver")


@quiet.handler()
def ignore(batch: Batch) -> None:
    """Nothing reaches it."""


@stuck.handler()
def hang(batch: Batch) -> None:
    """Hang."""
    print("handler hangs", flush=True)
    NEVER.wait()


@leaver.handler()
def leave(batch: Batch) -> None:
    """Succeed on the second attempt only."""
    print(f"attempt {batch.attempt} in {os.getpid()}", flush=True)
    if batch.attempt == 1:
        raise SystemExit(3)
