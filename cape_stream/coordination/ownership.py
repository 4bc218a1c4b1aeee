"""Ownership records: which node says that it owns which resource, and for how much longer.

A view for people, routing and placement; never the truth about a dispatcher's partitions, which
only the log's group knows. All records of a kind are in one slot: a hash of records and one sorted
set as the reverse index, changed in the same script. Taking over raises the fencing number, so a
heartbeat that comes late is refused.

Without the server nobody learns anything new: claims raise Retry, and who owns goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cape_stream.coordination.keys import Name, decoded, encoded
from cape_stream.coordination.scripts import NOW, Script
from cape_stream.coordination.store import Store
from cape_stream.errors import Reject

TTL_MIN_MS, TTL_MAX_MS = 50, 24 * 3_600_000
FORGET_MS = 3_600_000
"""Records of nodes that are gone are forgotten so long after they expired."""
BATCH_MAX = 500

_RECORD = """\
local records, index = KEYS[1], KEYS[2]
local function read(resource)
  local row = redis.call('HGET', records, resource)
  if not row then return nil end
  local node, fence, expires = string.match(row, '^(%S+) (%d+) (%d+)$')
  if not node then return nil end
  return {node, fence, tonumber(expires)}
end
local function write(resource, node, fence, expires_ms)
  redis.call('HSET', records, resource, node .. ' ' .. fence .. ' ' .. whole(expires_ms))
  redis.call('ZADD', index, 0, node .. ' ' .. resource)
end
"""

_CLAIM = Script(
    "claim a resource",
    NOW
    + _RECORD
    + """\
local resource, node, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local was = read(resource)
local last = 0
if was then
  last = tonumber(was[2])
  if was[1] == node and was[3] > now_ms then
    write(resource, node, was[2], now_ms + ttl)
    return {1, node, was[2]}
  end
  if was[3] > now_ms and ARGV[4] == '0' then return {0, was[1], was[2]} end
  redis.call('ZREM', index, was[1] .. ' ' .. resource)
end
local fence = whole(math.max(last + 1, now_us))
write(resource, node, fence, now_ms + ttl)
return {1, node, fence}
""",
)

_BEAT = Script(
    "beat for resources",
    NOW
    + _RECORD
    + """\
local node, ttl, lost = ARGV[1], tonumber(ARGV[2]), {}
for i = 3, #ARGV, 2 do
  local was = read(ARGV[i])
  if was and was[1] == node and was[2] == ARGV[i + 1] then
    write(ARGV[i], node, was[2], now_ms + ttl)
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
""",
)

_RELEASE = Script(
    "release a resource",
    NOW
    + _RECORD
    + """\
local resource, node, fence = ARGV[1], ARGV[2], ARGV[3]
local was = read(resource)
if not was or was[2] ~= fence then return 0 end
if was[1] == '%' then return 1 end  -- the repetition of a release whose reply was lost
if was[1] ~= node then return 0 end
redis.call('ZREM', index, node .. ' ' .. resource)
-- The fence is kept until the record is forgotten, for whoever comes next shall be above it. No
-- node is called by a bare per cent sign.
redis.call('HSET', records, resource, '% ' .. fence .. ' ' .. whole(now_ms))
return 1
""",
)

_OWNERS = Script(
    "read ownership",
    NOW
    + _RECORD
    + """\
local found = {}
for i = 1, #ARGV do
  local was = read(ARGV[i])
  if was and was[3] > now_ms then
    found[i] = {was[1], was[2], whole(was[3] - now_ms)}
  else
    found[i] = {}
  end
end
return found
""",
)

_OF_NODE = Script(
    "read what a node owns",
    NOW
    + _RECORD
    + """\
