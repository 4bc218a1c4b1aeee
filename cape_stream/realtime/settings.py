"""What may be set of the realtime channel; every field says its unit and its reason."""

from dataclasses import dataclass, field
from datetime import timedelta

from cape_stream.ports.channels import Retention
from cape_stream.ports.contexts import GRANT_LIFE

PLATFORM_NAME = "cape:platform"
"""Environment and app of the platform's own channels; no execution runs in it."""
DEFAULT_URL = "valkey://127.0.0.1:6379/0"
GRANT_LIFE_MS = GRANT_LIFE // timedelta(milliseconds=1)
"""Default life of a grant."""
GRANT_LIFE_MS_MAX = 3_600_000
"""No grant lives longer, whatever its minter asks for: 1 hour."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RealtimeSettings:
    """Of whoever publishes, grants or streams. Publishers and servers need the same history_*."""

    host: str = "127.0.0.1"
    """Address the stream server listens on; put TLS in front before it is anything else."""
    port: int = 8_090
    """Its port; several processes may share it, the system spreads connections over them."""
    valkey_url: str = field(default="", repr=False)
    """Where histories are: valkey://, valkeys:// (TLS) or unix://; if empty, what CAPE_VALKEY_URL
    says, else valkey://127.0.0.1:6379/0. It may hold a password, so it is not shown."""
    keys_file: str = ""
    """File with the keys that sign grants, see `cape realtime rotate-keys`; the same on every
    machine that mints or streams. It is read again when it changes."""
    allowed_origins: tuple[str, ...] = ("*",)
    """Origins whose pages may connect. A grant is no cookie, so `*` gives nobody's rights away."""
    history_messages: int = 500
    """Newest messages kept a channel."""
    history_age_ms: int = 300_000
    """Age after which a message is dropped; a client that was away for longer is told to reload."""
    catch_up_bytes: int = 4 << 20
    """A client that missed more bytes than this is told to reload, too."""
    store_timeout_ms: int = 2_000
    """Of one call to Valkey, and the silence after which its link counts as lost."""
    payload_bytes_max: int = 131_072
    """Of one publish, encoded. Realtime says that something changed; it is no file transfer."""
    heartbeat_interval_ms: int = 15_000
    """How often a silent stream gets a sign of life and a fresh cursor."""
    send_deadline_ms: int = 10_000
    """A client that takes nothing for so long, though something waits for it, is cut off."""
    reader_bytes_max: int = 262_144
    """Bytes that wait for one client; beyond, it is cut off, and resumes from the history."""
    readers_bytes_max: int = 67_108_864
    """Bytes that wait for all clients of a process; beyond, the most behind is cut off."""
    connections_max: int = 10_000
    """Streams of one process; more are answered 503 with Retry-After."""
    stream_age_max_ms: int = 1_800_000
    """A stream is asked to reconnect after so long, less up to a tenth, so that none is pinned to
    a process or a proxy for ever."""
    retry_ms: int = 1_000
    """What clients are told to wait before they reconnect, each up to twice as long."""
    drain_ms: int = 20_000
    """On SIGTERM streams are asked to reconnect one by one over so long, not all at once."""
    clock_skew_max_ms: int = 30_000
    """A grant whose minter's clock is further ahead than this is refused."""
    ws_port: int = 8_091
    """Port of `cape ws`, the platform's own sockets, on the same host."""
    worker_token_file: str = ""
    """File with the secret that workers show to `cape ws`, at least 32 characters; without it no
    worker can offer a service there."""
    call_window: int = 32
    """Requests under way a caller; beyond, its socket is not read until one is answered."""
    calls_waiting_max: int = 1_000
    """Requests of a service that may wait for a free worker; more are told `busy`."""
    call_deadline_ms_max: int = 60_000
    """The longest time a caller may give a request."""
    call_bytes_max: int = 1_048_576
    """Of one request or answer."""
    token_check_interval_ms: int = 2_000
    """How often the hook token of an open socket is checked; a dead one ends the socket."""
    context_check_interval_ms: int = 1_000
    """How long an execution may publish on the word of its last token check; a grant always asks
    anew. 0 asks before every publish, which makes it two round trips."""

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ValueError: names the field, its value and what may stand there.
        """
        _within("history_messages", self.history_messages, 1, 100_000)
        _within("history_age_ms", self.history_age_ms, 1_000, 86_400_000)
        _within("payload_bytes_max", self.payload_bytes_max, 1, 1 << 20)
        _within("store_timeout_ms", self.store_timeout_ms, 10, 60_000)
        _within("heartbeat_interval_ms", self.heartbeat_interval_ms, 100, 120_000)
        _within("send_deadline_ms", self.send_deadline_ms, 100, 120_000)
        _within("port", self.port, 0, 65_535)
        _within("ws_port", self.ws_port, 0, 65_535)
        _within("call_window", self.call_window, 1, 1_000)
        if self.reader_bytes_max < self.payload_bytes_max + 4_096:
            raise ValueError(
                f"reader_bytes_max is {self.reader_bytes_max}, too small for one publish: it needs"
                f" payload_bytes_max + 4096 = {self.payload_bytes_max + 4_096}"
            )

    @property
    def retention(self) -> Retention:
        """How much of a channel is kept."""
        return Retention(self.history_messages, self.history_age_ms, self.catch_up_bytes)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {value}")
