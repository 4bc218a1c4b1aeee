"""A small App for the driver's tests, and what its handlers have seen."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.sdk import App, Batch, EventResult, Topology
from cape_stream.sdk.failures import to_failure_class


@dataclass
class Shop:
    """``mail`` is ordered, ``count`` takes what ``parse`` made, ``audit`` comes after ``mail``."""

    app: App = field(default_factory=lambda: App("shop"))
    mailed: list[tuple[str, int]] = field(default_factory=list)
    counted: dict[tuple[str, int], object] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    """Sequence id → failure class with which ``mail`` fails it."""
    fails_every: int = 0
    """Every so many-th event that ``mail`` gets fails once; 0: none does."""
    taken: int = 0
    """Events that ``mail`` got."""
    mail: Topology = field(init=False)
    stats: Topology = field(init=False)
    audit: Topology = field(init=False)

    def __post_init__(self) -> None:
        orders = self.app.domain("orders", source=MemoryEventSource())
        self.mail = orders.topology("mail", ordering="ordered", quarantine_after={"invalid": 2})
        self.stats = orders.topology("stats")
        self.audit = orders.topology("audit", after=[self.mail])
        self.mail.handler(name="send")(self.send)
        parse = self.stats.handler(name="parse")(self.parse)
        self.stats.handler(name="count", inputs=parse)(self.count)
        self.audit.handler(name="record")(self.record)

    def send(self, batch: Batch) -> Iterator[EventResult]:
        for event in batch:
            self.taken += 1
            if self.fails_every and self.taken % self.fails_every == 0:
                yield event.retry()
            elif event.sequence in self.refused:
                yield event.fail(to_failure_class(self.refused[event.sequence]), "not now")
            else:
                self.mailed.append((batch.subject, event.sequence))
                yield event.done()

    def parse(self, batch: Batch) -> Iterator[EventResult]:
        for event in batch:
            yield event.done(output={"length": len(event.payload)})

    async def count(self, batch: Batch) -> None:
        for event in batch:
            self.counted[batch.subject, event.sequence] = event.input

    def record(self, batch: Batch) -> None:
        pass
