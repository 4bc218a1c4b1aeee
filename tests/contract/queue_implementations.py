"""The queue servers that pass the suite, and what each of them cannot do.

Where a server deviates from AWS it is said in ``cannot``, and the suite expects exactly that.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

import pytest

from cape_stream.adapters.simulated.queue import SimulatedQueues
from cape_stream.adapters.simulated.virtual_loop import VirtualClock, run_virtual
from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.ports.queue import Queue, QueueServer


class MakesQueues(QueueServer, Protocol):
    """What every implementation has beside its port."""

    async def create(
        self,
        name: str,
        *,
        visibility_s: int = ...,
        bytes_max: int = ...,
        dead_letter_queue: str | None = ...,
        receives_max: int | None = ...,
    ) -> Queue: ...


class _Simulated:
    """Makes `SimulatedQueues.create` a coroutine, as a server's is."""

    def __init__(self) -> None:
        self._server = SimulatedQueues(VirtualClock(asyncio.get_running_loop()).now_ms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def create(self, name: str, **traits: Any) -> Queue:
        return self._server.create(name, **traits)


@dataclass(frozen=True)
class Site:
    """A server to play a scene on."""

    server: Callable[[], Any]
    """Called in the loop of a scene; a real server is shared by all tests of a session."""
    play_out: Callable[[Coroutine[Any, Any, None]], None]
    names: Any = field(default_factory=lambda: itertools.count())
    run: str = field(default_factory=lambda: uuid4().hex[:8])

    def name(self, suffix: str = "") -> str:
        """A queue name no other test has."""
        return f"t-{self.run}-{next(self.names)}{suffix}"

    def play(self, scene: Callable[[MakesQueues], Coroutine[Any, Any, None]]) -> None:
        """Run a scene in the time of the server."""

        async def whole() -> None:
            await scene(self.server())

        self.play_out(whole())


@dataclass(frozen=True)
class QueueImplementation:
    """One server."""

    name: str
    fixture: str | None
    cannot: Mapping[str, str] = field(default_factory=dict)

    def open(self, request: pytest.FixtureRequest, servers: dict[str, SqsServer]) -> Site:
        if self.fixture is None:
            return Site(_Simulated, run_virtual)
        settings: SqsSettings = request.getfixturevalue(self.fixture)
        server = servers.setdefault(self.name, SqsServer(settings))
        return Site(lambda: server, asyncio.run)


MOTO_CANNOT = {
    "delete by an old receipt is refused": "moto deletes by any receipt a message ever had",
    "extension by an old receipt is refused": "moto extends the lease of the new holder",
    "extension of what is not in flight is refused": "moto extends it",
    "redrive": "moto has no StartMessageMoveTask",
    "deduplication outlives the message": "moto forgets the id with the message",
    "limit of the queue's own counts bytes": "moto knows the limit of the service only",
    "forbidden characters are refused": "moto takes any character in a batch",
    "group of other characters is refused": "moto takes any group",
}
ELASTICMQ_CANNOT = {
    "extension of what is not in flight is refused": "ElasticMQ extends by the newest receipt",
    "second delete succeeds": "ElasticMQ says that the receipt is not valid",
    "limit of the queue's own counts bytes": "ElasticMQ keeps no MaximumMessageSize",
    "message of 1 MiB is taken": "ElasticMQ takes 256 KiB",
}
IMPLEMENTATIONS = [
    QueueImplementation("simulated", None),
    QueueImplementation("moto", "moto", MOTO_CANNOT),
    QueueImplementation("elasticmq", "elasticmq", ELASTICMQ_CANNOT),
]
QUEUES = [
    pytest.param(
        each,
        id=each.name,
        marks=[pytest.mark.elasticmq] if each.fixture == "elasticmq" else [],
    )
    for each in IMPLEMENTATIONS
]
