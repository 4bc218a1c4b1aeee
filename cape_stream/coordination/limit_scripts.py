"""Scripts of adaptive limits: one ceiling per counterparty for a whole fleet.

State of a counterparty, all in one slot:
- hash `state`: `ceiling`; `goal`, half of the ceiling before the last run of refusals, up to which
  it comes back fast; `changed_ms` and `grown_ms`, when it last shrank and grew; `grew`, 1 if it has
  grown since it last shrank; `held_ms`, until when a Retry-After holds everybody off; `paused`, the
  reason of a pause.
- sorted set `slots`: permit → when it ends by itself, for a holder that died.
- hash `begun`: permit → when it was given out, and whether the limit was reached then.

A refusal counts only if its call began after the ceiling last shrank: the others say again what
was heard already. So a burst of refusals shrinks once. After a Retry-After it starts from 1 again:
one call probes, and with each success twice as many follow, up to the goal.
"""

from cape_stream.coordination.scripts import NOW, Script

KEPT_MS = 7 * 24 * 3_600_000
WINDOW_MS = 1_000
"""At most one shrinking, and one step back towards the goal, in so long."""
WAKE_MAX = 64
WAKE_KEPT_MS = 5_000
HOLD_MAX_MS = 3_600_000
"""A longer Retry-After is cut to an hour."""
CLOSED_RETRY_MS = 1_000

_STATE = """\
local state, slots, begun, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local function number(name, otherwise)
  return tonumber(redis.call('HGET', state, name)) or otherwise
end
local function reap()
  local dead = redis.call('ZRANGEBYSCORE', slots, '-inf', now_ms, 'LIMIT', 0, 500)
  for _, permit in ipairs(dead) do
    redis.call('ZREM', slots, permit)
    redis.call('HDEL', begun, permit)
  end
  return #dead
end
local function nudge(count)
  for _ = 1, count do redis.pcall('LPUSH', wake, '1') end
  redis.call('LTRIM', wake, 0, $wake_max - 1)
  redis.call('PEXPIRE', wake, $wake_kept_ms)
end
local function keep()
  redis.call('PEXPIRE', slots, $kept_ms)
  redis.call('PEXPIRE', begun, $kept_ms)
  if redis.call('HEXISTS', state, 'paused') == 0 then redis.call('PEXPIRE', state, $kept_ms) end
end
local function shrink(ceiling, to)
  local goal = number('goal', 1)
  if number('grew', 1) == 1 then goal = math.max(1, math.floor(ceiling / 2)) end
  redis.call('HSET', state, 'ceiling', math.max(1, math.floor(to)), 'goal', goal, 'grew', 0,
    'changed_ms', whole(now_ms), 'grown_ms', whole(now_ms))
end
"""

ACQUIRE = Script(
    "acquire a permit",
    NOW
    + _STATE
    + """\
local permit, lease_ms, start, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if redis.call('ZSCORE', slots, permit) then return {1, 0, 0} end
local paused = redis.call('HGET', state, 'paused')
if paused then return {0, $closed_retry_ms, 0} end
local reaped = reap()
local held_ms = number('held_ms', 0) - now_ms
if held_ms > 0 then return {0, held_ms, reaped} end
local ceiling = math.min(number('ceiling', start), tonumber(most))
local open = redis.call('ZCARD', slots)
local limit = math.floor(ceiling)
if open >= limit then
  redis.call('DEL', wake)  -- whatever lies there was for slots that are taken again
  local first = redis.call('ZRANGE', slots, 0, 0, 'WITHSCORES')
  return {0, math.max(1, tonumber(first[2]) - now_ms), reaped}
end
local reached = open + 1 >= limit and 1 or 0
redis.call('ZADD', slots, now_ms + lease_ms, permit)
redis.call('HSET', begun, permit, whole(now_ms) .. ' ' .. reached)
if redis.call('HEXISTS', state, 'ceiling') == 0 then redis.call('HSET', state, 'ceiling', start) end
keep()
return {1, limit, reaped}
""",
    wake_max=WAKE_MAX,
    wake_kept_ms=WAKE_KEPT_MS,
    kept_ms=KEPT_MS,
    closed_retry_ms=CLOSED_RETRY_MS,
)

RELEASE = Script(
    "release a permit",
    NOW
    + _STATE
    + """\
local permit, outcome, retry_ms, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local start = tonumber(ARGV[5])
local since = redis.call('HGET', begun, permit)
if redis.call('ZREM', slots, permit) == 0 or not since then return 0 end
redis.call('HDEL', begun, permit)
local began_ms, reached = string.match(since, '^(%d+) (%d)$')
local ceiling = math.min(number('ceiling', start), most)
local changed_ms, grown_ms = number('changed_ms', 0), number('grown_ms', 0)
if outcome == 'refused' then
  local is_news = tonumber(began_ms) >= changed_ms
  if is_news and retry_ms > 0 then
    shrink(ceiling, 1)
  elseif is_news and now_ms - changed_ms >= $window_ms then
    shrink(ceiling, ceiling / 2)
  end
  if retry_ms > 0 then
    local until_ms = math.max(number('held_ms', 0), now_ms + math.min(retry_ms, $hold_max_ms))
    redis.call('HSET', state, 'held_ms', whole(until_ms))
  end
elseif outcome == 'success' and tonumber(began_ms) >= changed_ms then
  local goal, grown = number('goal', 0), ceiling
  if ceiling < goal and reached == '1' then
    grown = math.min(goal, ceiling + 1)
  elseif ceiling < goal and now_ms - grown_ms >= $window_ms then
    grown = math.min(goal, ceiling * 2)
  elseif ceiling >= goal and reached == '1' then
    grown = math.min(most, ceiling + 1 / math.max(1, ceiling))
  end
  if grown > ceiling then
    redis.call('HSET', state, 'ceiling', string.format('%.6f', grown), 'grew', 1,
      'grown_ms', whole(now_ms))
  end
end
nudge(2)  -- one for this slot, one for a ceiling that may have grown
keep()
return 1
""",
    wake_max=WAKE_MAX,
    wake_kept_ms=WAKE_KEPT_MS,
    kept_ms=KEPT_MS,
    window_ms=WINDOW_MS,
    hold_max_ms=HOLD_MAX_MS,
)

SHRINK = Script(
    "shrink a limit",
    NOW
    + _STATE
    + """\
if now_ms - number('changed_ms', 0) < $window_ms then return 0 end
local ceiling = math.min(number('ceiling', tonumber(ARGV[1])), tonumber(ARGV[2]))
shrink(ceiling, ceiling / 2)
keep()
return 1
""",
    wake_max=WAKE_MAX,
    wake_kept_ms=WAKE_KEPT_MS,
    kept_ms=KEPT_MS,
    window_ms=WINDOW_MS,
)

PAUSE = Script(
    "pause or resume a limit",
    """\
if ARGV[1] == '' then return redis.call('HDEL', KEYS[1], 'paused') end
redis.call('HSET', KEYS[1], 'paused', ARGV[1])
redis.call('PERSIST', KEYS[1])
return 1
""",
)

LOOK = Script(
    "look at a limit",
    NOW
    + """\
local found = redis.call('HMGET', KEYS[1], 'ceiling', 'goal', 'held_ms', 'paused')
found[5] = redis.call('ZCOUNT', KEYS[2], '(' .. now_ms, '+inf')
found[6] = whole(now_ms)
return found
""",
)
