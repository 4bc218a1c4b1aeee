"""The publisher: jobs a second from Kafka to SQS, by partitions with a publisher each.

One broker and one ElasticMQ on this machine. SQS is far away and a local server is not, so a proxy
makes each call take as long as one to AWS; a publisher has 80 jobs under way, so one partition is
bound by that time, and more partitions carry more until the processors are full. The time is from
before the jobs go into Kafka until all are in the queue; all publishers are members by then.

Usage: make bench-publisher [ARGS="--jobs 4000 --partitions 1,2,4 --latency-ms 30"]
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import boto3

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.kafka import KafkaLog, KafkaSettings
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.log import TopicSpec
from deploy.local.broker import LocalBroker
from deploy.local.elasticmq import ElasticMQ
from tests.bench.bench_sqs import cpu_s
from tests.bench.figures import yardstick_us
from tests.bench.publisher_process import QUEUE
from tests.fault_proxy import FaultProxy
from tests.tidy.tree import PROJECT

PAYLOAD_BYTES = 200
JOIN_S = 60.0
STALLED_S = 60.0
LOOK_S = 0.02


@dataclass(frozen=True)
class Rate:
    """How fast some publishers were together."""

    per_s: float
    cpu_us: float
    """Of all publishers, a job."""


class Member:
    """A publisher's process, and how many partitions it owns."""

    def __init__(self, bootstrap: str, endpoint: str, app: str) -> None:
        command = [sys.executable, "-m", "tests.bench.publisher_process"]
        command += [bootstrap, endpoint, app]
        self.process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        self.owns = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            self.owns = int(line)


class Site:
    """A broker and a queue server, as a run of some publishers sees them."""

    def __init__(self, bootstrap: str, near: str, far: str, partitions: int) -> None:
        """Make the topics and the queue.

        Args:
            bootstrap: of the broker.
            near: the queue server as we reach it.
            far: the queue server as the publishers reach it.
            partitions: of the topic, with a publisher each.
        """
        self.partitions = partitions
        self._bootstrap, self._far = bootstrap, far
        self._app = f"bench-{partitions}"
        self._names = TopicNames(self._app)
        self._client = boto3.client("sqs", endpoint_url=near, region_name="us-east-1")
        self._url = self._client.create_queue(QueueName=self._app)["QueueUrl"]
        self._log = KafkaLog(KafkaSettings(bootstrap_servers=bootstrap))
        topics = [*self._names.job_topics([QUEUE]), self._names.dead_letters]
        self._log.create_topics(
            [TopicSpec(name=name, partitions=partitions, config={}) for name in topics]
        )

    def measure(self, jobs: int) -> Rate:
        """Let the publishers carry ``jobs`` jobs."""
        members = [Member(self._bootstrap, self._far, self._app) for _ in range(self.partitions)]
        try:
            self._wait_for(members)
            began_s = time.monotonic()
            before_s = sum(cpu_s(each.process.pid) for each in members)
            self._fill(jobs)
            self._wait_for_jobs(jobs)
            took_s = time.monotonic() - began_s
            used_s = sum(cpu_s(each.process.pid) for each in members) - before_s
        finally:
            for each in members:
                each.process.terminate()
            for each in members:
                each.process.wait(30)
            self._client.close()
            self._log.close()
        return Rate(jobs / took_s, used_s / jobs * 1e6)

    def _wait_for(self, members: list[Member]) -> None:
        """Wait until each of them owns a partition of the topic."""
        deadline_s = time.monotonic() + JOIN_S
        while [each.owns for each in members] != [1] * len(members):
            time.sleep(LOOK_S)
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{self.partitions} publishers have not found together")

    def _fill(self, jobs: int) -> None:
        producer = self._log.producer()
        codec = AvroCodec()
        for number in range(jobs):
            subject = f"order-{number}"
            job = Job(
                job_id=f"0-1-{number}",
                domain="orders",
                partition=number % self.partitions,
                subject=subject,
                topology="ledger",
                lambda_id="keep",
                queue=QUEUE,
                epoch=1,
                attempt=1,
                issued_ms=1,
                timeout_ms=30_000,
                events=[Event(1, b"x" * PAYLOAD_BYTES)],
            )
            topic, value = self._names.jobs(QUEUE), codec.encode_job(job)
            while not producer.send(topic, job.partition, subject.encode(), value):
                producer.poll(10)
        producer.flush(30_000)
        producer.close()

    def _wait_for_jobs(self, jobs: int) -> None:
        there, deadline_s = 0, time.monotonic() + STALLED_S
        while there < jobs:
            time.sleep(LOOK_S)
            name = "ApproximateNumberOfMessages"
            found = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=[name])
            now = int(found["Attributes"][name])
            if now > there:
                deadline_s = time.monotonic() + STALLED_S
            there = now
            if time.monotonic() > deadline_s:
                raise SystemExit(f"the publishers stand still at {there} of {jobs} jobs")


def call_ms(endpoint: str) -> float:
    """How long a call takes that way, best of some."""
    client = boto3.client("sqs", endpoint_url=endpoint, region_name="us-east-1")
    times = []
    for _ in range(5):
        began_s = time.monotonic()
        client.list_queues()
        times.append(time.monotonic() - began_s)
    client.close()
    return round(min(times) * 1_000, 1)


def main() -> None:
    """Measure each number of partitions and print the figures."""
    parser = argparse.ArgumentParser(prog="bench-publisher")
    parser.add_argument("--jobs", type=int, default=4_000, help="for each run")
    parser.add_argument("--partitions", default="1,2,4", metavar="A,B")
    parser.add_argument("--latency-ms", type=int, default=30, help="of each call to the queue")
    options = parser.parse_args()
    os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
    figures: dict[str, Any] = {}
    with LocalBroker() as broker, ElasticMQ() as queues, FaultProxy(queues.port) as proxy:
        broker.start()
        far = f"http://127.0.0.1:{proxy.port}"
        proxy.delay(options.latency_ms // 2)
        figures["call_ms"] = call_ms(far)
        for partitions in map(int, options.partitions.split(",")):
            site = Site(broker.bootstrap, queues.endpoint_url, far, partitions)
            rate = site.measure(options.jobs)
            figures[f"publishers_{partitions}_jobs_per_s"] = round(rate.per_s)
            figures[f"publishers_{partitions}_cpu_us_per_job"] = round(rate.cpu_us)
            print(f"{partitions} partitions with a publisher each: {rate.per_s:,.0f}", end=" ")
            print(f"jobs/s, {rate.cpu_us:,.0f} us CPU a job", flush=True)
    print(json.dumps({**figures, "yardstick_us": yardstick_us()}))


if __name__ == "__main__":
    main()
