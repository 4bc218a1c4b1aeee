"""The context that a driven handler gets: it tells no browser anything and remembers everything."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from cape_stream.model.job import Job
from cape_stream.ports.contexts import GRANT_LIFE, MESSAGE_KIND, MintedGrant, PublishBounds
from cape_stream.ports.credentials import Scope


@dataclass(frozen=True, slots=True)
class Published:
    """One message that a handler has published through its context."""

    channel: str
    data: Any
    kind: str
    ephemeral: bool
    job_id: str
    """Of the execution that did it."""


class RecordedContext:
    """Implements `Context` for one execution.

    Args:
        app: name of the App.
        job: what is executed.
        now_ms: virtual time, Unix milliseconds.
        published: where what it publishes is put down.
        grants: where what it grants is put down.
    """

    def __init__(
        self,
        app: str,
        job: Job,
        now_ms: int,
        published: list[Published],
        grants: list[MintedGrant],
    ) -> None:
        self._job = job
        self._now_ms = now_ms
        self._published = published
        self._grants = grants
        expires_ms = now_ms + job.timeout_ms
        self._scope = Scope(
            "test", app, job.job_id, job.subject, expires_ms, job.timeout_ms, job.job_id
        )

    @property
    def scope(self) -> Scope:
        """See `Context.scope`; the environment is ``test``."""
        return self._scope

    def publish(
        self, channel: str, data: Any, *, kind: str = MESSAGE_KIND, ephemeral: bool = False
    ) -> int:
        """See `Context.publish`; put down in `CapeDriver.published`."""
        self._published.append(Published(channel, data, kind, ephemeral, self._job.job_id))
        return 0 if ephemeral else sum(not each.ephemeral for each in self._published)

    def grant(
        self,
        channels: Iterable[str],
        ttl: timedelta = GRANT_LIFE,
        *,
        publish: PublishBounds | None = None,
        holder: str = "",
    ) -> MintedGrant:
        """See `Context.grant`; put down in `CapeDriver.grants`, and worth nothing elsewhere."""
        name = f"grant-{len(self._grants) + 1}"
        life_ms = int(min(ttl, timedelta(hours=1)).total_seconds() * 1_000)
        minted = MintedGrant(f"test-{name}", name, tuple(channels), self._now_ms + life_ms)
        self._grants.append(minted)
        return minted

    def revoke(self, *, grant_id: str = "", holder: str = "") -> None:
        """See `Context.revoke`; takes the grant out of `CapeDriver.grants`."""
        self._grants[:] = [each for each in self._grants if each.grant_id != grant_id]

    async def publish_async(
        self, channel: str, data: Any, *, kind: str = MESSAGE_KIND, ephemeral: bool = False
    ) -> int:
        """See `Context.publish_async`."""
        return self.publish(channel, data, kind=kind, ephemeral=ephemeral)

    async def grant_async(
        self,
        channels: Iterable[str],
        ttl: timedelta = GRANT_LIFE,
        *,
        publish: PublishBounds | None = None,
        holder: str = "",
    ) -> MintedGrant:
        """See `Context.grant_async`."""
        return self.grant(channels, ttl, publish=publish, holder=holder)

    async def revoke_async(self, *, grant_id: str = "", holder: str = "") -> None:
        """See `Context.revoke_async`."""
        self.revoke(grant_id=grant_id, holder=holder)
