"""What a person may set about the connection to Kafka, and the librdkafka settings it becomes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

GroupProtocol = Literal["auto", "consumer", "classic"]
ClientConfig: TypeAlias = dict[str, str | int | float | bool]
"""librdkafka settings by name, see its CONFIGURATION.md."""

MESSAGE_TIMEOUT_SHARE = 0.4
"""Part of the session timeout a record may wait in the client. A task sends while its proof of
ownership is younger than half the session timeout, so what it sends must be out, or given up,
within the other half; the tenth between is for timers that fire late."""


@dataclass(slots=True, frozen=True, kw_only=True)
class KafkaSettings:
    """Everything about one cluster; immutable, so it may be shared by threads and processes."""

    bootstrap_servers: str
    """``host:port`` of one broker or more, separated by commas."""
    group_protocol: GroupProtocol = "auto"
    """``consumer`` is KIP-848: incremental, assigned by the broker. ``classic`` stops the whole
    group for each change of members. ``auto`` takes the first and falls back to the second where
    the broker does not offer it."""
    session_timeout_ms: int = 6_000
    """A silent member keeps its partitions at least this long. The classic protocol asks the broker
    for exactly this; with ``consumer`` the broker's own setting rules (45 s by default), which must
    not be lower."""
    max_poll_interval_ms: int = 60_000
    """A member that does not poll for so long is taken for stuck and loses its partitions."""
    linger_ms: int = 5
    """How long a record waits for company before it is sent, 0 to 100. Measured at 1,000 jobs/s on
    a machine with slow system calls: 5 instead of 1 halves the clients' CPU, and the latency."""
    message_timeout_ms: int | None = None
    """A record not acknowledged within this is given up; None: `MESSAGE_TIMEOUT_SHARE` of the
    session timeout. Not above half the session timeout, or fencing has a hole."""
    transaction_timeout_ms: int = 10_000
    """The broker aborts a transaction left open by a dead process after this (it looks every 10 s);
    its partitions cannot be restored until then."""
    record_bytes_max: int = 1_000_000
    """Largest record or batch that is sent; the topics' ``max.message.bytes`` must not be lower."""
    queue_records_max: int = 100_000
    """Most records that wait in one producer; beyond it `Producer.send` returns False."""
    prefetch_kib_max: int = 32_768
    """Most memory for records fetched ahead of `Member.poll`, per member, in KiB."""
    fetch_bytes_max: int = 65_536
    """Most bytes one answer brings of a partition. All partitions of a member share one queue in
    the client, so a status waits behind every ping that was fetched before it: keep that short."""
    fetch_ahead_records: int = 2_000
    """Records of a partition that may wait in the client before it fetches no more of them."""
    request_timeout_ms: int = 10_000
    """Longest wait for one answer of the broker before `Retry` is raised."""
    client_id: str = "cape"
    """Names this program in the broker's logs and quotas."""
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further librdkafka settings, for TLS and SASL; wins over the above. May hold secrets, so
    nothing prints it."""

    def __post_init__(self) -> None:
        if self.session_timeout_ms < 1_000:
            raise ValueError(f"session_timeout_ms must be >= 1000, got {self.session_timeout_ms}")
        if not 1 <= self.give_up_after_ms <= self.session_timeout_ms // 2:
            raise ValueError(
                f"message_timeout_ms must be from 1 to half of session_timeout_ms "
                f"({self.session_timeout_ms // 2}), got {self.give_up_after_ms}"
            )

    @property
    def give_up_after_ms(self) -> int:
        """The message timeout in force."""
        if self.message_timeout_ms is not None:
            return self.message_timeout_ms
        return int(self.session_timeout_ms * MESSAGE_TIMEOUT_SHARE)

    def connection(self) -> ClientConfig:
        """What every client needs to reach the cluster, and to find it again soon after a gap."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": self.client_id,
            "reconnect.backoff.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 30_000,
            **self.extra,
        }

    def consumer(self) -> ClientConfig:
        """What every reading client needs."""
        return {
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "allow.auto.create.topics": False,
            # A fetch that waits at the broker also delays partitions resumed meanwhile.
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 20,
            "fetch.error.backoff.ms": 100,
            "queued.max.messages.kbytes": self.prefetch_kib_max,
            "queued.min.messages": self.fetch_ahead_records,
            "max.partition.fetch.bytes": self.fetch_bytes_max,
            **self.connection(),
        }

    def producer(self) -> ClientConfig:
        """What every writing client needs."""
        return {
            "enable.idempotence": True,
            "compression.type": "lz4",
            "message.max.bytes": self.record_bytes_max,
            "queue.buffering.max.messages": self.queue_records_max,
            **self.connection(),
        }
