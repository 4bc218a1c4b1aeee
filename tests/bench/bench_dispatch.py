"""Dispatch on a real Kafka: CPU per job, jobs a second, and latency from ping to handler.

One broker, one dispatcher, one load generator and one echo worker, all on this machine. Two phases:

paced      1,000 events a second; latency from when each event was meant to happen to its handler
saturated  always 20,000 jobs under way; the dispatcher's CPU time per job, and jobs a second

Both are of a system that has been at work for a while: a broker's first seconds, in which its code
is compiled, are no part of them.

Usage: make bench-dispatch [ARGS="--seconds 20 --topologies 5"]
"""

import argparse
import json
import tempfile
import time
from collections import Counter

from deploy.local.broker import SERVER_JVM, LocalBroker
from tests.bench.dispatch_processes import (
    Process,
    Stage,
    dispatcher,
    load,
    worker,
)
from tests.bench.figures import create_topics, percentiles, warm_up, yardstick_us
from tests.bench.shared_source import SharedSource


def main() -> None:
    """Run both phases and print the figures."""
    options = _options()
    with LocalBroker(jvm=SERVER_JVM) as broker, tempfile.TemporaryDirectory() as folder:
        broker.start()
        source = SharedSource(None, options.subjects)
        stage = Stage(
            broker.bootstrap,
            "bench",
            options.topologies,
            options.partitions,
            options.subjects,
            source.name,
            folder,
            everything=options.everything,
            profile=options.profile,
        )
        create_topics(stage)
        try:
            figures = _measure(stage, options)
        finally:
            source.close()
    print(json.dumps({**figures, "yardstick_us": yardstick_us()}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each phase")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds of load before them")
    parser.add_argument("--phases", default="paced,saturated", help="which, by comma")
    parser.add_argument("--rate", type=float, default=1_000.0, help="events a second, paced")
    parser.add_argument("--topologies", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--subjects", type=int, default=10_000)
    parser.add_argument("--everything", action="store_true", help="set every limit and policy")
    parser.add_argument("--profile", default="", help="file for a cProfile of the dispatcher")
    return parser.parse_args()


def _measure(stage: Stage, options: argparse.Namespace) -> dict[str, object]:
    dispatching = Process(dispatcher, stage)
    working = Process(worker, stage)
    loading = Process(load, stage)
    while dispatching.ask()["running"] < stage.partitions:
        time.sleep(0.1)
    warm_up(loading, options.rate, options.warm_up)
    figures: dict[str, object] = {}
    if "paced" in options.phases:
        figures |= _pace(dispatching, working, loading, options)
    if "saturated" in options.phases:
        figures |= _saturate(dispatching, loading, options)
    loading.tell((0.0, 0.0))
    for process in (dispatching, working):
        process.ask("stop")
    for process in (dispatching, working, loading):
        process.end()
    return figures


def _pace(
    dispatching: Process, working: Process, loading: Process, options: argparse.Namespace
) -> dict[str, object]:
    working.ask()  # forget the latencies of the warm-up
    before = dispatching.ask()
    loading.tell((options.rate, options.seconds))
    loading.hear()
    time.sleep(1.0)
    after = dispatching.ask()
    latencies: Counter[int] = Counter(working.ask()["buckets"])
    return {
        **percentiles(latencies),
        "paced_cpu_us_per_job": _cpu_us_per_job(before, after),
        "paced_jobs": after["jobs"] - before["jobs"],
        "paced_turns": after["turns"] - before["turns"],
    }


def _saturate(
    dispatching: Process, loading: Process, options: argparse.Namespace
) -> dict[str, object]:
    loading.tell((0.0, options.seconds))
    time.sleep(3.0)
    before, started_s = dispatching.ask(), time.monotonic()
    time.sleep(max(options.seconds - 3.0, 2.0))
    after, ended_s = dispatching.ask(), time.monotonic()
    loading.hear()
    jobs = after["jobs"] - before["jobs"]
    return {
        "cpu_us_per_job": _cpu_us_per_job(before, after),
        "jobs_per_s": round(jobs / (ended_s - started_s)),
        "reissued": after["repeated"],
    }


def _cpu_us_per_job(before: dict[str, float], after: dict[str, float]) -> float:
    jobs = after["jobs"] - before["jobs"]
    return round((after["cpu_s"] - before["cpu_s"]) * 1e6 / max(jobs, 1), 2)


if __name__ == "__main__":
    main()
