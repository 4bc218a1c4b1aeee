"""Progress and results in the memory of one process."""

import asyncio
from dataclasses import dataclass, field

NAMES_MAX = 100_000
"""Names kept; the oldest are forgotten first."""


class MemoryProgress:
    """Implements `Progress`; forgotten with the process."""

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    async def read(self, name: str) -> int:
        """See `Progress.read`."""
        return self._counters.get(name, 0)

    async def advance(self, name: str, to: int) -> int:
        """See `Progress.advance`."""
        return self._store(name, max(to, self._counters.get(name, 0)))

    async def add(self, name: str) -> int:
        """See `Progress.add`."""
        return self._store(name, self._counters.get(name, 0) + 1)

    async def forget(self, name: str) -> None:
        """See `Progress.forget`."""
        self._counters.pop(name, None)

    def _store(self, name: str, value: int) -> int:
        self._counters.pop(name, None)  # so that it stands last, as the newest
        self._counters[name] = value
        while len(self._counters) > NAMES_MAX:
            del self._counters[next(iter(self._counters))]
        return value


@dataclass(slots=True)
class MemoryResults:
    """Implements `Results` for a caller and a worker in one event loop."""

    _answers: dict[str, asyncio.Future[bytes]] = field(default_factory=dict)

    async def put(self, request_id: str, answer: bytes, keep_ms: int) -> None:
        """See `Results.put`."""
        future = self._future(request_id)
        if not future.done():
            future.set_result(answer)
            loop = asyncio.get_running_loop()
            loop.call_later(keep_ms / 1_000, self._answers.pop, request_id, None)

    async def wait(self, request_id: str, timeout_ms: int) -> bytes | None:
        """See `Results.wait`."""
        try:
            return await asyncio.wait_for(
                asyncio.shield(self._future(request_id)), timeout_ms / 1_000
            )
        except TimeoutError:
            return None
        finally:
            self._answers.pop(request_id, None)

    def _future(self, request_id: str) -> asyncio.Future[bytes]:
        if request_id not in self._answers:
            self._answers[request_id] = asyncio.get_running_loop().create_future()
        return self._answers[request_id]
