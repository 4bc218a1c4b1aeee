"""Our side of `bench_sqs`: a worker as a process, and many drains of many workers under load.

python -m tests.bench.sqs_ours work ENDPOINT QUEUE SLEEP_MS CONCURRENCY
"""

import asyncio
import random
import signal
import sys
from dataclasses import dataclass, field

import msgspec

from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.ports.queue import Queue
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import MessageType, OwnContract
from cape_stream.queues.lane import Lane
from cape_stream.queues.ledger import DrainReport
from cape_stream.queues.processor import Processor
from cape_stream.queues.sending import send_all
from cape_stream.queues.settings import LaneSettings, ProcessorSettings
from cape_stream.runtime.steady import SteadyClock

DRAINS_AT_ONCE = 4


class Work(msgspec.Struct, frozen=True):
    """What the benchmark sends."""

    name: str
    sleep_ms: int = 0


TYPE = MessageType("bench.work", Work)


async def handle(work: Work, context: JobContext) -> None:
    """Take as long as the message says."""
    if work.sleep_ms:
        await asyncio.sleep(work.sleep_ms / 1_000)


async def work(endpoint: str, queue_name: str, concurrency: int) -> None:
    """Work a queue until SIGTERM."""
    server = SqsServer(SqsSettings(endpoint_url=endpoint))
    queue = await server.open(queue_name)
    settings = LaneSettings(
        concurrency=concurrency, prefetch=concurrency, visibility_s=600, pollers_max=4
    )
    lane = Lane(queue, OwnContract(queue_name, (TYPE,)), {TYPE.name: handle}, settings)
    processor = Processor([lane], ProcessorSettings(wait_s=1, grace_ms=10_000), SteadyClock())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, processor.stop)
    await processor.run()
    await server.close()


@dataclass(slots=True)
class Drains:
    """What many drains did."""

    drains: int = 0
    received: int = 0
    stranded: int = 0
    redelivered: int = 0
    """Messages that were run again though a run of theirs had ended well."""
    finished: set[str] = field(default_factory=set)
    reports_wrong: int = 0

    async def handle(self, work: Work, context: JobContext) -> None:
        """Note what ends."""
        if work.name in self.finished:
            self.redelivered += 1
        await asyncio.sleep(work.sleep_ms / 1_000)
        self.finished.add(work.name)

    def add(self, report: DrainReport) -> None:
        """Count one."""
        self.drains += 1
        self.received += report.received
        self.stranded += report.fates.get("stranded", 0) + report.open_count
        self.reports_wrong += not report.adds_up


async def drains(endpoint: str, queue_name: str, count: int, seed: int) -> Drains:
    """Stop workers again and again while messages keep coming."""
    chance = random.Random(seed)
    server = SqsServer(SqsSettings(endpoint_url=endpoint))
    queue = await server.open(queue_name)
    found = Drains()
    feeding = asyncio.create_task(_feed(queue, chance))

    async def one_after_the_other(number: int) -> None:
        for _ in range(number):
            lane = Lane(
                queue,
                OwnContract(queue_name, (TYPE,)),
                {TYPE.name: found.handle},
                LaneSettings(concurrency=5, prefetch=5, visibility_s=600),
            )
            processor = Processor(
                [lane], ProcessorSettings(wait_s=1, grace_ms=8_000), SteadyClock()
            )
            running = asyncio.create_task(processor.run())
            await asyncio.sleep(chance.random())
            processor.stop()
            found.add(await running)

    share = -(-count // DRAINS_AT_ONCE)
    await asyncio.gather(*(one_after_the_other(share) for _ in range(DRAINS_AT_ONCE)))
    feeding.cancel()
    await asyncio.gather(feeding, return_exceptions=True)
    # Nobody works any more, so whatever is still held is held by nobody.
    found.stranded += (await queue.depth()).in_flight
    await server.close()
    return found


async def _feed(queue: Queue, chance: random.Random) -> None:
    number = 0
    while True:
        batch = [
            TYPE.outgoing(Work(f"w{number + n}", chance.randrange(300)), message_id=str(number + n))
            for n in range(10)
        ]
        number += len(batch)
        await send_all(queue, batch)
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    _, endpoint, queue_name, _, concurrency = sys.argv[1:]
    asyncio.run(work(endpoint, queue_name, int(concurrency)))
