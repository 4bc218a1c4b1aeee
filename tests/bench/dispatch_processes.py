"""The processes of the dispatch benchmark: dispatcher, echo worker, load generator."""

import cProfile
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cape_stream import App, Batch, Transient
from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.kafka import KafkaLog, KafkaSettings
from cape_stream.adapters.rocksdb import RocksTable
from cape_stream.core.plan import compile_plan
from cape_stream.model.topic_names import TopicNames
from cape_stream.roles.collecting import collect_seldom
from cape_stream.runtime.dispatching import Routing, dispatcher_factory
from cape_stream.runtime.loop import Backgrounds, Engine
from cape_stream.runtime.processor import TaskGroup
from cape_stream.runtime.steady import SteadyClock, ThreadBackground
from cape_stream.runtime.worker import Worker
from cape_stream.runtime.worker_settings import WorkerSettings
from cape_stream.sdk.pinger import Pinger
from tests.bench.shared_source import (
    SharedSource,
    due_ns_of,
    now_ns,
    subject_name,
    subject_number,
)

DOMAIN = "accounts"
LATENCY_BUCKET_US = 100
JOBS_AHEAD_MAX = 20_000
"""At saturation, most jobs that may be under way: the generator must not take the processors that
are to be measured."""


@dataclass(slots=True, frozen=True)
class Stage:
    """What every process of a run has to know."""

    bootstrap: str
    app: str
    topologies: int
    partitions: int
    subjects: int
    source: str
    folder: str
    failing_every: int = 0
    """Every so many-th subject fails on every attempt, for ever; 0: none does."""
    everything: bool = False
    """Every limit and policy a topology may have is set, so that each of its gates is asked."""
    profile: str = ""
    """File for a cProfile of the dispatcher's loop; empty: none. It falsifies the figures."""

    def declare(self) -> App:
        """The App under test; its handlers only look at the clock."""
        app = App(self.app, partitions=self.partitions)
        domain = app.domain(DOMAIN, source=SharedSource(self.source, self.subjects))
        LATENCIES.failing_every = self.failing_every
        for number in range(self.topologies):
            topology = domain.topology(f"topology-{number}", **self._options())
            topology.handler(queue="bench", timeout=timedelta(seconds=30), name="echo")(
                LATENCIES.record
            )
        return app

    def _options(self) -> dict[str, Any]:
        if not self.everything:
            return {}
        return {
            "in_flight_max": 1_000_000,
            "jobs_per_s_max": 1_000_000.0,
            "quarantine_after": {"invalid": 3, "permanent": 3, "bug": 20},
        }

    def log(self) -> KafkaLog:
        """A connection to the broker."""
        return KafkaLog(KafkaSettings(bootstrap_servers=self.bootstrap))


@dataclass(slots=True)
class Latencies:
    """Ping to handler, in buckets of `LATENCY_BUCKET_US`."""

    buckets: dict[int, int] = field(default_factory=dict)
    count: int = 0
    failing_every: int = 0
    failed: int = 0

    def record(self, batch: Batch) -> None:
        """The echo handler: counts how late each event is, unless its subject always fails."""
        if self.failing_every and subject_number(batch.subject) % self.failing_every == 0:
            self.failed += 1
            raise Transient("poison")
        for event in batch:
            bucket = (now_ns() - due_ns_of(event.payload)) // 1_000 // LATENCY_BUCKET_US
            self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += len(batch)


LATENCIES = Latencies()


def dispatcher(stage: Stage, control: Connection) -> None:
    """Runs the real engine; reports its CPU time and counters whenever asked."""
    app = stage.declare()
    names, spec = TopicNames(stage.app), app.domain_specs()[0]
    routing = Routing(names=names, domain=DOMAIN, partitions=stage.partitions)
    group = TaskGroup(
        name=DOMAIN,
        inputs=(names.statuses(DOMAIN), names.pings(DOMAIN)),
        changelog=names.changelog(DOMAIN),
        make_processor=dispatcher_factory(compile_plan(spec), AvroCodec(), routing),
        replayed_first=(names.statuses(DOMAIN),),
        outputs=names.job_topics(["bench"]),
        source=SharedSource(stage.source, stage.subjects),
    )
    engine = Engine(
        log=stage.log(),
        table=RocksTable(Path(stage.folder) / "state"),
        clock=SteadyClock(),
        groups=[group],
        group_id=names.dispatcher_group,
        member_name=f"bench-{os.getpid()}",
        backgrounds=Backgrounds(
            commits=ThreadBackground(1, "commit"),
            restores=ThreadBackground(2, "restore"),
            sources=ThreadBackground(8, "source"),
        ),
    )

    def report() -> dict[str, Any]:
        tasks = engine.assignment.tasks.values()
        processors = [task.processor for task in tasks if task.processor]
        counters = [each.counters() for each in processors]
        return {
            "cpu_s": time.process_time(),
            "jobs": sum(counted["jobs_done"] for counted in counters),
            "running": sum(task.state.value == "running" for task in tasks),
            "turns": engine.counters.turns,
            "in_memory": sum(each.load() for each in processors),
            "repeated": sum(counted["jobs_retried"] for counted in counters),
        }

    profiler = cProfile.Profile()
    if stage.profile:
        profiler.enable()
    _serve(control, engine.turn, report)
    if stage.profile:
        profiler.dump_stats(stage.profile)
    engine.close()


