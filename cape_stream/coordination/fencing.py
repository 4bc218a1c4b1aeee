"""Guards for values that live in Valkey: a write under an old fencing number is refused."""

from cape_stream.coordination.keys import Name, encoded
from cape_stream.coordination.scripts import Script
from cape_stream.coordination.store import Store

KEPT_MS = 30 * 24 * 3_600_000

_PUT = Script(
    "write under a fence",
    """\
if tonumber(ARGV[1]) < (tonumber(redis.call('HGET', KEYS[1], 'fence')) or 0) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
""",
)
_GET = Script("read what is fenced", "return redis.call('HMGET', KEYS[1], 'fence', 'value')")


class FencedValues:
    """Small values that only the newest holder of something may write; kept for a month."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys("fenced")

    def put(self, name: Name, fence: int, value: bytes) -> bool:
        """Write it; False if somebody with a higher fence has written, so ours is refused.

        Raises:
            Reject: the name cannot be one, or the key holds foreign data.
            Retry: the server cannot be reached.
        """
        key = self._keys.of(encoded(name), "value")
        return bool(self._store.call(_PUT.call([key], fence, value, KEPT_MS)))

    def get(self, name: Name) -> tuple[int, bytes] | None:
        """(fence, value), or None."""
        fence, value = self._store.call(_GET.call([self._keys.of(encoded(name), "value")]))
        return None if fence is None or value is None else (int(fence), value)