local prefix, found = ARGV[1] .. ' ', {}
local named = redis.call('ZRANGEBYLEX', index, '[' .. prefix, '(' .. ARGV[1] .. '!')
for _, member in ipairs(named) do
  local resource = string.sub(member, #prefix + 1)
  local was = read(resource)
  if was and was[1] == ARGV[1] and was[3] > now_ms then
    found[#found + 1] = resource
    found[#found + 1] = was[2]
  end
end
return found
""",
)

_REAP = Script(
    "forget old ownership",
    NOW
    + _RECORD
    + """\
local reply = redis.call('HSCAN', records, ARGV[1], 'COUNT', 200)
local forgotten = 0
for i = 1, #reply[2], 2 do
  local resource = reply[2][i]
  local was = read(resource)
  if not was or was[3] <= now_ms - tonumber(ARGV[2]) then
    redis.call('HDEL', records, resource)
    if was then redis.call('ZREM', index, was[1] .. ' ' .. resource) end
    forgotten = forgotten + 1
  end
end
return {reply[1], forgotten}
""",
)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a resource."""

    node: str
    fence: int
    """Grows with each take-over; whoever writes for the resource carries it."""
    remaining_ms: int
    """Until the record ends, unless its node beats; 0 where it was not asked for."""


class Ownership:
    """Records of one kind of resource. Threads share it.

    Args:
        store: the server.
        kind: of resource, such as `partitions`; its name is the slot.
        ttl_ms: how long a record lives without a heartbeat, 50 ms to 24 h.
    """

    def __init__(self, store: Store, kind: Name, ttl_ms: int = 10_000) -> None:
        if not TTL_MIN_MS <= ttl_ms <= TTL_MAX_MS:
            raise Reject(f"an ownership lasts {TTL_MIN_MS} to {TTL_MAX_MS} ms, not {ttl_ms} ms")
        tag, keys = encoded(kind, "kind"), store.keys("own")
        self._store = store
        self._ttl_ms = ttl_ms
        self._two = [keys.of(tag, "records"), keys.of(tag, "nodes")]

    def claim(self, resource: Name, node: Name, *, by_force: bool = False) -> Owner:
        """Own it if it is free, its owner's time is up, or it is ours already.

        With ``by_force`` it is taken from whoever has it: for a placement that decided so.

        Returns:
            Who owns it now: us under a new or our old fence, or the other.

        Raises:
            Reject: a name cannot be one, or the keys hold foreign data.
            Retry: the server cannot be reached.
        """
        names = (encoded(resource, "resource"), encoded(node, "node"))
        call = _CLAIM.call(self._two, *names, self._ttl_ms, int(by_force))
        _, owner, fence = self._store.call(call)
        return Owner(decoded(owner), int(fence), 0)

    def beat(self, node: Name, held: Mapping[Name, int]) -> set[Name]:
        """Say that the node lives and owns these, each under its fence.

        Returns:
            Those that it does not own any more: stop serving them.
        """
        names = {encoded(resource, "resource"): resource for resource in held}
        rows = [(part, held[resource]) for part, resource in names.items()]
        lost: set[Name] = set()
        for start in range(0, len(rows), BATCH_MAX):
            some = [word for row in rows[start : start + BATCH_MAX] for word in row]
            arguments = (encoded(node, "node"), self._ttl_ms, *some)
            reply = self._store.call(_BEAT.call(self._two, *arguments))
            lost |= {names[part.decode()] for part in reply}
        return lost

    def release(self, resource: Name, node: Name, fence: int) -> bool:
        """Own it no longer; False if it was not ours under that fence."""
        names = (encoded(resource, "resource"), encoded(node, "node"))
        return bool(self._store.call(_RELEASE.call(self._two, *names, fence)))

    def owners(self, resources: Sequence[Name]) -> list[Owner | None]:
        """Who owns each, in the same order; None where nobody does."""
        parts = [encoded(resource, "resource") for resource in resources]
        found: list[Owner | None] = []
        for start in range(0, len(parts), BATCH_MAX):
            reply = self._store.call(_OWNERS.call(self._two, *parts[start : start + BATCH_MAX]))
            found += [_owner(row) for row in reply]
        return found

    def of_node(self, node: Name) -> dict[str, int]:
        """Everything a node owns: resource → fence."""
        reply = self._store.call(_OF_NODE.call(self._two, encoded(node, "node")))
        return {
            decoded(part): int(fence) for part, fence in zip(reply[::2], reply[1::2], strict=True)
        }

    def forget(self, older_ms: int = FORGET_MS) -> int:
        """Delete records that ended so long ago; how many. Some node shall call it now and then."""
        cursor = b"0"
        count = 0
        while True:
            reply = self._store.call(_REAP.call(self._two, cursor, older_ms))
            cursor, forgotten = reply
            count += int(forgotten)
            if int(cursor) == 0:
                break
        return count


def _owner(row: Any) -> Owner | None:
    if not row:
        return None
    node, fence, remaining_ms = row
    return Owner(decoded(node), int(fence), int(remaining_ms))