def worker(stage: Stage, control: Connection) -> None:
    """Runs the real worker with an inline echo handler."""
    app = stage.declare()
    source = SharedSource(stage.source, stage.subjects)
    served = Worker(
        stage.log(),
        AvroCodec(),
        SteadyClock(),
        TopicNames(stage.app),
        app.job_handlers(),
        WorkerSettings(queues=("bench",), inline=True, concurrency=1, prefetch=2_000),
    )

    def report() -> dict[str, Any]:
        buckets, LATENCIES.buckets = LATENCIES.buckets, {}
        return {"buckets": buckets, "cpu_s": time.process_time(), "failed": LATENCIES.failed}

    def step() -> None:
        served.step(5)
        source.handled = LATENCIES.count

    _serve(control, step, report)
    served.close()


def load(stage: Stage, control: Connection) -> None:
    """Makes events and pings them: so many a second, or (rate 0) as fast as they are handled."""
    source = SharedSource(stage.source, stage.subjects)
    pinger = Pinger(
        stage.log(),
        AvroCodec(),
        SteadyClock(),
        topic=TopicNames(stage.app).pings(DOMAIN),
        partitions=stage.partitions,
    )
    while True:
        rate, seconds = control.recv()
        if not seconds:
            break
        if rate:
            count = _pace(source, pinger, stage, rate, seconds)
        else:
            count = _keep_ahead(source, pinger, stage, seconds)
        pinger.flush(10_000)
        control.send({"events": count, "cpu_s": time.process_time()})
    pinger.close()
    source.close()


def _pace(source: SharedSource, pinger: Pinger, stage: Stage, rate: float, seconds: float) -> int:
    """Send from the intended times on, whatever the delays: no coordinated omission."""
    start_ns = now_ns()
    count = 0
    while count < rate * seconds:
        due_ns = start_ns + int(count * 1e9 / rate)
        wait_ns = due_ns - now_ns()
        if wait_ns > 200_000:
            time.sleep(wait_ns / 1e9)
        number = count % stage.subjects
        pinger.ping(subject_name(number), source.append(number, due_ns))
        count += 1
    return count


def _keep_ahead(source: SharedSource, pinger: Pinger, stage: Stage, seconds: float) -> int:
    """Keep `JOBS_AHEAD_MAX` jobs under way."""
    ahead_max = JOBS_AHEAD_MAX // stage.topologies
    start_ns, handled, count = now_ns(), source.handled, 0
    while (at_ns := now_ns()) - start_ns < seconds * 1e9:
        done = (source.handled - handled) // stage.topologies
        if count - done >= ahead_max:
            time.sleep(0.002)
            continue
        for _ in range(min(100, ahead_max // 4)):
            number = count % stage.subjects
            pinger.ping(subject_name(number), source.append(number, at_ns))
            count += 1
    return count


def _serve(
    control: Connection, step: Callable[[], object], report: Callable[[], dict[str, Any]]
) -> None:
    """Step; answer every question with a report; end at the word ``stop``."""
    looked_s = 0.0
    collect_seldom()
    while True:
        step()
        if (now_s := time.monotonic()) - looked_s < 0.05:
            continue
        looked_s = now_s
        if control.poll():
            if control.recv() == "stop":
                control.send(report())
                return
            control.send(report())


class Process:
    """A process of the stage and the line to it."""

    def __init__(self, role: Callable[[Stage, Connection], None], stage: Stage) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=role, args=(stage, theirs), daemon=True)
        self._process.start()

    def tell(self, what: object) -> None:
        """Say something without waiting."""
        self._line.send(what)

    def hear(self) -> dict[str, Any]:
        """Wait for a report."""
        answer: dict[str, Any] = self._line.recv()
        return answer

    @property
    def pid(self) -> int:
        """Of the operating system."""
        pid = self._process.pid
        assert pid is not None, "it was started"
        return pid

    def ask(self, what: object = "report") -> dict[str, Any]:
        """Say something and wait for the report."""
        self.tell(what)
        return self.hear()

    def end(self) -> None:
        """Wait for the end, or bring it about."""
        self._process.join(15)
        self._process.kill()
