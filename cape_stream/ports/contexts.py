"""What a handler may do beside answering for its events: tell browsers, and let them listen.

A context belongs to one execution of a handler. Environment and app are those of the execution's
hook token, so there is no argument for them, and once the execution is over nothing works.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from cape_stream.ports.credentials import Scope

MESSAGE_KIND = "message"
"""Kind of what an app publishes without saying otherwise."""
GRANT_LIFE = timedelta(minutes=15)
"""How long a grant lives unless its minter says otherwise; an hour is the most."""


@dataclass(frozen=True, slots=True)
class PublishBounds:
    """What a client may publish: ephemeral signals, such as cursors and typing, and no more."""

    channels: tuple[str, ...]
    """Where; each must be a channel of the grant."""
    kinds: tuple[str, ...] = ("signal",)
    """Which kinds of messages, 1 to 8; `message`, the kind of the app's own, is not among them."""
    bytes_max: int = 512
    """Of one signal as JSON, 1 to 4,096."""
    per_s: int = 10
    """Signals a second, over all connections of the grant, 1 to 60."""


@dataclass(frozen=True, slots=True)
class MintedGrant:
    """A grant to hand to one client."""

    token: str
    """What the client shows; whoever has it has the grant."""
    grant_id: str
    """What `Context.revoke` takes; worth nothing to who reads it."""
    channels: tuple[str, ...]
    expires_ms: int
    """Unix milliseconds."""


class Context(Protocol):
    """The realtime channel of one running execution; from its threads, or its event loop.

    Raises:
        Fenced: (any method) the execution is over, or its token was revoked.
        Reject: (any method) an argument can never be accepted.
        Retry: (any method) the store does not answer; nothing was done, except that a publish whose
            answer was lost may have happened.
    """

    @property
    def scope(self) -> Scope:
        """Environment, app and execution, as the token says."""
        ...

    def publish(
        self, channel: str, data: Any, *, kind: str = MESSAGE_KIND, ephemeral: bool = False
    ) -> int:
        """Tell everybody who may hear the channel in this environment; one round trip.

        Args:
            channel: 1 to 200 bytes of UTF-8 without control characters; taken literally.
            data: anything JSON can say, up to `realtime.payload_bytes_max` (128 KiB) when encoded.
            kind: what sort of message it is, for the page to sort by.
            ephemeral: tell only who listens now; it is not kept and not replayed.

        Returns:
            Its sequence in the environment, for logs; 0 if ephemeral.
        """
        ...

    def grant(
        self,
        channels: Iterable[str],
        ttl: timedelta = GRANT_LIFE,
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
        ...

    def revoke(self, *, grant_id: str = "", holder: str = "") -> None:
        """Make one grant, or all grants of a holder so far, worthless; open streams end at once."""
        ...

    async def publish_async(
        self, channel: str, data: Any, *, kind: str = MESSAGE_KIND, ephemeral: bool = False
    ) -> int:
        """`publish` without blocking the event loop."""
        ...

    async def grant_async(
        self,
        channels: Iterable[str],
        ttl: timedelta = GRANT_LIFE,
        *,
        publish: PublishBounds | None = None,
        holder: str = "",
    ) -> MintedGrant:
        """`grant` without blocking the event loop."""
        ...

    async def revoke_async(self, *, grant_id: str = "", holder: str = "") -> None:
        """`revoke` without blocking the event loop."""
        ...


ContextSource = Callable[[], Context]
"""Gives the context of the execution that runs where it is called; Fenced if none does."""
