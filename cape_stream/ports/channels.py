"""Channels of the realtime channel: a bounded history per channel, and what arrives in it, live.

A *realm* is one app in one environment; nothing ever crosses realms. Every publish in a realm gets
a *sequence*, one order over all channels of the realm, so one number says how far a client got in
all its channels. Sequences are microseconds of the store's clock, pushed apart where two would be
equal; they never go back while the store keeps its data. The *epoch* names that data: a store that
lost it answers with another epoch, and every position of the old one counts as unknown.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Realm(NamedTuple):
    """Where channels live: nobody publishes to or hears another realm."""

    environment: str
    """`live`, a preview or a dev session; always taken from a credential."""
    app: str
    """The app; always taken from a credential."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a channel is kept; the same in every process that touches the realm."""

    messages: int = 500
    """Newest messages kept a channel, >= 1."""
    age_ms: int = 300_000
    """Age after which a message is dropped, 1,000 to 86,400,000 milliseconds."""
    catch_up_bytes: int = 4 << 20
    """A client that missed more than this many bytes is told of a gap instead."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How often one client may publish, over all processes."""

    name: str
    """Whose budget it is: the id of the grant."""
    publishes: int
    """Publishes allowed a second, >= 1."""


@dataclass(frozen=True, slots=True)
class Message:
    """One publish on its way to clients."""

    realm: Realm
    channel: str
    sequence: int
    """Its place in the realm; 0 if it is ephemeral, which has none and is never replayed."""
    previous: int
    """Sequence of the message before it in its channel; 0 if none was kept."""
    epoch: str
    body: bytes
    """What the publisher gave."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Every message of the realm up to `sequence` has been received before this."""

    realm: Realm
    epoch: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Revocation:
    """Grants that are worth nothing from now on."""

    realm: Realm
    grant_id: str
    """One grant; empty if `holder` is meant."""
    holder: str
    """All grants of a holder that were minted at or before `before_ms`."""
    before_ms: int


@dataclass(frozen=True, slots=True)
class LinkRestored:
    """The link to the store was down: whatever was published meanwhile has to be read."""


Signal = Message | Mark | Revocation | LinkRestored
"""What a feed delivers."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far somebody got in a realm."""

    epoch: str
    sequence: int


@dataclass(frozen=True, slots=True)
class GrantKey:
    """What revocations are matched with."""

    grant_id: str
    holder: str
    issued_ms: int


@dataclass(frozen=True, slots=True)
class Opening:
    """The answer to who joins or comes back: all of one moment."""

    position: Position
    """Everything up to here is in `missed` or was known before; what follows comes live."""
    missed: Sequence[Message] = ()
    """What was published since, in order over all channels."""
    gaps: Collection[str] = field(default_factory=frozenset)
    """Channels of which something is gone for good, or may be."""
    is_revoked: bool = False
    """The grant was revoked: serve nothing."""


class ChannelWriter(Protocol):
    """Publishes and revokes. Called from several threads at once; one round trip a call.

    Raises:
        Retry: (any method) the store did not answer in time; the publish may have happened.
    """

    def publish(
        self, realm: Realm, channel: str, body: bytes, *, is_ephemeral: bool = False
    ) -> int:
        """Append to the history and tell everybody who listens; the sequence, 0 if ephemeral."""
        ...

    def revoke(self, revocation: Revocation) -> None:
        """Make grants worthless everywhere, at once, for an hour: no grant lives longer."""
        ...

    def close(self) -> None:
        """Free connections."""
        ...


class ChannelFeed(Protocol):
    """What a stream server needs; one event loop.

    Raises:
        Retry: (any method but `receive`) the store did not answer in time.
    """

    async def watch(self, realm: Realm, channels: Collection[str]) -> None:
        """From now on, messages of these channels and all that concerns the realm arrive.

        Returns when that is true; watching twice is harmless.
        """
        ...

    async def unwatch(self, realm: Realm, channels: Collection[str]) -> None:
        """The opposite; nothing of the realm arrives when its last channel is gone."""
        ...

    async def open(
        self,
        realm: Realm,
        channels: Collection[str],
        since: Position | None,
        grant: GrantKey | None = None,
    ) -> Opening:
        """What happened since a position, and a position to go on from, as one atomic step.

        A gap is told unless it is certain that there is none. Without `since` nothing is missed.
        """
        ...

    async def mark(self, realm: Realm) -> None:
        """Have a `Mark` sent to every feed that watches the realm."""
        ...

    async def revoked(self, realm: Realm, grants: Sequence[GrantKey]) -> Sequence[bool]:
        """For each grant, whether it was revoked."""
        ...

    async def publish(self, realm: Realm, channel: str, body: bytes, limit: RateLimit) -> bool:
        """Publish on behalf of a client, ephemeral; False if it was over its limit."""
        ...

    async def receive(self) -> Sequence[Signal]:
        """Wait for signals; those of a realm in order. Never raises for a link that is down."""
        ...

    @property
    def is_linked(self) -> bool:
        """False while nothing can arrive."""
        ...

    async def close(self) -> None:
        """Free connections."""
        ...
