"""What the SQS fleet shares through Valkey: answers of steps, progress, and the limit of mail.

Losing the server costs waits and repeated work, never a message.
"""

import asyncio
import secrets
import time

from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.keys import encoded
from cape_stream.coordination.scripts import Script
from cape_stream.errors import Retry

PROGRESS_KEEP_MS = 15 * 86_400_000
"""A day more than SQS keeps a message."""
AWAY_PAUSE_MS = 200
"""How long a waiter leaves a server alone that does not answer."""

READ = Script(
    "read progress",
    "return (tonumber(redis.call('GET', KEYS[1])) or 0) + redis.call('SCARD', KEYS[2])",
)
ADVANCE = Script(
    "advance progress",
    """\
local value = math.max(tonumber(redis.call('GET', KEYS[1])) or 0, tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%.0f', value), 'PX', $kept_ms)
return value + redis.call('SCARD', KEYS[2])
""",
    kept_ms=PROGRESS_KEEP_MS,
)
ADD = Script(
    "count progress",
    """\
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('PEXPIRE', KEYS[2], $kept_ms)
return (tonumber(redis.call('GET', KEYS[1])) or 0) + redis.call('SCARD', KEYS[2])
""",
    kept_ms=PROGRESS_KEEP_MS,
)
FORGET = Script("forget progress", "return redis.call('DEL', KEYS[1], KEYS[2])")
PUT = Script(
    "leave an answer",
    """\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  redis.call('LPUSH', KEYS[2], '1')
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 1
""",
)
TAKE = Script("take an answer", "return redis.call('GET', KEYS[1])")


class ValkeyProgress:
    """Implements `Progress` for a whole fleet.

    Args:
        store: the server; stays open.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._layout = store.keys("progress")

    async def read(self, name: str) -> int:
        """See `Progress.read`."""
        return int(await self._store.call(READ.call(self._keys(name))))

    async def advance(self, name: str, to: int) -> int:
        """See `Progress.advance`."""
        return int(await self._store.call(ADVANCE.call(self._keys(name), to)))

    async def add(self, name: str) -> int:
        """See `Progress.add`; a call that was cut and repeated counts once."""
        token = secrets.token_hex(8)
        return int(await self._store.call(ADD.call(self._keys(name), token)))

    async def forget(self, name: str) -> None:
        """See `Progress.forget`."""
        await self._store.call(FORGET.call(self._keys(name)))

    def _keys(self, name: str) -> tuple[str, str]:
        tag = encoded(name)
        return self._layout.of(tag, "value"), self._layout.of(tag, "added")


class ValkeyResults:
    """Implements `Results` for a caller and a worker in different processes.

    Args:
        store: the server; stays open.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._layout = store.keys("result")

    async def put(self, request_id: str, answer: bytes, keep_ms: int) -> None:
        """See `Results.put`."""
        await self._store.call(PUT.call(self._keys(request_id), answer, max(1, keep_ms)))

    async def wait(self, request_id: str, timeout_ms: int) -> bytes | None:
        """See `Results.wait`; while the server is away it is asked again and again."""
        value, nudge = self._keys(request_id)
        end_s = time.monotonic() + timeout_ms / 1_000
        while True:
            left_ms = (end_s - time.monotonic()) * 1_000
            try:
                found: bytes | None = await self._store.call(TAKE.call((value,)))
                if found is not None or left_ms <= 0:
                    return found
                await self._store.wait(nudge, left_ms)
            except Retry:
                if left_ms <= 0:
                    return None
                await asyncio.sleep(min(AWAY_PAUSE_MS, left_ms) / 1_000)

    def _keys(self, request_id: str) -> tuple[str, str]:
        tag = encoded(request_id)
        return self._layout.of(tag, "answer"), self._layout.of(tag, "nudge")
