"""How operators reach a dispatcher over HTTP."""

from dataclasses import dataclass, field

LOOPBACK = ("127.0.0.1", "::1", "localhost")
TOKEN_CHARACTERS_MIN = 16


@dataclass(slots=True, frozen=True, kw_only=True)
class AdminSettings:
    """Of the admin API of a dispatcher."""

    port: int = 0
    """Port of the admin API (`cape explain` and the other operators' verbs); 0 switches it off."""
    host: str = "127.0.0.1"
    """Address it listens on. Others than this machine need `admin.token`."""
    advertised_host: str = ""
    """Name under which other machines reach it, if that is not `admin.host`; the consumer group
    tells it to whoever asks."""
    token: str = field(default="", repr=False)
    """What a caller has to show; empty asks for none."""
    timeout_ms: int = 15_000
    """How long a caller waits for a dispatcher's answer."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port must be from 0 to 65535, got {self.port}")
        if self.token and len(self.token) < TOKEN_CHARACTERS_MIN:
            raise ValueError(f"token must have {TOKEN_CHARACTERS_MIN} characters or more")
        if self.port and not self.token and self.host not in LOOPBACK:
            raise ValueError(
                f"host {self.host!r} can be reached from other machines: set a token"
                " (CAPE_ADMIN_TOKEN), or listen on 127.0.0.1"
            )

    @property
    def advertised(self) -> str:
        """``host:port`` of the API; empty if there is none."""
        if not self.port:
            return ""
        host = self.advertised_host or self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
