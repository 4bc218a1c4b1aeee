"""What can be set about an embedded log; the defaults suit one process on one disk."""

from dataclasses import dataclass

SESSION_MS_MIN = 100


@dataclass(slots=True, frozen=True, kw_only=True)
class EmbeddedSettings:
    """Settings of `EmbeddedLog`; every bound is per process.

    Raises:
        ValueError: a session is so short that its members would be put out between two polls.
    """

    sync: bool = False
    """True: every write waits for the disk (fsync), so even a crash of the machine loses nothing
    that was acknowledged. False: a killed process loses nothing, a crashed machine may lose the
    last moments."""
    session_timeout_ms: int = 10_000
    """A member that neither polls nor commits for this long gives way to others of its group."""
    consumed_retention_ms: int = 60_000
    """What every group has consumed stays at least this long. Counted while the process runs, so
    that a restart finds everything that was there when the process ended."""
    tombstone_grace_ms: int = 600_000
    """No tombstone is dropped before the process has run this long: by then every table has
    replayed what it missed."""
    tail_bytes_max: int = 64 << 20
    """Newest records kept in memory for consumers that keep up, all partitions together."""
    record_bytes_max: int = 1_000_000
    """Largest key and value together, where a topic does not set ``max.message.bytes``; the same
    as librdkafka's ``message.max.bytes``."""
    cache_bytes: int = 32 << 20
    """RocksDB's block cache, for consumers that lag and for restores."""

    def __post_init__(self) -> None:
        if self.session_timeout_ms < SESSION_MS_MIN:
            raise ValueError(
                f"session_timeout_ms must be >= {SESSION_MS_MIN}, not {self.session_timeout_ms}"
            )
