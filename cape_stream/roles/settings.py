"""What may be set, and everything that was set, as one frozen object.

Values come from a file, the environment and flags, each stronger than the one before it;
`settings_loading` reads them. One class a concern: the loops bring their own, this module adds what
belongs to the process. Every field says its unit and its reason where it is declared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, TypeVar

from cape_stream.adapters.embedded.settings import EmbeddedSettings
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.errors import Fatal
from cape_stream.queues.publishing import PublisherSettings
from cape_stream.queues.settings import ProcessorSettings
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.roles.admin_settings import AdminSettings
from cape_stream.roles.gateway_settings import GatewaySettings
from cape_stream.runtime.refresh_settings import RefreshSettings
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.worker_settings import WorkerSettings

BackendName = Literal["embedded", "kafka"]
LogLevel = Literal["debug", "info", "warning", "error"]
T = TypeVar("T")

STATE_MEMORY_BYTES_MIN = 8 << 20
KAFKA_SETTINGS = ("cape_stream.adapters.kafka.settings", "KafkaSettings")
"""Loaded when something of it is set: its package brings the Kafka client."""


class SettingsError(Fatal):
    """A setting is unknown or cannot have this value: correct it and start again."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ProcessSettings:
    """What belongs to a process as a whole."""

    data_dir: str = "./cape-data"
    """Folder of everything kept on this machine: the embedded log and the state tables. One
    process at a time may use it."""
    log_level: LogLevel = "warning"
    """Least important lines shown on stderr; ``info`` tells the life of every task."""
    progress_interval_ms: int = 5_000
    """How often a running process says on stderr how far it is; 0 switches that off."""
    partition_check_interval_ms: int = 30_000
    """How often a dispatcher asks whether its topics still have the partitions they had; 0
    switches that off. Growth would give a subject two owners, so it ends the process."""
    log_patience_ms: int = 15_000
    """How long a command that does one thing, such as ``cape ping``, waits for the log before it
    gives up; a role waits as long as it is let."""
    state_memory_bytes: int = 128 << 20
    """Memory of the state table, caches and write buffers together, whatever the number of
    tasks; at least 8 MiB."""

    def __post_init__(self) -> None:
        if not self.data_dir:
            raise ValueError("data_dir is empty: name a folder, such as ./cape-data")
        if self.state_memory_bytes < STATE_MEMORY_BYTES_MIN:
            raise ValueError(
                f"state_memory_bytes must be >= {STATE_MEMORY_BYTES_MIN},"
                f" not {self.state_memory_bytes}"
            )


SECTIONS: Mapping[str, type] = {
    "process": ProcessSettings,
    "embedded": EmbeddedSettings,
    "engine": EngineSettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
    "refresh": RefreshSettings,
    "admin": AdminSettings,
    "gateway": GatewaySettings,
    "processor": ProcessorSettings,
    "publisher": PublisherSettings,
    "sqs": SqsSettings,
    "realtime": RealtimeSettings,
}
"""Section of the file → the class it becomes; `kafka` comes on top, see `section_class`."""

SECTION_NAMES = (*SECTIONS, "kafka")


@dataclass(slots=True, frozen=True)
class Given:
    """One value that somebody gave."""

    value: Any = field(repr=False)
    """May be a secret, so nothing prints it by accident."""
    origin: str
    """Where it comes from, for people: ``cape.toml``, ``CAPE_ENGINE_...``, ``--set``."""


