"""Channels of the platform itself: the console's live view, and events of dev sessions.

They live in a realm that no hook token can name, so no app publishes to or hears them. Whoever
mints a grant for them has checked an operator's session before.
"""

from collections.abc import Callable
from typing import Any

from cape_stream.ports.channels import ChannelWriter, Realm, Revocation
from cape_stream.ports.contexts import MESSAGE_KIND, MintedGrant
from cape_stream.realtime.context import wall_clock_ms
from cape_stream.realtime.framing import message_body
from cape_stream.realtime.grants import new_grant, sign
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.naming import check_channel, check_kind
from cape_stream.realtime.settings import GRANT_LIFE_MS, PLATFORM_NAME, RealtimeSettings

PLATFORM = Realm(PLATFORM_NAME, PLATFORM_NAME)
CONSOLE_CHANNEL = "console"
"""What the console's live view hears."""


def dev_session_channel(session: str) -> str:
    """The channel of one dev session."""
    return check_channel(f"dev-session/{session}")


class PlatformChannels:
    """Publishes and grants for roles of the platform.

    Args:
        writer: where publishes go.
        keys: sign grants.
        settings: limits.
        now_ms: the wall clock.
    """

    def __init__(
        self,
        writer: ChannelWriter,
        keys: GrantKeys,
        settings: RealtimeSettings,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._writer = writer
        self._keys = keys
        self._settings = settings
        self._now_ms = now_ms

    def publish(
        self, channel: str, data: Any, *, kind: str = MESSAGE_KIND, ephemeral: bool = False
    ) -> int:
        """Tell everybody who hears a channel of the platform; see `RealtimeContext.publish`."""
        body = message_body(
            check_channel(channel), check_kind(kind), data, self._settings.payload_bytes_max
        )
        return self._writer.publish(PLATFORM, channel, body, is_ephemeral=ephemeral)

    def grant(self, *channels: str, holder: str, life_ms: int = GRANT_LIFE_MS) -> MintedGrant:
        """Let an operator's page or a dev session's editor hear channels; an hour at most."""
        minted = new_grant(
            PLATFORM, channels, now_ms=self._now_ms(), life_ms=life_ms, holder=holder
        )
        token = sign(minted, self._keys)
        return MintedGrant(token, minted.grant_id, minted.channels, minted.expires_ms)

    def revoke(self, holder: str) -> None:
        """End every stream of a holder, such as an operator who signed out."""
        self._writer.revoke(Revocation(PLATFORM, "", holder, self._now_ms()))
