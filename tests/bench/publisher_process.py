"""One publisher of `bench_publisher`: says how many partitions it owns, whenever that changes.

python -m tests.bench.publisher_process BOOTSTRAP ENDPOINT APP
"""

import asyncio
import signal
import sys
from collections.abc import Sequence

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.kafka import KafkaLog, KafkaSettings
from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.log import TopicPartition
from cape_stream.queues.publishing import Publisher, PublisherSettings

QUEUE = "slow"
POLL_MS = 200


class Telling(Publisher):
    """A publisher that says what it owns."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener.assigned`."""
        super().assigned(partitions)
        self._tell()

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """See `MemberListener.lost`."""
        super().lost(partitions)
        self._tell()

    def _tell(self) -> None:
        jobs = self.names.jobs(QUEUE)
        print(sum(each.topic == jobs for each in self._assigned), flush=True)


async def publish(bootstrap: str, endpoint: str, app: str) -> None:
    """Carry jobs until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    log = KafkaLog(KafkaSettings(bootstrap_servers=bootstrap))
    server = SqsServer(SqsSettings(endpoint_url=endpoint))
    queue = await server.open(app)
    names, settings = TopicNames(app), PublisherSettings()
    publisher = Telling(log, AvroCodec(), names, {QUEUE: queue}, None, settings)
    while not stopping.is_set():
        await publisher.step(POLL_MS)
    publisher.close()
    await server.close()
    log.close()


if __name__ == "__main__":
    asyncio.run(publish(*sys.argv[1:]))
