"""Takes librdkafka's log lines and errors, says each kind once in a while, and spots one of them.

librdkafka repeats a line for every attempt at a broker that is away. Here a kind of line is printed
when it first comes, and again after `QUIET_MS` with the number of lines held back.
"""

import logging
import re
import time
from collections.abc import Callable

from cape_stream.ports.log import TopicPartition

LOGGER = logging.getLogger("cape_stream.kafka")
QUIET_MS = 30_000

OFFSET_RESET = re.compile(
    r"^(?P<topic>\S+) \[(?P<partition>\d+)\]: offset reset \(at offset (?P<at>\d+)"
)
"""librdkafka's warning that a position lay outside the log and was moved to the earliest record.

Source: `rd_kafka_offset_reset` in rdkafka_offset.c. The library has no event for it:
``auto.offset.reset=error`` has one, but leaves the partition stopped, and starting it again means
changing the assignment outside of a rebalance, which librdkafka may take for the answer to a
revocation that the application has not seen yet. A contract test guards this pattern.
"""


class ClientLog:
    """One client's log; has the one method that confluent-kafka calls on its ``logger``."""

    def __init__(
        self, client: str, on_reset: Callable[[TopicPartition, int], None] | None = None
    ) -> None:
        self._client = client
        self._on_reset = on_reset
        self._quiet_until_ms: dict[str, int] = {}
        self._held_back: dict[str, int] = {}

    def log(self, level: int, _format: str, facility: str, _name: str, text: str) -> None:
        """Take one line of librdkafka."""
        # The text begins with the thread it comes from: "[thrd:main]: ".
        message = text.partition("]: ")[2] if text.startswith("[thrd:") else text
        if self._on_reset is not None and (found := OFFSET_RESET.match(message)):
            partition = TopicPartition(found["topic"], int(found["partition"]))
            self._on_reset(partition, int(found["at"]))
            return
        self.say(level, facility, message)

    def say(self, level: int, kind: str, text: str) -> None:
        """Log ``text``, unless one of its kind was logged less than `QUIET_MS` ago."""
        now_ms = int(time.monotonic() * 1_000)
        if now_ms < self._quiet_until_ms.get(kind, 0):
            self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return
        self._quiet_until_ms[kind] = now_ms + QUIET_MS
        held_back = self._held_back.pop(kind, 0)
        more = f" ({held_back} more of this kind since the last one)" if held_back else ""
        LOGGER.log(level, "%s: %s: %s%s", self._client, kind, text, more)
