"""Scripts of cache namespaces.

All of a namespace is in one slot. Its *state* is one sorted set: member `s` is a sequence, which
every invalidation moves on; members `t:TAG`, `k:KEY` and `n` (everything) carry the sequence of
their newest invalidation; `e` is the epoch, which names this life of the namespace. A value says of
which epoch it is and as of which sequence it was computed. It is good while no invalidation of its
tags is newer, so there is no index of values to race with, to grow, or to expire. An invalidation
is forgotten when every value and every computation that it concerns has ended.
"""

from cape_stream.coordination.events import LOG_KEPT_MS, LOG_LENGTH, PUBLISH_LUA
from cape_stream.coordination.scripts import NOW, Script

FILL_MAX_MS = 600_000
"""A computation that took longer is not stored."""
WAKE_KEPT_MS = 1_000

_STATE = """\
local function members_of(own, tags)
  local members = {'n', own}
  for tag in string.gmatch(tags, '%S+') do members[#members + 1] = tag end
  return members
end
local function is_newer_than(state, as_of, members)
  local scores = redis.call('ZMSCORE', state, unpack(members))
  for i = 1, #members do
    if scores[i] and tonumber(scores[i]) > as_of then return true end
  end
  return false
end
local function wake(key)
  redis.call('DEL', key)
  redis.pcall('LPUSH', key, '1')
  redis.call('PEXPIRE', key, $wake_kept_ms)
end
"""

GET = Script(
    "read a cached value",
    NOW
    + _STATE.replace("$wake_kept_ms", "1")
    + """\
local value, state, flight, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local own, token, flight_ms = ARGV[1], ARGV[2], ARGV[3]
local meta = redis.call('ZMSCORE', state, 'e', 's')
if not meta[1] then
  meta = {whole(now_us), whole(now_us)}
  redis.call('ZADD', state, meta[1], 'e', meta[2], 's')
end
local row = redis.pcall('HMGET', value, 'e', 'a', 't', 'd', 'x')
local foreign = row.err and 1 or 0
if not row.err and row[1] == meta[1] and row[4] then
  if not is_newer_than(state, tonumber(row[2]), members_of(own, row[3])) then
    return {1, row[2], row[4], row[3], row[5], redis.call('PTTL', value)}
  end
end
if flight_ms ~= '0' then
  local holder = redis.call('GET', flight)
  if holder and holder ~= token then return {0, redis.call('PTTL', flight)} end
  redis.pcall('SET', flight, token, 'PX', flight_ms)
  redis.call('DEL', wake_key)
end
return {2, meta[2], meta[1], whole(now_us), foreign}
""",
)

PUT = Script(
    "store a cached value",
    NOW
    + _STATE
    + """\
local value, state, flight, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local own, token, as_of, epoch, started_us = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local tags, negative, payload, ttl, kept = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local function store()
  if redis.call('ZSCORE', state, 'e') ~= epoch then return 0 end
  local took_us = now_us - tonumber(started_us)
  if took_us < 0 or took_us > $fill_max_ms * 1000 then return 0 end
  if is_newer_than(state, tonumber(as_of), members_of(own, tags)) then return 0 end
  local row = {'e', epoch, 'a', as_of, 't', tags, 'd', payload, 'x', negative}
  -- The first write, so that a full server refuses it.
  local reply = redis.pcall('HSET', value, unpack(row))
  if type(reply) == 'table' and string.find(reply.err, 'WRONGTYPE') then
    redis.call('DEL', value)
    reply = redis.pcall('HSET', value, unpack(row))
  end
  if type(reply) == 'table' then return reply end
  redis.call('PEXPIRE', value, ttl)
  redis.call('PEXPIRE', state, kept * 2)
  return 1
end
local stored = store()
if redis.call('GET', flight) == token then
  redis.call('DEL', flight)
  wake(wake_key)
end
return stored
""",
    fill_max_ms=FILL_MAX_MS,
    wake_kept_ms=WAKE_KEPT_MS,
)

ABANDON = Script(
    "give up a computation",
    _STATE
    + """\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
wake(KEYS[2])
return 1
""",
    wake_kept_ms=WAKE_KEPT_MS,
)

INVALIDATE = Script(
    "invalidate cached values",
    NOW
    + PUBLISH_LUA
    + """\
local state, log, channel, request, kept = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local meta = redis.call('ZMSCORE', state, 'e', 's')
local sequence = whole(math.max((tonumber(meta[2]) or 0) + 1, now_us))
if not meta[1] then redis.call('ZADD', state, whole(now_us), 'e') end
redis.call('ZADD', state, sequence, 's')
local named = {}
for i = 4, #ARGV do
  redis.call('ZADD', state, sequence, ARGV[i])
  named[#named + 1] = ARGV[i]
end
local forgotten = redis.call(
  'ZRANGEBYSCORE', state, '-inf', whole(now_us - kept * 1000), 'LIMIT', 0, 200)
for _, member in ipairs(forgotten) do
  if member ~= 'e' and member ~= 's' then redis.call('ZREM', state, member) end
end
redis.call('PEXPIRE', state, kept * 2)
publish(log, channel, request, sequence .. ' ' .. table.concat(named, ' '))
return sequence
""",
    log_length=LOG_LENGTH,
    log_kept_ms=LOG_KEPT_MS,
)
