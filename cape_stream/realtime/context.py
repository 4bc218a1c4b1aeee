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
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from cape_stream.errors import Fenced, Reject
from cape_stream.ports.channels import ChannelWriter, Realm, Revocation
from cape_stream.ports.credentials import HookTokens, Scope
from cape_stream.realtime.framing import MESSAGE_KIND, message_body
from cape_stream.realtime.grants import PublishBounds, new_grant, sign
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.naming import check_channel, check_holder, check_kind
from cape_stream.realtime.settings import GRANT_LIFE_MS, PLATFORM_NAME, RealtimeSettings

DEFAULT_TTL = timedelta(milliseconds=GRANT_LIFE_MS)


@dataclass(frozen=True, slots=True)
class MintedGrant:
    """A grant to hand to one client."""

    token: str
    """What the client shows; whoever has it has the grant."""
    grant_id: str
    """What `RealtimeContext.revoke` takes; worth nothing to who reads it."""
    channels: tuple[str, ...]
    expires_ms: int
    """Unix milliseconds."""


def wall_clock_ms() -> int:
    """Unix milliseconds; a grant is dated by it, for another machine reads the date."""
    return time.time_ns() // 1_000_000


class RealtimeContext:
    """The realtime channel of one running execution; called from its threads or its event loop.

    Every method raises `Fenced` when the execution is over, `Reject` for an argument that can never
    be accepted, and `Retry` when the store does not answer; nothing is done then, except that a
    publish whose answer was lost may have happened.

    Args:
        hook_token: of this execution.
        tokens: checks it.
        writer: where publishes go.
        keys: sign grants.
        settings: limits.
        now_ms: the wall clock.

    Raises:
        Fenced: the token is not, or no longer, one of a running execution.
        Retry: it cannot be checked now.
    """

    def __init__(
        self,
        hook_token: str,
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
        self._scope = self._check()

    @property
    def scope(self) -> Scope:
        """Environment, app and execution, as the token says."""
        return self._scope

    def publish(
        self, channel: str, data: Any, *, kind: str = MESSAGE_KIND, ephemeral: bool = False
    ) -> int:
        """Tell everybody who may hear the channel in this environment; one round trip.

        Args:
            channel: 1 to 200 bytes of UTF-8 without control characters; taken literally.
            data: anything JSON can say, up to `payload_bytes_max` when encoded.
            kind: what sort of message it is, for the page to sort by.
            ephemeral: tell only who listens now; it is not kept and not replayed.

        Returns:
            Its sequence in the environment, for logs; 0 if ephemeral.
        """
        body = message_body(
            check_channel(channel), check_kind(kind), data, self._settings.payload_bytes_max
        )
        self._ensure_alive()
        return self._writer.publish(self._realm, channel, body, is_ephemeral=ephemeral)

    def grant(
        self,
        channels: Iterable[str],
        ttl: timedelta = DEFAULT_TTL,
        *,
        publish: PublishBounds | None = None,
        holder: str = "",
    ) -> MintedGrant:
        """Let one client hear channels of this environment; decide first whether it may.

        Args:
            channels: 1 to 32, none of them a pattern.
            ttl: 15 minutes by default; more than an hour becomes an hour.
            publish: what the client itself may send, if anything.
            holder: who it is for, such as a user's id, so that all of theirs can be revoked.
        """
        self._scope = self._check()
        minted = new_grant(
            self._realm,
            channels,
            now_ms=self._now_ms(),
            life_ms=int(ttl.total_seconds() * 1_000),
            holder=holder,
            execution=self._scope.execution,
            publish=publish,
        )
        token = sign(minted, self._keys)
        return MintedGrant(token, minted.grant_id, minted.channels, minted.expires_ms)

    def revoke(self, *, grant_id: str = "", holder: str = "") -> None:
        """Make one grant, or all grants of a holder so far, worthless; open streams end at once."""
        if bool(grant_id) == bool(holder):
            raise Reject("revoke takes a grant_id or a holder, and exactly one of them")
        self._ensure_alive()
        self._writer.revoke(
            Revocation(self._realm, check_holder(grant_id), check_holder(holder), self._now_ms())
        )

    async def publish_async(
        self, channel: str, data: Any, *, kind: str = MESSAGE_KIND, ephemeral: bool = False
    ) -> int:
        """`publish` without blocking the event loop."""
        return await asyncio.to_thread(self.publish, channel, data, kind=kind, ephemeral=ephemeral)

    async def grant_async(
        self,
        channels: Iterable[str],
        ttl: timedelta = DEFAULT_TTL,
        *,
        publish: PublishBounds | None = None,
        holder: str = "",
    ) -> MintedGrant:
        """`grant` without blocking the event loop."""
        return await asyncio.to_thread(self.grant, channels, ttl, publish=publish, holder=holder)

    async def revoke_async(self, *, grant_id: str = "", holder: str = "") -> None:
        """`revoke` without blocking the event loop."""
        await asyncio.to_thread(self.revoke, grant_id=grant_id, holder=holder)

    def close(self) -> None:
        """The execution is over: every later call raises `Fenced`, whatever the token says."""
        self._is_closed = True

    @property
    def _realm(self) -> Realm:
        return Realm(self._scope.environment, self._scope.app)

    def _ensure_alive(self) -> None:
        if self._is_closed or time.monotonic() >= self._good_until_s:
            self._scope = self._check()

    def _check(self) -> Scope:
        with self._lock:
            if self._is_closed:
                raise Fenced("the execution is over; it publishes and grants nothing more")
            asked_s = time.monotonic()
            scope = self._tokens.check(self._token)
            if scope is None or not scope.execution or _is_platform(scope):
                raise Fenced("the hook token is not one of a running execution")
            good_ms = min(self._settings.context_check_interval_ms, scope.remaining_ms)
            self._good_until_s = asked_s + good_ms / 1_000
            return scope


def _is_platform(scope: Scope) -> bool:
    """True for names that belong to the platform's own channels."""
    return PLATFORM_NAME in (scope.environment, scope.app)
