"""Hook tokens and interface sessions: short-lived, stored as digests, checked at the server.

A token is `KIND.LOCATOR.ID.SECRET`. The locator leads to one hash per execution (or per user of an
app), so a script needs one slot, and ending the execution ends all its tokens by one deletion. The
store knows the SHA-256 of the token only: who reads the server can mint nothing from it. The digest
is compared here, in constant time; the server's clock decides what has expired.

Without the server nothing can be checked: every method raises Retry, and a check fails closed.
"""

import hashlib
import hmac
import json
import re
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import Any

from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.keys import Keys
from cape_stream.coordination.scopes import (
    HOOK_LIFETIME_MAX_MS,
    SESSION_LIFETIME_MAX_MS,
    TOKENS_PER_HOLDER_MAX,
    checked_names,
)
from cape_stream.coordination.scripts import NOW, Script, Steps
from cape_stream.coordination.store import Store
from cape_stream.errors import CapeError, Fenced, Reject
from cape_stream.ports.credentials import Scope

TOKEN_LENGTH_MAX = 128

_TOKEN = re.compile(r"(hook1|session1)\.([\w-]{16})\.([\w-]{12})\.([\w-]{43})", re.ASCII)

_MINT = Script(
    "mint a token",
    NOW
    + """\
local key, id, lifetime, window, cap, most, drops, tail =
  KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6],
  ARGV[7]
if redis.call('HEXISTS', key, '!') == 1 then return -1 end
if redis.call('HEXISTS', key, id) == 0 and redis.call('HLEN', key) >= most then
  local all, oldest, oldest_ms = redis.call('HGETALL', key), nil, nil
  for i = 1, #all, 2 do
    local expires = tonumber(string.match(all[i + 1], '^%d+'))
    if expires <= now_ms then
      redis.call('HDEL', key, all[i])
    elseif not oldest_ms or expires < oldest_ms then
      oldest, oldest_ms = all[i], expires
    end
  end
  if redis.call('HLEN', key) >= most then
    if drops == '0' then return -2 end
    redis.call('HDEL', key, oldest)
  end
end
redis.call('HSET', key, id, table.concat(
  {whole(now_ms + lifetime), window, whole(now_ms + cap), tail}, '|'))
if redis.call('PTTL', key) < cap then redis.call('PEXPIRE', key, cap) end
return 1
""",
)

_READ = Script(
    "check a token",
    NOW
    + """\
local row = redis.call('HGET', KEYS[1], ARGV[1])
if not row then return false end
if tonumber(string.match(row, '^%d+')) <= now_ms then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return false
end
return {row, whole(now_ms)}
""",
)

_SLIDE = Script(
    "extend a session",
    NOW
    + """\
local row = redis.call('HGET', KEYS[1], ARGV[1])
if not row then return 0 end
local window, cap, tail = string.match(row, '^%d+|(%d+)|(%d+)|(.*)$')
if string.sub(tail, 1, #ARGV[2]) ~= ARGV[2] then return 0 end
local expires = whole(math.min(now_ms + tonumber(window), tonumber(cap)))
redis.call('HSET', KEYS[1], ARGV[1], table.concat({expires, window, cap, tail}, '|'))
return expires
""",
)

_REVOKE = Script(
    "revoke a token",
    """\
local row = redis.call('HGET', KEYS[1], ARGV[1])
if not row then return 0 end
if not string.find(row, ARGV[2], 1, true) then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
""",
)

_END = Script(
    "end all tokens of a holder",
    """\
local count = redis.call('HLEN', KEYS[1]) - redis.call('HEXISTS', KEYS[1], '!')
redis.call('DEL', KEYS[1])
if ARGV[1] ~= '0' then
  redis.call('HSET', KEYS[1], '!', '9999999999999|')
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return count
""",
)


