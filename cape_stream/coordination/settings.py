"""How the coordination layer reaches its server."""

from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from cape_stream.errors import Fatal

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
SCHEMES = {
    "redis": ("plain", False),
    "valkey": ("plain", False),
    "rediss": ("plain", True),
    "valkeys": ("plain", True),
    "valkey+sentinel": ("sentinel", False),
    "valkeys+sentinel": ("sentinel", True),
    "valkey+cluster": ("cluster", False),
    "valkeys+cluster": ("cluster", True),
}
"""Scheme of the URL → (how the server is found, with TLS)."""


@dataclass(frozen=True, slots=True)
class ValkeySettings:
    """Where the server is and how long it may take; see `docs/valkey.md` for the URLs."""

    url: str = field(default="valkey://127.0.0.1:6379/0", repr=False)
    """May hold a password, so it is never shown; `Place` says the rest."""
    prefix: str = "cape:1"
    """Before every key; the number is the version of the key layout."""
    call_timeout_ms: int = 500
    """The longest a reply may take, > 0; a call lasts at most twice this and twice a connect."""
    connect_timeout_ms: int = 500
    connections_max: int = 64
    """Open at once per process, > 0; further callers wait as long as for a reply."""
    ca_file: str | None = None
    """Certificates that the server's is checked against; None: those of the machine."""
    replicas_min: int = 0
    """Replicas that must have an invalidation before it counts as done, >= 0; not on a cluster.
    What fewer have within half of ``call_timeout_ms`` raises Retry."""

    def __post_init__(self) -> None:
        for name in ("call_timeout_ms", "connect_timeout_ms", "connections_max"):
            if getattr(self, name) < 1:
                raise Fatal(f"valkey.{name} must be > 0, got {getattr(self, name)}")
        if not self.prefix or set("{} \r\n") & set(self.prefix):
            raise Fatal(f"valkey.prefix must be a word without braces, got {self.prefix!r}")
        place = Place.of(self.url)
        if self.replicas_min < 0 or (self.replicas_min and place.kind == "cluster"):
            raise Fatal(
                f"valkey.replicas_min must be >= 0, and 0 on a cluster: {self.replicas_min}"
            )


@dataclass(frozen=True, slots=True)
class Place:
    """A URL, read."""

    kind: str
    """`plain`, `sentinel` or `cluster`."""
    hosts: tuple[tuple[str, int], ...]
    tls: bool
    username: str | None
    password: str | None = field(repr=False)
    service: str
    """The name the sentinels know the primary by; empty otherwise."""
    database: int

    @classmethod
    def of(cls, url: str) -> "Place":
        """Read a URL.

        Raises:
            Fatal: it cannot be understood; the reason does not repeat it, for it may hold a
                password.
        """
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise Fatal(f"valkey.url has the scheme {parts.scheme!r}; known: {', '.join(SCHEMES)}")
        kind, tls = SCHEMES[parts.scheme]
        hosts = _hosts(parts, SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT)
        path = [part for part in parts.path.split("/") if part]
        service = path.pop(0) if kind == "sentinel" and path else ""
        if kind == "sentinel" and not service:
            raise Fatal("valkey.url names sentinels but no service: valkey+sentinel://host/SERVICE")
        database = path[0] if path else "0"
        if len(path) > 1 or not database.isascii() or not database.isdigit():
            raise Fatal(f"valkey.url ends with {parts.path!r}, which is no database number")
        if kind == "cluster" and int(database):
            raise Fatal(f"valkey.url asks for database {database}, but a cluster has only 0")
        username, password = parts.username, parts.password
        return cls(
            kind=kind,
            hosts=hosts,
            tls=tls,
            username=unquote(username) if username else None,
            password=unquote(password) if password else None,
            service=service,
            database=int(database),
        )

    def __str__(self) -> str:
        """For logs and errors: everything but the credentials."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        service = f"/{self.service}" if self.service else ""
        tls = " with TLS" if self.tls else ""
        return f"Valkey at {hosts}{service}{tls}"


def _hosts(parts: SplitResult, default_port: int) -> tuple[tuple[str, int], ...]:
    found = []
    for each in parts.netloc.rpartition("@")[2].split(","):
        host, colon, port = each.rpartition(":")
        if not colon or each.endswith("]"):
            host, port = each, str(default_port)
        host = host.strip("[]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise Fatal(f"valkey.url names {each!r}, which is no HOST:PORT")
        found.append((host, int(port)))
    return tuple(found)
