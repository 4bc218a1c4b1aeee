"""What a handler may do with channels: only inside its execution, only in its environment.

    context = RealtimeContext(hook_token, tokens, writer, keys, settings)
    context.publish("room:7", {"text": "hello"})
    grant = context.grant(["room:7"], holder="user-7")
    return {"grant": grant.token}                    # to the browser

There is no other way to publish or to mint, and no argument that names an environment.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from cape_stream.errors import Fenced, Reject
from cape_stream.ports.channels import ChannelWriter, Realm, Revocation
from cape_stream.ports.contexts import GRANT_LIFE, MESSAGE_KIND, MintedGrant, PublishBounds
from cape_stream.ports.credentials import HookTokens, Scope
from cape_stream.realtime.framing import message_body
from cape_stream.realtime.grants import new_grant, sign
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.naming import check_channel, check_holder, check_kind
from cape_stream.realtime.settings import PLATFORM_NAME, RealtimeSettings


def wall_clock_ms() -> int:
    """Unix milliseconds; a grant is dated by it, for another machine reads the date."""
    return time.time_ns() // 1_000_000


class RealtimeContext:
    """See `cape_stream.ports.contexts.Context`.

    Args:
        hook_token: of this execution; or what gives it when it is first needed, so that an
            execution that publishes nothing needs none.
        tokens: checks it.
        writer: where publishes go.
        keys: sign grants.
        settings: limits.
        now_ms: the wall clock.

    Raises:
        Fenced: the token, if it is given now, is not one of a running execution.
        Retry: it cannot be checked now.
    """

    def __init__(
        self,
        hook_token: str | Callable[[], str],
        tokens: HookTokens,
        writer: ChannelWriter,
        keys: GrantKeys,
        settings: RealtimeSettings,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._token = hook_token
        self._tokens = tokens
        self._writer = writer
        self._keys = keys
        self._settings = settings
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._is_closed = False
        self._good_until_s = 0.0
        self._scope: Scope | None = None
        if isinstance(hook_token, str):
            self._check()

    @property
    def scope(self) -> Scope:
        """See `Context.scope`."""
        return self._alive()

    def publish(
        self, channel: str, data: Any, *, kind: str = MESSAGE_KIND, ephemeral: bool = False
    ) -> int:
        """See `Context.publish`."""
        body = message_body(
            check_channel(channel), check_kind(kind), data, self._settings.payload_bytes_max
        )
        realm = _realm(self._alive())
        return self._writer.publish(realm, channel, body, is_ephemeral=ephemeral)

    def grant(
        self,
        channels: Iterable[str],
        ttl: timedelta = GRANT_LIFE,
        *,
        publish: PublishBounds | None = None,
        holder: str = "",
    ) -> MintedGrant:
        """See `Context.grant`."""
        scope = self._check()
        minted = new_grant(
            _realm(scope),
            channels,
            now_ms=self._now_ms(),
            life_ms=int(ttl.total_seconds() * 1_000),
            holder=holder,
            execution=scope.execution,
            publish=publish,
        )
        token = sign(minted, self._keys)
        return MintedGrant(token, minted.grant_id, minted.channels, minted.expires_ms)

    def revoke(self, *, grant_id: str = "", holder: str = "") -> None:
        """See `Context.revoke`."""
        if bool(grant_id) == bool(holder):
            raise Reject("revoke takes a grant_id or a holder, and exactly one of them")
        realm = _realm(self._alive())
        self._writer.revoke(
            Revocation(realm, check_holder(grant_id), check_holder(holder), self._now_ms())
        )

    async def publish_async(
        self, channel: str, data: Any, *, kind: str = MESSAGE_KIND, ephemeral: bool = False
    ) -> int:
        """See `Context.publish_async`."""
        return await asyncio.to_thread(self.publish, channel, data, kind=kind, ephemeral=ephemeral)

    async def grant_async(
        self,
        channels: Iterable[str],
        ttl: timedelta = GRANT_LIFE,
        *,
        publish: PublishBounds | None = None,
        holder: str = "",
    ) -> MintedGrant:
        """See `Context.grant_async`."""
        return await asyncio.to_thread(self.grant, channels, ttl, publish=publish, holder=holder)

    async def revoke_async(self, *, grant_id: str = "", holder: str = "") -> None:
        """See `Context.revoke_async`."""
        await asyncio.to_thread(self.revoke, grant_id=grant_id, holder=holder)

    def close(self) -> None:
        """The execution is over: every later call raises `Fenced`, whatever the token says."""
        self._is_closed = True

    def _alive(self) -> Scope:
        """The scope, on the word of the last check if that is fresh."""
        scope = self._scope
        if scope is None or self._is_closed or time.monotonic() >= self._good_until_s:
            return self._check()
        return scope

    def _check(self) -> Scope:
        with self._lock:
            if self._is_closed:
                raise Fenced("the execution is over; it publishes and grants nothing more")
            token = self._token if isinstance(self._token, str) else self._token()
            asked_s = time.monotonic()
            scope = self._tokens.check(token)
            if scope is None or not scope.execution or _is_platform(scope):
                raise Fenced("the hook token is not one of a running execution")
            good_ms = min(self._settings.context_check_interval_ms, scope.remaining_ms)
            self._good_until_s = asked_s + good_ms / 1_000
            self._scope = scope
            return scope


def _realm(scope: Scope) -> Realm:
    return Realm(scope.environment, scope.app)


def _is_platform(scope: Scope) -> bool:
    """True for names that belong to the platform's own channels."""
    return PLATFORM_NAME in (scope.environment, scope.app)
