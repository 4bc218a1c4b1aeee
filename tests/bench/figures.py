"""What several benchmarks set up, and how they sum up."""

import time
import timeit
from collections import Counter
from collections.abc import Sequence

from cape_stream.adapters.kafka import KafkaLog, KafkaSettings
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.log import TopicSpec
from tests.bench.dispatch_processes import DOMAIN, LATENCY_BUCKET_US, Process, Stage


def create_topics(stage: Stage) -> None:
    """Every topic of a stage."""
    names = TopicNames(stage.app)
    log = KafkaLog(KafkaSettings(bootstrap_servers=stage.bootstrap))
    topics = [names.pings(DOMAIN), names.statuses(DOMAIN), *names.job_topics(["bench"])]
    specs = [TopicSpec(name=name, partitions=stage.partitions, config={}) for name in topics]
    specs.append(
        TopicSpec(
            name=names.changelog(DOMAIN),
            partitions=stage.partitions,
            config={"cleanup.policy": "compact"},
        )
    )
    specs.append(TopicSpec(name=names.dead_letters, partitions=1, config={}))
    log.create_topics(specs)
    log.close()


def warm_up(loading: Process, rate: float, seconds: float) -> None:
    """Load of both kinds, until the broker's code is compiled."""
    for each in (0.0, rate):
        loading.tell((each, seconds / 2))
        loading.hear()
        time.sleep(1.0)


def percentiles(buckets: Counter[int]) -> dict[str, float]:
    """p50, p95 and p99 of latencies counted in buckets, in milliseconds."""
    total = sum(buckets.values())
    result: dict[str, float] = {}
    for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99)):
        seen = 0
        for bucket in sorted(buckets):
            seen += buckets[bucket]
            if seen >= share * total:
                result[name] = round((bucket + 1) * LATENCY_BUCKET_US / 1_000, 1)
                break
    return result


def slope_per_minute(samples: Sequence[tuple[float, float]]) -> float:
    """Least squares through (second, value)."""
    count = len(samples)
    mean_s = sum(s for s, _ in samples) / count
    mean = sum(value for _, value in samples) / count
    spread = sum((s - mean_s) ** 2 for s, _ in samples)
    return 60 * sum((s - mean_s) * (value - mean) for s, value in samples) / spread


def yardstick_us() -> float:
    """What ``sum(range(1000))`` takes here, best of many: how fast this machine is right now."""
    return round(min(timeit.repeat("sum(range(1000))", number=200, repeat=50)) / 200 * 1e6, 2)