@dataclass(frozen=True, slots=True)
class _Row:
    """What is stored for a token."""

    expires_ms: int
    window_ms: int
    cap_ms: int
    digest: str
    names: list[str]
    now_ms: int

    @classmethod
    def read(cls, reply: Any) -> "_Row | None":
        """The row in a reply; None if there is none or another program wrote it."""
        if reply is None:
            return None
        row, now_ms = reply
        try:
            expires, window, cap, digest, names = row.decode().split("|", 4)
            return cls(int(expires), int(window), int(cap), digest, json.loads(names), int(now_ms))
        except ValueError:
            return None


class _Desk:
    """What hook tokens and sessions have in common, as steps."""

    def __init__(self, keys: Keys, kind: str, lifetime_max_ms: int, *, drops_oldest: bool) -> None:
        self._keys = keys
        self._kind = kind
        self._lifetime_max_ms = lifetime_max_ms
        self._drops_oldest = drops_oldest

    def key(self, *holder: str) -> tuple[str, str]:
        """The key of a holder's tokens, and its locator."""
        digest = hashlib.sha256("\0".join((self._kind, *holder)).encode()).digest()
        locator = urlsafe_b64encode(digest[:12]).decode()
        return self._keys.of(locator, "tokens"), locator

    def mint(
        self, holder: tuple[str, ...], names: list[str], lifetime_ms: int, cap_ms: int | None
    ) -> Steps[str]:
        """A new token of a holder; with ``cap_ms`` each use prolongs it, but not beyond that."""
        longest_ms = lifetime_ms if cap_ms is None else cap_ms
        if not 0 < lifetime_ms <= longest_ms <= self._lifetime_max_ms:
            raise Reject(
                f"a {self._kind} may live 1 to {self._lifetime_max_ms} ms, not {lifetime_ms} ms"
                + ("" if cap_ms is None else f" within {cap_ms} ms")
            )
        key, locator = self.key(*holder)
        token_id = urlsafe_b64encode(secrets.token_bytes(9)).decode()
        token = f"{self._kind}1.{locator}.{token_id}.{secrets.token_urlsafe(32)}"
        reply = yield _MINT.call(
            [key],
            *(token_id, lifetime_ms, 0 if cap_ms is None else lifetime_ms, longest_ms),
            *(TOKENS_PER_HOLDER_MAX, int(self._drops_oldest)),
            f"{_digest(token)}|{json.dumps(names)}",
        )
        if reply == -1:
            raise Fenced("the execution has ended, so it gets no more tokens")
        if reply == -2:
            raise Reject(f"a holder has at most {TOKENS_PER_HOLDER_MAX} live tokens of this kind")
        return token

    def check(self, token: str) -> Steps[Scope | None]:
        """What the token allows now, or None."""
        found = _TOKEN.fullmatch(token) if len(token) <= TOKEN_LENGTH_MAX else None
        if found is None or found[1] != f"{self._kind}1":
            return None
        key, token_id = self._keys.of(found[2], "tokens"), found[3]
        row = _Row.read((yield _READ.call([key], token_id)))
        if row is None or not hmac.compare_digest(row.digest, _digest(token)):
            return None
        expires_ms = row.expires_ms
        if row.window_ms and expires_ms - row.now_ms < row.window_ms * 3 // 4:
            expires_ms = (yield from self._slide(key, token_id, row)) or expires_ms
        environment, app, execution, subject = row.names
        # A prolonged session counts from a moment later than `now_ms`.
        remaining_ms = min(expires_ms - row.now_ms, row.window_ms or row.cap_ms)
        return Scope(environment, app, execution, subject, expires_ms, remaining_ms, token_id)

    def _slide(self, key: str, token_id: str, row: _Row) -> Steps[int]:
        try:
            return int((yield _SLIDE.call([key], token_id, row.digest)))
        except CapeError:
            return 0  # it is valid all the same; the next use prolongs it

    def revoke(self, token: str) -> Steps[bool]:
        """End one token; True if it was alive."""
        found = _TOKEN.fullmatch(token) if len(token) <= TOKEN_LENGTH_MAX else None
        if found is None or found[1] != f"{self._kind}1":
            return False
        key = self._keys.of(found[2], "tokens")
        return bool((yield _REVOKE.call([key], found[3], _digest(token))))

    def end(self, holder: tuple[str, ...], barred_ms: int) -> Steps[int]:
        """End all tokens of a holder; for ``barred_ms`` it gets no new ones."""
        key, _ = self.key(*holder)
        return int((yield _END.call([key], barred_ms)))


