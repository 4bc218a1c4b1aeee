"""How workers and sources without Kafka reach the status gateway."""

from dataclasses import dataclass, field

from cape_stream.roles.admin_settings import LOOPBACK

TOKEN_CHARACTERS_MIN = 16


@dataclass(slots=True, frozen=True, kw_only=True)
class GatewaySettings:
    """Of the status gateway, and of the tokens that jobs carry for it."""

    host: str = "127.0.0.1"
    """Address it listens on, without TLS: for other machines, put a proxy in front."""
    port: int = 8092
    """Port it listens on; 0 takes a free one."""
    keys_file: str = ""
    """Keys that sign job tokens, one a line, the first signs and all verify (`cape gateway
    rotate-keys`). Dispatchers and gateways need the same; without it jobs carry no token."""
    ping_token: str = field(default="", repr=False)
    """What a source has to show to ping; empty asks for none, which this machine alone may use."""
    body_bytes_max: int = 4 << 20
    """Largest body of a request."""
    batch_max: int = 1_000
    """Most items of one request."""
    body_timeout_ms: int = 10_000
    """How long a caller may take to send its body."""
    log_timeout_ms: int = 10_000
    """How long the log may take to acknowledge before the caller is told to try again."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port must be from 0 to 65535, got {self.port}")
        if self.ping_token and len(self.ping_token) < TOKEN_CHARACTERS_MIN:
            raise ValueError(f"ping_token must have {TOKEN_CHARACTERS_MIN} characters or more")
        if not self.ping_token and self.host not in LOOPBACK:
            raise ValueError(
                f"host {self.host!r} can be reached from other machines: set a ping_token"
                " (CAPE_GATEWAY_PING_TOKEN), or listen on 127.0.0.1"
            )
        for name in ("body_bytes_max", "batch_max", "body_timeout_ms", "log_timeout_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
