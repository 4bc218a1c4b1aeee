"""Handlers for child processes, which find them by importing this module."""

import os
import time
from collections.abc import Iterator

from cape_stream.sdk import Batch, EventResult


def report_process(batch: Batch) -> Iterator[EventResult]:
    """Say where it runs, as an output for the first event and the reason for the second."""
    yield batch.events[0].done(output=os.getpid())
    yield batch.events[1].fail("permanent", f"{os.getpid()} {batch.remaining_ms > 0}")


def die_for_n1(batch: Batch) -> None:
    """Take the process down for one subject."""
    if batch.subject == "N1":
        os._exit(7)


def sleep_long(batch: Batch) -> None:
    """Outlive every grace period."""
    time.sleep(600)


def check_inputs(batch: Batch) -> None:
    """Fail unless every input is its event's payload, many times over."""
    assert [event.input for event in batch] == [event.payload * 1_000 for event in batch]


async def check_inputs_async(batch: Batch) -> None:
    """The same, on an event loop."""
    check_inputs(batch)
