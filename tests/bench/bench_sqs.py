"""SQS workers: messages per second and core, ours against celery and dramatiq; and drains.

One ElasticMQ, one worker process at a time, the same number of messages for each. Two handlers: one
that does nothing, and one that waits 10 ms, at a concurrency of 50. A rate is messages divided by
the CPU seconds of the worker's processes, from when it begins until its queue is empty; the rate by
the clock is shown beside it, and shares these processors with the queue server.

Then workers of ours are stopped again and again under load: a message is stranded if it stays
hidden though nobody works any more, redelivered if it runs again after a run that ended well.

Usage: make bench-sqs [ARGS="--messages 5000 --drains 100"]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psutil

from deploy.local.elasticmq import ElasticMQ
from tests.bench.sqs_ours import TYPE, Work, drains
from tests.tidy.tree import PROJECT

PEERS = PROJECT / ".venv" / "bench" / "bin" / "python"
SYSTEMS = ("ours", "celery", "dramatiq")
CONCURRENCY = 50
STALLED_S = 120.0
LOOK_S = 0.1


@dataclass(frozen=True)
class Rate:
    """How fast one worker was."""

    per_cpu_s: float
    per_s: float


class Site:
    """A queue server and a client of the benchmark's own."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.client = boto3.client("sqs", endpoint_url=endpoint, region_name="us-east-1")

    def fill(self, system: str, queue: str, count: int, sleep_ms: int) -> None:
        """Put ``count`` messages of a system into its queue."""
        self.client.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": "600"})
        url = self._url(queue)
        if system == "ours":
            body = TYPE.outgoing(Work("w", sleep_ms)).body
        else:
            self._run(system, "enqueue", queue, sleep_ms).communicate()
            (sample,) = self.client.receive_message(QueueUrl=url)["Messages"]
            self.client.delete_message(QueueUrl=url, ReceiptHandle=sample["ReceiptHandle"])
            body = sample["Body"]
        for start in range(0, count, 10):
            entries = [
                {"Id": str(number), "MessageBody": body} for number in range(min(10, count - start))
            ]
            self.client.send_message_batch(QueueUrl=url, Entries=entries)

    def measure(self, system: str, queue: str, count: int, sleep_ms: int) -> Rate:
        """Let a worker empty its queue."""
        self.fill(system, queue, count, sleep_ms)
        process = self._run(system, "work", queue, sleep_ms)
        try:
            begin_left = self._less_than(count, queue, process, LOOK_S / 5)
            begin_s, begin_cpu_s, left = time.monotonic(), cpu_s(process.pid), begin_left
            while left:
                left = self._less_than(left, queue, process, LOOK_S)
            wall_s, used_s = time.monotonic() - begin_s, cpu_s(process.pid) - begin_cpu_s
            return Rate(begin_left / used_s, begin_left / wall_s)
        finally:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()
            process.communicate()
            self.client.delete_queue(QueueUrl=self._url(queue))

    def _less_than(
        self, before: int, queue: str, process: "subprocess.Popen[bytes]", look_s: float
    ) -> int:
        """How many messages are left, once they are fewer."""
        deadline_s = time.monotonic() + STALLED_S
        while process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(look_s)
            left = self._left(queue)
            if left < before:
                return left
        raise SystemExit(f"the worker of {queue} stands still with {before} messages left")

    def _left(self, queue: str) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self._url(queue), AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)

    def _run(
        self, system: str, action: str, queue: str, sleep_ms: int
    ) -> "subprocess.Popen[bytes]":
        last = [self.endpoint, queue, str(sleep_ms), str(CONCURRENCY)]
        if system == "ours":
            command = [sys.executable, "-m", "tests.bench.sqs_ours", action, *last]
        else:
            script = Path(__file__).with_name("sqs_peers.py")
            command = [str(PEERS), str(script), system, action, *last]
        return subprocess.Popen(command, cwd=PROJECT)

    def _url(self, queue: str) -> str:
        return f"{self.endpoint}/000000000000/{queue}"


def cpu_s(pid: int) -> float:
    """CPU seconds that a process and its children have used."""
    process = psutil.Process(pid)
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        times = each.cpu_times()
        total += times.user + times.system
    return total


def main() -> None:
    """Measure all and print the figures."""
    parser = argparse.ArgumentParser(prog="bench-sqs")
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--drains", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
    figures: dict[str, Any] = {}
    with ElasticMQ() as server:
        site = Site(server.endpoint_url)
        for system in SYSTEMS:
            for name, sleep_ms in (("", 0), ("_10ms", 10)):
                queue = f"bench-{system}{name.replace('_', '-')}"
                rate = site.measure(system, queue, options.messages, sleep_ms)
                figures[f"{system}{name}_msgs_per_s"] = round(rate.per_cpu_s)
                figures[f"{system}{name}_wall_msgs_per_s"] = round(rate.per_s)
                print(f"{system}, {sleep_ms} ms: {rate.per_cpu_s:,.0f} a CPU second,", end=" ")
                print(f"{rate.per_s:,.0f} a second by the clock", flush=True)
        site.client.create_queue(QueueName="bench-drains")
        found = asyncio.run(
            drains(server.endpoint_url, "bench-drains", options.drains, options.seed)
        )
    figures |= {
        "stranded": found.stranded,
        "redelivered": found.redelivered,
        "drains": found.drains,
        "drained_receives": found.received,
        "drain_reports_wrong": found.reports_wrong,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
