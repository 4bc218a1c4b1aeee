"""Scripts of locks: who holds what, under which fencing number.

A fencing number is one more than the last of its resource, and at least the server's clock in
microseconds. The floor keeps it growing after a flush, a lost counter or a failover that forgot
the newest ones, so counters need not be kept for ever and expire after a day.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cape_stream.coordination.keys import Keys
from cape_stream.coordination.scripts import NOW, Script

FENCE_KEPT_MS = 24 * 3_600_000
WAKE_KEPT_MS = 5_000
INTENT_MS = 2_000
"""How long a writer that waits keeps new readers out; it repeats it while it waits."""

_TAKE = """\
local function next_fence(key)
  local fence = whole(math.max((tonumber(redis.call('GET', key)) or 0) + 1, now_us))
  redis.call('SET', key, fence, 'PX', $fence_kept_ms)
  return fence
end
local function parted(held)
  local token, fence = string.match(held, '^([%w_-]+) (%d+)$')
  if not token then return redis.error_reply('WRONGTYPE the lock holds foreign text') end
  return {token, fence}
end
"""

ACQUIRE = Script(
    "acquire a lock",
    NOW
    + _TAKE
    + """\
local held_key, fence_key, wake_key, token, ttl = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local held = redis.call('GET', held_key)
if held then
  local holder = parted(held)
  if holder.err then return holder end
  if holder[1] ~= token then
    redis.call('DEL', wake_key)  -- whatever lies there was for who holds it now
    return {0, redis.call('PTTL', held_key)}
  end
  redis.call('PEXPIRE', held_key, ttl)
  return {1, holder[2]}
end
local fence = next_fence(fence_key)
redis.call('SET', held_key, token .. ' ' .. fence, 'PX', ttl)
return {1, fence}
""",
    fence_kept_ms=FENCE_KEPT_MS,
)

RENEW = Script(
    "renew a lock",
    """\
local held = redis.call('GET', KEYS[1])
if held ~= ARGV[1] .. ' ' .. ARGV[3] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
""",
)

RELEASE = Script(
    "release a lock",
    """\
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] .. ' ' .. ARGV[2] then
  redis.call('DEL', KEYS[1])
  redis.pcall('LPUSH', KEYS[3], '1')
  redis.call('LTRIM', KEYS[3], 0, 0)
  redis.call('PEXPIRE', KEYS[3], $wake_kept_ms)
  return 1
end
-- Free, and nobody took it since: this is the repetition of a release whose reply was lost.
if not held and redis.call('GET', KEYS[2]) == ARGV[2] then return 1 end
return 0
""",
    wake_kept_ms=WAKE_KEPT_MS,
)

ACQUIRE_SHARED = Script(
    "acquire a shared lock",
    NOW
    + """\
local held_key, readers, intent, wake, fence_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, ttl = ARGV[1], tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', readers, '-inf', now_ms)
if not redis.call('ZSCORE', readers, token) then
  if redis.call('EXISTS', held_key) == 1 then return {0, redis.call('PTTL', held_key)} end
  if redis.call('EXISTS', intent) == 1 then return {0, redis.call('PTTL', intent)} end
end
redis.call('ZADD', readers, now_ms + ttl, token)
if redis.call('PTTL', readers) < ttl then redis.call('PEXPIRE', readers, ttl) end
return {1, redis.call('GET', fence_key) or '0'}
""",
)

ACQUIRE_EXCLUSIVE = Script(
    "acquire an exclusive lock",
    NOW
    + _TAKE
    + """\
local held_key, readers, intent, wake, fence_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, ttl = ARGV[1], ARGV[2]
local held = redis.call('GET', held_key)
if held then
  local holder = parted(held)
  if holder.err then return holder end
  if holder[1] ~= token then
    redis.call('SET', intent, token, 'PX', $intent_ms)
    return {0, redis.call('PTTL', held_key)}
  end
  redis.call('PEXPIRE', held_key, ttl)
  return {1, holder[2]}
end
redis.call('ZREMRANGEBYSCORE', readers, '-inf', now_ms)
local first = redis.call('ZRANGE', readers, 0, 0, 'WITHSCORES')
if first[1] then
  redis.call('SET', intent, token, 'PX', $intent_ms)
  return {0, math.max(1, tonumber(first[2]) - now_ms)}
end
local fence = next_fence(fence_key)
redis.call('SET', held_key, token .. ' ' .. fence, 'PX', ttl)
if redis.call('GET', intent) == token then redis.call('DEL', intent) end
redis.call('DEL', wake)
return {1, fence}
""",
    fence_kept_ms=FENCE_KEPT_MS,
    intent_ms=INTENT_MS,
)

RENEW_SHARED = Script(
    "renew a shared lock",
    NOW
    + """\
local expires = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not expires or tonumber(expires) <= now_ms then return 0 end
local ttl = tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], now_ms + ttl, ARGV[1])
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
return 1
""",
)

RELEASE_SHARED = Script(
    "release a shared lock",
    """\
local removed = redis.call('ZREM', KEYS[1], ARGV[1])
if removed == 1 and redis.call('ZCARD', KEYS[1]) == 0 then
  redis.pcall('LPUSH', KEYS[2], '1')
  redis.call('LTRIM', KEYS[2], 0, 0)
  redis.call('PEXPIRE', KEYS[2], $wake_kept_ms)
end
return 1
""",
    wake_kept_ms=WAKE_KEPT_MS,
)


@dataclass(frozen=True, slots=True)
class LockKind:
    """The scripts of one kind of lock, and the keys that each takes, as parts."""

    acquire: Script
    renew: Script
    release: Script
    acquire_parts: Sequence[str]
    renew_parts: Sequence[str]
    release_parts: Sequence[str]
    wakes_all: bool = False
    """A release wakes everybody who waits, for several may enter."""

    def keys(self, keys: Keys, tag: str, parts: Sequence[str]) -> list[str]:
        """The keys of a resource."""
        start = keys.of(tag, "")
        return [start + part for part in parts]


_PAIR = ("held", "readers", "intent", "wake", "fence")
LOCK = LockKind(
    *(ACQUIRE, RENEW, RELEASE),
    *(("held", "fence", "wake"), ("held",), ("held", "fence", "wake")),
)
EXCLUSIVE = LockKind(
    *(ACQUIRE_EXCLUSIVE, RENEW, RELEASE),
    *(_PAIR, ("held",), ("held", "fence", "wake")),
    wakes_all=True,
)
SHARED = LockKind(
    *(ACQUIRE_SHARED, RENEW_SHARED, RELEASE_SHARED),
    *(_PAIR, ("readers",), ("readers", "wake")),
    wakes_all=True,
)
