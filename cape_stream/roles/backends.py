"""Opens what the settings name: the log, the codec, the clock, the state table.

The embedded log is a folder that one process holds; Kafka is shared. Nothing else differs.
"""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from os import getpid
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.embedded import EmbeddedLog
from cape_stream.adapters.rocksdb import RocksTable, wipe_table
from cape_stream.errors import Corrupt, Fatal, Retry
from cape_stream.ports.clock import Clock
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import Log, TopicPartition
from cape_stream.roles.job_tokens import job_tokens
from cape_stream.roles.settings import BackendName, Settings
from cape_stream.runtime.steady import SteadyClock

LOG_FOLDER = "log"
STATE_FOLDER = "state"
RETRY_MS = 500
SAY_FIRST_S = 2.0
"""How long somebody who waits for the log may wonder why nothing happens."""
SAY_EVERY_MS = 10_000
"""How often somebody who waits for the log is told so."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Backend(AbstractContextManager["Backend"]):
    """What every role of a process stands on; close it last."""

    name: BackendName
    place: str
    """For messages: the folder, or the brokers' addresses."""
    log: Log
    codec: Codec
    clock: Clock
    patience_ms: int
    """How long a command that does one thing waits for the log."""
    owner_addresses: Callable[[str], dict[TopicPartition, str | None]] = lambda _: {}
    """(group) → partition → ``host:port`` of its owner's admin API, None where it has none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.log.close()


def open_backend(name: BackendName, settings: Settings, jobs_of: str | None = None) -> Backend:
    """Open the log.

    Args:
        name: which.
        settings: everything in effect.
        jobs_of: the App whose jobs may be written here; they carry tokens if keys are set.

    Raises:
        Fatal: the folder is in use or damaged, or nobody said where Kafka is.
    """
    clock = SteadyClock()
    tokens = None if jobs_of is None else job_tokens(jobs_of, settings.gateway)
    codec = AvroCodec(sign=None if tokens is None else tokens.sign)
    patience_ms = settings.process.log_patience_ms
    if name == "embedded":
        path = Path(settings.process.data_dir) / LOG_FOLDER
        log = EmbeddedLog(path, settings.embedded, now_ms=clock.now_ms)
        return Backend(name, str(path), log, codec, clock, patience_ms)
    kafka = settings.kafka
    from cape_stream.adapters.kafka import KafkaLog  # brings the Kafka client, so only on demand
    from cape_stream.adapters.kafka.group_addresses import client_id_with, owner_addresses

    address = settings.admin.advertised
    kafka = replace(kafka, client_id=client_id_with(kafka.client_id, address))
    return Backend(
        name,
        kafka.bootstrap_servers,
        KafkaLog(kafka),
        codec,
        clock,
        patience_ms,
        lambda group: owner_addresses(kafka, group),
    )


def open_table(app: str, settings: Settings) -> RocksTable:
    """Open the state table of one App; a damaged one is wiped, for the changelog has it all.

    Raises:
        Fatal: another process uses the folder, or it cannot be written.
    """
    path = Path(settings.process.data_dir) / STATE_FOLDER / app
    memory_bytes = settings.process.state_memory_bytes
    try:
        return RocksTable(path, memory_budget_bytes=memory_bytes)
    except Corrupt as error:
        logger.warning("%s; wiping it, the state comes back from the changelog", error)
        wipe_table(path)
        return RocksTable(path, memory_budget_bytes=memory_bytes)
    except Fatal as error:
        if "in use" not in error.reason:
            raise
        raise Fatal(f"{error}; every dispatcher needs a folder of its own: --data DIR") from error


def member_name(app: str, role: str) -> str:
    """A name no other process and no other start of this one has."""
    return f"{app}.{role}.{socket.gethostname()}.{getpid()}.{secrets.token_hex(4)}"


def patiently(
    call: Callable[[], T],
    place: str,
    *,
    stopping: Callable[[], bool] = lambda: False,
    patience_ms: int | None = None,
) -> T:
    """Result of ``call``, repeated while the log is away.

    Args:
        call: raises Retry while it cannot succeed.
        place: where the log is, for the line that says what is waited for.
        stopping: asked between two tries.
        patience_ms: how long to go on; None: until ``stopping``.

    Raises:
        Fatal: the patience is at its end.
        StoppedError: ``stopping`` said True.
    """
    start_ms = said_ms = time.monotonic_ns() // 1_000_000
    first = threading.Timer(SAY_FIRST_S, lambda: logger.warning("waiting for %s", place))
    first.daemon = True
    first.start()
    while True:
        try:
            return call()
        except Retry as error:
            now_ms = time.monotonic_ns() // 1_000_000
            if patience_ms is not None and now_ms - start_ms >= patience_ms:
                raise Fatal(
                    f"no answer from {place} within {patience_ms // 1_000} s: {error}; check that"
                    " it runs and that this address is reachable from here"
                ) from error
            if stopping():
                raise StoppedError from error
            if now_ms - said_ms >= SAY_EVERY_MS or said_ms == start_ms:
                said_ms = max(now_ms, start_ms + 1)
                logger.warning("waiting for %s: %s", place, error)
            time.sleep((error.after_ms or RETRY_MS) / 1_000)
        finally:
            first.cancel()  # from here on its errors tell


class StoppedError(Exception):
    """Somebody asked the process to stop while it waited for the log."""
