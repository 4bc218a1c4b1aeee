"""What the store does in one step: the Lua scripts, and the names of keys and topics.

Every key of a realm has the same hash tag, so a script touches one slot of a cluster. Sequences are
microseconds of the server's clock below 2**53, so Lua's numbers hold them exactly.
"""

from urllib.parse import quote

from cape_stream.ports.channels import Realm

PLACE_LIFE_MS = 172_800_000
REVOCATION_LIFE_MS = 3_660_000
"""Longer than any grant lives, with a minute for clocks that differ."""

_ADVANCE = f"""
local function advance(key, candidate, step)
    local place = redis.call('HMGET', key, 'epoch', 'sequence')
    local epoch = place[1] or candidate
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local sequence = math.max(now, tonumber(place[2] or '0') + step)
    local text = string.format('%.0f', sequence)
    redis.call('HSET', key, 'epoch', epoch, 'sequence', text)
    redis.call('PEXPIRE', key, {PLACE_LIFE_MS})
    return epoch, text, sequence
end
"""

PUBLISH = (
    _ADVANCE
    + """
local body, candidate, messages, age_ms, topic = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local epoch, text, sequence = advance(KEYS[1], candidate, 1)
local previous = redis.call('GET', KEYS[3]) or '0'
redis.call('XADD', KEYS[2], 'MAXLEN', messages, text .. '-0', 'p', previous, 'b', body)
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f', sequence - age_ms * 1000))
redis.call('PEXPIRE', KEYS[2], age_ms)
redis.call('SET', KEYS[3], text, 'PX', age_ms)
redis.call('PUBLISH', topic, 'm ' .. epoch .. ' ' .. text .. ' ' .. previous .. ' ' .. body)
return text
"""
)
"""KEYS place, history, last. Append, trim, tell."""

PUBLISH_LIMITED = """
local epoch = redis.call('HGET', KEYS[1], 'epoch') or '-'
local second = redis.call('TIME')[1]
local at = redis.call('HGET', KEYS[2], 'second')
if at ~= second then
    redis.call('HSET', KEYS[2], 'second', second, 'used', 0)
    redis.call('PEXPIRE', KEYS[2], 2000)
end
if redis.call('HINCRBY', KEYS[2], 'used', 1) > tonumber(ARGV[2]) then
    return 0
end
redis.call('PUBLISH', ARGV[3], 'm ' .. epoch .. ' 0 0 ' .. ARGV[1])
return 1
"""
"""KEYS place, rate. Tell, unless the budget of this second is used up."""

TELL = """
local epoch = redis.call('HGET', KEYS[1], 'epoch') or '-'
redis.call('PUBLISH', ARGV[2], 'm ' .. epoch .. ' 0 0 ' .. ARGV[1])
return '0'
"""
"""KEYS place. Tell and keep nothing."""

OPEN = (
    _ADVANCE
    + """
local candidate, since_epoch, age_ms, bytes_max = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[5])
local issued_ms = tonumber(ARGV[6])
local epoch, text, now = advance(KEYS[1], candidate, 0)
if redis.call('EXISTS', KEYS[2]) == 1 then return {1, epoch, text, {}, {}} end
local before_ms = redis.call('GET', KEYS[3])
if before_ms and issued_ms <= tonumber(before_ms) then return {1, epoch, text, {}, {}} end
if since_epoch == '' then return {0, epoch, text, {}, {}} end
local gaps, missed, bytes = {}, {}, 0
local since = tonumber(ARGV[3])
local foreign = since_epoch ~= epoch or since > now
local age_us = (age_ms - 1000) * 1000
for index = 4, #KEYS, 2 do
    local last = tonumber(redis.call('GET', KEYS[index + 1]) or '0')
    local newer, gap = {}, foreign
    if not gap then
        newer = redis.call('XRANGE', KEYS[index], '(' .. ARGV[3] .. '-0', '+')
        if #newer > 0 then
            local first = newer[1]
            local previous = tonumber(first[2][2])
            local sequence = tonumber(string.sub(first[1], 1, -3))
            gap = previous > since or (previous == 0 and since <= sequence - age_us)
        elseif last > 0 then
            gap = last > since
        else
            gap = since <= now - age_us
        end
    end
    if gap then newer = {} end
    for _, entry in ipairs(newer) do bytes = bytes + #entry[2][4] end
    gaps[#gaps + 1] = gap and 1 or 0
    missed[#missed + 1] = newer
    if bytes > bytes_max then return {0, epoch, text, false, {}} end
end
return {0, epoch, text, gaps, missed}
"""
)
"""KEYS place, revoked grant, revoked holder, then history and last of each channel."""

MARK = (
    _ADVANCE
    + """
local epoch, text = advance(KEYS[1], ARGV[1], 0)
redis.call('PUBLISH', ARGV[2], 'k ' .. epoch .. ' ' .. text)
return text
"""
)
"""KEYS place. Tell everybody how far the realm is."""

REVOKE_GRANT = f"""
redis.call('SET', KEYS[1], '1', 'PX', {REVOCATION_LIFE_MS})
redis.call('PUBLISH', ARGV[1], 'g ' .. ARGV[2])
return 1
"""
"""KEYS revoked grant."""

REVOKE_HOLDER = f"""
local before_ms = math.max(tonumber(ARGV[2]), tonumber(redis.call('GET', KEYS[1]) or '0'))
local text = string.format('%.0f', before_ms)
redis.call('SET', KEYS[1], text, 'PX', {REVOCATION_LIFE_MS})
redis.call('PUBLISH', ARGV[1], 'h ' .. text .. ' ' .. ARGV[3])
return 1
"""
"""KEYS revoked holder. A later revocation reaches further, never less far."""


class Names:
    """Keys and topics of one realm."""

    __slots__ = ("_prefix", "control", "place")

    def __init__(self, realm: Realm) -> None:
        """Names of ``realm``; both words are percent-encoded, so no brace escapes the tag."""
        tag = f"{quote(realm.app, safe='')}/{quote(realm.environment, safe='')}"
        self._prefix = f"cape:rt:{{{tag}}}"
        self.place = f"{self._prefix}:place"
        """Epoch and newest sequence."""
        self.control = f"{self._prefix}:control"
        """Topic of marks and revocations."""

    def history(self, channel: str) -> str:
        """The stream of a channel."""
        return f"{self._prefix}:h:{channel}"

    def last(self, channel: str) -> str:
        """The newest sequence of a channel; outlives entries that were trimmed."""
        return f"{self._prefix}:l:{channel}"

    def topic(self, channel: str) -> str:
        """Where its messages are told."""
        return f"{self._prefix}:c:{channel}"

    def grant(self, grant_id: str) -> str:
        """There if the grant was revoked."""
        return f"{self._prefix}:r:{grant_id}"

    def holder(self, holder: str) -> str:
        """Until when grants of a holder were revoked."""
        return f"{self._prefix}:rh:{holder}"

    def rate(self, name: str) -> str:
        """Publishes of a client in the current second."""
        return f"{self._prefix}:n:{name}"