@dataclass(slots=True, frozen=True)
class Settings:
    """Everything in effect. Build it by `settings_loading.load_settings`, or from nothing."""

    given: Mapping[str, Mapping[str, Given]] = field(default_factory=dict)
    """Section → field → what was given; a field nobody gave has its default."""

    @property
    def process(self) -> ProcessSettings:
        """Of the process as a whole."""
        return self._built("process", ProcessSettings)

    @property
    def embedded(self) -> EmbeddedSettings:
        """Of the embedded log."""
        return self._built("embedded", EmbeddedSettings)

    @property
    def engine(self) -> EngineSettings:
        """Of the dispatcher's loop."""
        return self._built("engine", EngineSettings)

    @property
    def scheduler(self) -> SchedulerSettings:
        """Of the dispatcher's decisions."""
        return self._built("scheduler", SchedulerSettings)

    @property
    def refresh(self) -> RefreshSettings:
        """Of the sweep over the sources."""
        return self._built("refresh", RefreshSettings)

    @property
    def processor(self) -> ProcessorSettings:
        """Of a worker of the SQS fleet."""
        return self._built("processor", ProcessorSettings)

    @property
    def publisher(self) -> PublisherSettings:
        """Of the way of jobs from topics to SQS."""
        return self._built("publisher", PublisherSettings)

    @property
    def sqs(self) -> SqsSettings:
        """Of the connection to SQS."""
        return self._built("sqs", SqsSettings)

    @property
    def realtime(self) -> RealtimeSettings:
        """Of the realtime channel."""
        return self._built("realtime", RealtimeSettings)

    @property
    def admin(self) -> AdminSettings:
        """Of the admin API of a dispatcher."""
        return self._built("admin", AdminSettings)

    @property
    def gateway(self) -> GatewaySettings:
        """Of the status gateway."""
        return self._built("gateway", GatewaySettings)

    def worker(self, queues: tuple[str, ...]) -> WorkerSettings:
        """Of the worker; ``queues`` are the App's, all of which it serves unless told otherwise."""
        wanted: tuple[str, ...] = self._values("worker").get("queues", queues)
        unknown = [queue for queue in wanted if queue not in queues]
        if unknown:
            raise SettingsError(
                f"worker.queues names {unknown[0]!r}, which no handler of the App uses; it uses"
                f" {', '.join(queues)}"
            )
        return self._built("worker", WorkerSettings, queues=wanted)

    @property
    def kafka(self) -> Any:
        """Of the connection to Kafka.

        Raises:
            SettingsError: nobody said where Kafka is.
        """
        if not self.names_kafka:
            raise SettingsError(
                "kafka.bootstrap_servers is not set: give --kafka HOST:PORT, set"
                " CAPE_KAFKA_BOOTSTRAP_SERVERS, or write it under [kafka] in cape.toml; without a"
                " Kafka, `cape run` does everything in one process"
            )
        values = self._values("kafka")
        extra = {name: values.pop(name) for name in list(values) if is_librdkafka(name)}
        return build("kafka", section_class("kafka"), {**values, "extra": extra})

    @property
    def names_kafka(self) -> bool:
        """True if somebody said where Kafka is."""
        return "bootstrap_servers" in self.given.get("kafka", {})

    def check(self) -> None:
        """Build every section once; raises SettingsError for the first value that cannot be."""
        for name, made in SECTIONS.items():
            self._built(name, made, **({"queues": ("any",)} if name == "worker" else {}))
        if self.given.get("kafka"):
            assert self.kafka is not None, "building it is the check"

    def _values(self, section: str) -> dict[str, Any]:
        return {name: given.value for name, given in self.given.get(section, {}).items()}

    def _built(self, section: str, made: Callable[..., T], **fixed: object) -> T:
        return build(section, made, {**self._values(section), **fixed})


def section_class(section: str) -> type:
    """The class a section becomes."""
    if section != "kafka":
        return SECTIONS[section]
    module, name = KAFKA_SETTINGS
    found: type = getattr(import_module(module), name)
    return found


def build(section: str, made: Callable[..., T], values: Mapping[str, object]) -> T:
    """An object of ``made``, whose own refusals become ours."""
    try:
        return made(**values)
    except ValueError as error:
        raise SettingsError(f"[{section}]: {error}") from error


def is_librdkafka(name: str) -> bool:
    """True if a name under [kafka] is one of the client's own settings, passed through."""
    return "." in name or name == "debug"
