"""What healthy subjects notice of 5,000 neighbours that fail for ever, on the same partitions.

20,000 subjects in turn at a fixed rate, on a real Kafka: first all of them are healthy (the clean
run), then every fourth fails on every attempt. Counted are the healthy ones only, the same subjects
in both runs: events handled a second, and latency from when each was meant to happen.

Usage: make bench-isolation [ARGS="--seconds 300 --rate 800"]
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

from deploy.local.broker import SERVER_JVM, LocalBroker
from tests.bench.dispatch_processes import Process, Stage, dispatcher, load, worker
from tests.bench.figures import create_topics, percentiles, slope_per_minute, warm_up, yardstick_us
from tests.bench.shared_source import SharedSource

SAMPLE_S = 5.0
WINDOW_S = 30.0
SETTLING_S = 60.0
"""Memory is looked at after this: caches fill first."""
FAILING_EVERY = 4


@dataclass(slots=True)
class Outcome:
    """Of one run."""

    seconds: float = 0.0
    buckets: Counter[int] = field(default_factory=Counter)
    failed: int = 0
    rss_mb: list[tuple[float, float]] = field(default_factory=list)
    in_memory: int = 0
    windows: list[float] = field(default_factory=list)
    """99th percentile of each half minute, ms."""

    @property
    def healthy_per_s(self) -> float:
        """Events of healthy subjects handled a second, all topologies together."""
        return sum(self.buckets.values()) / self.seconds


def main() -> None:
    """Run both and print the figures."""
    options = _options()
    with LocalBroker(jvm=SERVER_JVM) as broker:
        broker.start()
        clean = _run(broker.bootstrap, "clean", options, options.clean_seconds, failing_every=0)
        poisoned = _run(
            broker.bootstrap, "poisoned", options, options.seconds, failing_every=FAILING_EVERY
        )
    before, after = percentiles(clean.buckets), percentiles(poisoned.buckets)
    # Of the clean run's events three in four are of the subjects that are healthy in both.
    share = poisoned.healthy_per_s / (clean.healthy_per_s * (1 - 1 / FAILING_EVERY))
    settled = [each for each in poisoned.rss_mb if each[0] >= min(SETTLING_S, options.seconds / 2)]
    figures = {
        "throughput_share": round(share, 4),
        "p99_ratio": round(after["p99_ms"] / before["p99_ms"], 3),
        "rss_slope_mb_per_min": round(slope_per_minute(settled), 2),
        "clean": before,
        "poisoned": after,
        "p99_ms_by_30_s": {"clean": clean.windows, "poisoned": poisoned.windows},
        "failed_attempts": poisoned.failed,
        "rss_mb": [round(value) for _, value in (settled[0], settled[-1])],
        "in_memory": poisoned.in_memory,
        "yardstick_us": yardstick_us(),
    }
    print(json.dumps(figures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=310.0, help="of the poisoned run")
    parser.add_argument("--clean-seconds", type=float, default=120.0, help="of the clean run")
    parser.add_argument("--rate", type=float, default=600.0, help="events a second")
    parser.add_argument("--topologies", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--subjects", type=int, default=20_000)
    return parser.parse_args()


def _run(
    bootstrap: str, name: str, options: argparse.Namespace, seconds: float, *, failing_every: int
) -> Outcome:
    source = SharedSource(None, options.subjects)
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(
            bootstrap,
            name,
            options.topologies,
            options.partitions,
            options.subjects,
            source.name,
            folder,
            failing_every=failing_every,
        )
        create_topics(stage)
        dispatching, working = Process(dispatcher, stage), Process(worker, stage)
        loading = Process(load, stage)
        while dispatching.ask()["running"] < stage.partitions:
            time.sleep(0.1)
        warm_up(loading, options.rate, 20.0)
        working.ask()  # forget the latencies of the warm-up
        outcome = _watch(dispatching, working, loading, options.rate, seconds)
        loading.tell((0.0, 0.0))
        for process in (dispatching, working):
            process.ask("stop")
        for process in (dispatching, working, loading):
            process.end()
    source.close()
    return outcome


def _look(working: Process, outcome: Outcome) -> None:
    """What the worker has seen since the last look."""
    told = working.ask()
    seen: Counter[int] = Counter(told["buckets"])
    outcome.windows.append(percentiles(seen)["p99_ms"])
    outcome.buckets += seen
    outcome.failed = told["failed"]


def _watch(
    dispatching: Process, working: Process, loading: Process, rate: float, seconds: float
) -> Outcome:
    """Load, and a look at memory now and then."""
    outcome = Outcome()
    watched = psutil.Process(dispatching.pid)
    started_s = time.monotonic()
    loading.tell((rate, seconds))
    while (passed_s := time.monotonic() - started_s) < seconds:
        outcome.rss_mb.append((passed_s, watched.memory_info().rss / 2**20))
        if passed_s >= WINDOW_S * (len(outcome.windows) + 1):
            _look(working, outcome)
        sys.stderr.write(f"\r{passed_s:.0f} of {seconds:.0f} s, {outcome.rss_mb[-1][1]:.0f} MB  ")
        time.sleep(min(SAMPLE_S, max(seconds - passed_s, 0.1)))
    loading.hear()
    outcome.seconds = time.monotonic() - started_s
    time.sleep(1.0)
    _look(working, outcome)
    outcome.in_memory = dispatching.ask()["in_memory"]
    sys.stderr.write("\n")
    return outcome


if __name__ == "__main__":
    main()
