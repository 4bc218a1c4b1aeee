"""Events between processes: pub/sub for speed, with a sequenced stream behind it for truth.

Pub/sub alone is at most once: what is published while a subscriber is away, or was cut for being
slow, is gone and nobody is told. So each event is appended to a short stream in the same script,
and carries the id of the one before it. A listener that misses a link in this chain reads the
stream; when the stream no longer holds the link, it says so, and whoever depends on it starts anew.
"""

import secrets

from cape_stream.coordination.keys import Keys, Name, encoded
from cape_stream.coordination.scripts import Script
from cape_stream.coordination.store import Store
from cape_stream.errors import Reject

LOG_LENGTH = 1_000
LOG_KEPT_MS = 3_600_000
PAYLOAD_BYTES_MAX = 64_000

PUBLISH_LUA = """\
local function publish(log, channel, request, payload)
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 16)
  for _, entry in ipairs(last) do
    if entry[2][2] == request then return entry[1] end
  end
  local before = last[1] and last[1][1] or '0-0'
  local id = redis.call('XADD', log, 'MAXLEN', $log_length, '*', 'r', request, 'p', payload)
  redis.call('PEXPIRE', log, $log_kept_ms)
  redis.call('PUBLISH', channel, id .. ' ' .. before .. ' ' .. payload)
  return id
end
"""
"""For scripts that change something and tell of it in the same step."""

_PUBLISH = Script(
    "publish an event",
    PUBLISH_LUA + "return publish(KEYS[1], ARGV[1], ARGV[2], ARGV[3])",
    log_length=LOG_LENGTH,
    log_kept_ms=LOG_KEPT_MS,
)


def log_key(keys: Keys, tag: str) -> str:
    """The stream of a topic, by its encoded name."""
    return keys.of(tag, "log")


def channel_name(keys: Keys, tag: str) -> str:
    """The pub/sub channel of a topic, by its encoded name."""
    return keys.of(tag, "news")


def request_id() -> str:
    """Names one publish, so that its repetition is not a second one."""
    return secrets.token_urlsafe(9)


class Publisher:
    """Publishes to topics; each keeps its newest 1,000 events, for an hour after the last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys("event")

    def publish(self, topic: Name, payload: bytes) -> str:
        """Tell everybody who watches ``topic``; the id of the event, growing.

        Raises:
            Reject: the payload is over 64,000 bytes, or the topic's name cannot be one.
            Retry: the server cannot be reached; the event may have been published.
        """
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise Reject(
                f"an event of {len(payload)} bytes is over {PAYLOAD_BYTES_MAX}; send a reference"
            )
        tag = encoded(topic, "name of a topic")
        channel = channel_name(self._keys, tag)
        call = _PUBLISH.call([log_key(self._keys, tag)], channel, request_id(), payload)
        return str((self._store.call(call)).decode())
