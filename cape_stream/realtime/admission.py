"""Who may open a stream or publish: the token and nothing else decides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from cape_stream.realtime.grants import Grant, Refusal, read
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.settings import RealtimeSettings

SUBPROTOCOL = "cape.realtime.v1"
"""What a WebSocket client asks for beside its token."""
GRANT_PROTOCOL = "cape.grant."
"""A browser can send no header with a WebSocket; the token comes as a further subprotocol."""

STATUS = {
    Refusal.MALFORMED: 401,
    Refusal.EXPIRED: 401,
    Refusal.NOT_YET: 401,
    Refusal.REVOKED: 403,
}
"""All final: the same token gets the same answer again. 401 asks for a new grant, 403 does not."""
CLOSE_CODE = {
    Refusal.MALFORMED: 4401,
    Refusal.EXPIRED: 4401,
    Refusal.NOT_YET: 4401,
    Refusal.REVOKED: 4403,
}
"""The same on a WebSocket."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client shows when it connects."""

    token: str
    cursor: str
    """Where to go on; empty to begin now."""
    origin: str
    """The page it comes from, if a browser said so."""


def asked(scope: Mapping[str, object]) -> Asked:
    """Read what a request shows; a header is stronger than the address, which may be stale.

    A browser that reconnects by itself repeats the address it was opened with, but sends the last
    id it saw as a header.
    """
    headers = _headers(scope)
    query = _query(scope)
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    token = bearer.strip() if scheme.lower() == "bearer" else ""
    protocols = scope.get("subprotocols")
    for protocol in protocols if isinstance(protocols, list) else ():
        if protocol.startswith(GRANT_PROTOCOL):
            token = token or protocol.removeprefix(GRANT_PROTOCOL)
    return Asked(
        token or query.get("grant", ""),
        headers.get("last-event-id") or query.get("last_event_id", ""),
        headers.get("origin", ""),
    )


class Doorkeeper:
    """Checks tokens and origins.

    Args:
        keys: verify tokens.
        settings: origins, and how far clocks may differ.
        now_ms: the wall clock.
    """

    def __init__(
        self, keys: GrantKeys, settings: RealtimeSettings, now_ms: Callable[[], int]
    ) -> None:
        self._keys = keys
        self._settings = settings
        self._now_ms = now_ms

    def admit(self, token: str) -> tuple[Grant, int] | Refusal:
        """The grant and the milliseconds left of it, or why not; the store tells revocations."""
        now_ms = self._now_ms()
        found = read(token, self._keys, now_ms, self._settings.clock_skew_max_ms)
        return found if isinstance(found, Refusal) else (found, found.expires_ms - now_ms)

    def knows_origin(self, origin: str) -> bool:
        """Whether pages of that origin may connect; who is no browser has none."""
        allowed = self._settings.allowed_origins
        return not origin or "*" in allowed or origin in allowed

    def cors(self, origin: str) -> list[tuple[bytes, bytes]]:
        """Headers that let such a page read the answer."""
        if not origin or not self.knows_origin(origin):
            return []
        if "*" in self._settings.allowed_origins:
            return [(b"access-control-allow-origin", b"*")]
        name = origin.encode("latin-1", "replace")
        return [(b"access-control-allow-origin", name), (b"vary", b"origin")]


def _headers(scope: Mapping[str, object]) -> dict[str, str]:
    raw = scope["headers"]
    assert isinstance(raw, list), "ASGI says so"
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


def _query(scope: Mapping[str, object]) -> dict[str, str]:
    raw = scope["query_string"]
    assert isinstance(raw, bytes), "ASGI says so"
    return dict(parse_qsl(raw.decode("latin-1"), errors="replace"))
