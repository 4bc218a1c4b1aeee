"""Scripts of warm pools.

State of a pool, all in one slot:
- list `ready`: items that wait to be handed out, the oldest first; hash `items`: item → what it is;
- sorted set `out`: lease → when it ends; hash `leases`: lease → item;
- list `doomed`: items whose lease ended without a word, for somebody to take apart;
- hash `demand`: second → claims in it, for the size; hash `counts`: what happened, for ever;
- lists `wake` (somebody waits for an item) and `want` (an item was taken: refill).
"""

from cape_stream.coordination.scripts import NOW, Script

DEMAND_KEPT_S = 600
WAKE_KEPT_MS = 5_000
KEPT_MS = 7 * 24 * 3_600_000

_STATE = """\
local ready, items, out, leases, doomed, demand, counts, wake, want =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local function count(name, by) redis.call('HINCRBY', counts, name, by) end
local function nudge(key)
  redis.pcall('LPUSH', key, '1')
  redis.call('LTRIM', key, 0, 63)
  redis.call('PEXPIRE', key, $wake_kept_ms)
end
local function reap()
  local ended = redis.call('ZRANGEBYSCORE', out, '-inf', now_ms, 'LIMIT', 0, 200)
  for _, lease in ipairs(ended) do
    local item = redis.call('HGET', leases, lease)
    redis.call('ZREM', out, lease)
    redis.call('HDEL', leases, lease)
    if item then
      redis.call('RPUSH', doomed, item)
      count('reaped', 1)
    end
  end
  return #ended
end
local function keep()
  for i = 1, 7 do redis.call('PEXPIRE', KEYS[i], $kept_ms) end
end
"""


def _script(name: str, text: str, **numbers: int) -> Script:
    both = {"wake_kept_ms": WAKE_KEPT_MS, "kept_ms": KEPT_MS} | numbers
    return Script(name, NOW + _STATE + text, **both)


ADD = _script(
    "add to a pool",
    """\
local item, what = ARGV[1], ARGV[2]
if redis.call('HEXISTS', items, item) == 1 then return 0 end
redis.call('HSET', items, item, what)
redis.call('RPUSH', ready, item)
count('added', 1)
nudge(wake)
keep()
return 1
""",
)

TAKE = _script(
    "take from a pool",
    """\
local lease, ttl, is_first = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local mine = redis.call('HGET', leases, lease)
if mine then return {mine, redis.call('HGET', items, mine)} end
reap()
if is_first == '1' then
  local second = whole(math.floor(now_ms / 1000))
  redis.call('HINCRBY', demand, second, 1)
  if redis.call('HLEN', demand) > $demand_kept_s then
    for _, each in ipairs(redis.call('HKEYS', demand)) do
      if tonumber(each) < now_ms / 1000 - $demand_kept_s then redis.call('HDEL', demand, each) end
    end
  end
  nudge(want)
end
local item = redis.call('LPOP', ready)
while item and redis.call('HEXISTS', items, item) == 0 do item = redis.call('LPOP', ready) end
if not item then
  count('misses', 1)
  redis.call('DEL', wake)  -- whatever lies there was for items that are gone
  keep()
  return false
end
redis.call('ZADD', out, now_ms + ttl, lease)
redis.call('HSET', leases, lease, item)
count('handed_out', 1)
keep()
return {item, redis.call('HGET', items, item)}
""",
    demand_kept_s=DEMAND_KEPT_S,
)

RENEW = _script(
    "renew a taken item",
    """\
local lease = ARGV[1]
local ends = redis.call('ZSCORE', out, lease)
if not ends or tonumber(ends) <= now_ms then return 0 end
redis.call('ZADD', out, now_ms + tonumber(ARGV[2]), lease)
return 1
""",
)

END = _script(
    "end a taken item",
    """\
local lease, returns = ARGV[1], ARGV[2]
local item = redis.call('HGET', leases, lease)
if not item then return 0 end
redis.call('ZREM', out, lease)
redis.call('HDEL', leases, lease)
if returns == '1' then
  redis.call('LPUSH', ready, item)
  count('returned', 1)
  nudge(wake)
else
  redis.call('HDEL', items, item)
  count('used_up', 1)
end
return 1
""",
)

REAP = _script(
    "reap a pool",
    """\
reap()
local found = redis.call('LRANGE', doomed, 0, tonumber(ARGV[1]) - 1)
local all = {}
for _, item in ipairs(found) do
  all[#all + 1] = item
  all[#all + 1] = redis.call('HGET', items, item) or ''
end
return all
""",
)

BURY = _script(
    "bury an item",
    """\
redis.call('LREM', doomed, 0, ARGV[1])
redis.call('LREM', ready, 0, ARGV[1])
return redis.call('HDEL', items, ARGV[1])
""",
)

LOOK = _script(
    "look at a pool",
    """\
reap()
return {redis.call('LLEN', ready), redis.call('ZCARD', out), redis.call('LLEN', doomed),
  redis.call('HLEN', items), redis.call('HGETALL', counts), redis.call('HGETALL', demand),
  whole(now_ms)}
""",
)

COUNT = _script(
    "count for a pool",
    """\
count(ARGV[1], 1)
keep()
return 1
""",
)