class ValkeyHookTokens:
    """See `cape_stream.ports.credentials.HookTokens`. They do not slide."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._desk = hook_desk(store.keys("hook"))

    def mint(
        self, environment: str, app: str, execution: str, subject: str, lifetime_ms: int
    ) -> str:
        """See `HookTokens.mint`."""
        names = checked_names(environment, app, execution, subject)
        holder = (environment, app, execution)
        return self._store.run(self._desk.mint(holder, names, lifetime_ms, None))

    def check(self, token: str) -> Scope | None:
        """See `HookTokens.check`."""
        return self._store.run(self._desk.check(token))

    def revoke(self, token: str) -> bool:
        """See `HookTokens.revoke`."""
        return self._store.run(self._desk.revoke(token))

    def end_execution(self, environment: str, app: str, execution: str) -> int:
        """See `HookTokens.end_execution`."""
        checked_names(environment, app, execution, "")
        holder = (environment, app, execution)
        return self._store.run(self._desk.end(holder, HOOK_LIFETIME_MAX_MS))


class AsyncValkeyHookTokens:
    """See `cape_stream.ports.credentials.AsyncHookTokens`."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._desk = hook_desk(store.keys("hook"))

    async def check(self, token: str) -> Scope | None:
        """See `HookTokens.check`."""
        return await self._store.run(self._desk.check(token))


class InterfaceSessions:
    """Sessions of an app's users; a user has at most 256, the one that ends first gives way."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._desk = session_desk(store.keys("session"))

    def open(
        self,
        environment: str,
        app: str,
        user: str,
        lifetime_ms: int,
        *,
        sliding_cap_ms: int | None = None,
    ) -> str:
        """A new session, and its token.

        Args:
            environment: where the app runs.
            app: the app.
            user: whose session; becomes `Scope.subject`.
            lifetime_ms: how long it lives, > 0; with a cap: how long after its last use.
            sliding_cap_ms: each use prolongs it, but it ends this long after now at the latest,
                at most seven days; None: it ends after ``lifetime_ms`` whatever happens.

        Raises:
            Reject: a name or a lifetime is out of range.
            Retry: the server cannot be reached.
        """
        names = checked_names(environment, app, user, user)
        names[2] = ""
        return self._store.run(
            self._desk.mint((environment, app, user), names, lifetime_ms, sliding_cap_ms)
        )

    def check(self, token: str) -> Scope | None:
        """What the session allows now; None if it is malformed, unknown, expired or revoked."""
        return self._store.run(self._desk.check(token))

    def revoke(self, token: str) -> bool:
        """Log out: end one session at once; True if it was alive."""
        return self._store.run(self._desk.revoke(token))

    def revoke_user(self, environment: str, app: str, user: str) -> int:
        """Log out everywhere: end all sessions of a user, and tell how many there were."""
        checked_names(environment, app, user, "")
        return self._store.run(self._desk.end((environment, app, user), 0))


class AsyncInterfaceSessions:
    """The check of `InterfaceSessions`, for an event loop."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._desk = session_desk(store.keys("session"))

    async def check(self, token: str) -> Scope | None:
        """See `InterfaceSessions.check`."""
        return await self._store.run(self._desk.check(token))


def hook_desk(keys: Keys) -> _Desk:
    """The steps of hook tokens."""
    return _Desk(keys, "hook", HOOK_LIFETIME_MAX_MS, drops_oldest=False)


def session_desk(keys: Keys) -> _Desk:
    """The steps of interface sessions."""
    return _Desk(keys, "session", SESSION_LIFETIME_MAX_MS, drops_oldest=True)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
