"""An App of two lambdas on two queues, with outputs between them that fit no record."""

import os
from collections.abc import Iterator

from cape_stream import App, Batch, EventResult
from cape_stream.adapters.sources.memory import MemoryEventSource
from tests.integration.run_app import FOLDER

SUBJECTS, EVENTS_EACH = 6, 20
OUTPUT_BYTES = 300_000
"""Three of them fit no record together, and ten are in a batch."""

app = App("staged", partitions=2)
source = MemoryEventSource()
for number in range(SUBJECTS * EVENTS_EACH):
    source.append(f"order-{number % SUBJECTS}", number // SUBJECTS, b"paid")
line = app.domain("orders", source=source).topology("line", ordering="ordered")


def output_of(subject: str, sequence: int) -> bytes:
    """Another one for every event."""
    return f"{subject} {sequence} ".encode().ljust(OUTPUT_BYTES, b"\x01")


@line.handler(max_batch=10)
def give(batch: Batch) -> Iterator[EventResult]:
    """Give a large output for every event."""
    for event in batch:
        yield event.done(output=output_of(batch.subject, event.sequence))


@line.handler(inputs=give, queue="second")
def take(batch: Batch) -> Iterator[EventResult]:
    """Note every event whose input is what was given."""
    file = os.open(FOLDER / "line.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for event in batch:
            assert event.input == output_of(batch.subject, event.sequence)
            note = f"{batch.subject} {event.sequence} {batch.attempt} {batch.job_id}\n"
            os.write(file, note.encode())
            yield event.done()
    finally:
        os.close(file)
