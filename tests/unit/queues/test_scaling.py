"""What the fleet scales on, and that the manifests agree with the code."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cape_stream.queues.fleet import FLEET, Pool, queues_of
from cape_stream.queues.gauges import Gauges
from cape_stream.queues.settings import ProcessorSettings
from cape_stream.roles.gauge_server import serve_gauges
from deploy.local.ports import free_ports
from tests.unit.queues.worlds import Running, Task, World, in_virtual_time, until

KEDA = Path(__file__).parents[3] / "deploy" / "keda"
POOLS = [Pool.GENERAL, Pool.BULK, Pool.TRAINING]


def manifest(name: str) -> Any:
    return yaml.safe_load((KEDA / f"{name}.yaml").read_text())


@pytest.mark.parametrize("pool", POOLS)
def test_scaled_object_watches_every_queue_of_its_pool_twice(pool: Pool) -> None:
    spec = manifest(f"{pool}.scaledobject")["spec"]

    by_sqs = [each["metadata"] for each in spec["triggers"] if each["type"] == "aws-sqs-queue"]
    by_query = [each["metadata"] for each in spec["triggers"] if each["type"] == "prometheus"]

    names = [each.name for each in queues_of(pool)]
    assert [each["queueURL"].rsplit("/cape-", 1)[1] for each in by_sqs] == names
    assert {each["scaleOnInFlight"] for each in by_sqs} == {"false"}
    for name, each in zip(names, by_query, strict=True):
        assert f'cape_queue_live{{queue="{name}"}}' in each["query"]
        assert f'cape_queue_visible{{queue="{name}"}}' in each["query"]


@pytest.mark.parametrize("pool", POOLS)
def test_pod_is_given_longer_than_a_drain_takes(pool: Pool) -> None:
    pod = manifest(f"{pool}.deployment")["spec"]["template"]["spec"]
    environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}

    grace_ms = int(environment["CAPE_PROCESSOR_GRACE_MS"])

    assert pod["terminationGracePeriodSeconds"] * 1_000 >= grace_ms + 10_000
    ProcessorSettings(grace_ms=grace_ms)


def test_pools_drain_what_the_rule_says() -> None:
    names = {pool: {spec.name for spec in queues_of(pool)} for pool in Pool}

    assert names[Pool.BULK] == {"bulk-ingest"}
    assert names[Pool.TRAINING] == {"training"}
    assert names[Pool.DEV] == {spec.name for spec in FLEET}
    assert names[Pool.GENERAL] == names[Pool.DEV] - {"bulk-ingest", "training"}


@in_virtual_time
async def test_runnable_is_what_is_visible_and_what_a_live_worker_renews(world: World) -> None:
    queue = world.queue()
    await world.send(queue, *(Task(f"t{n}", 50.0) for n in range(30)))
    crashed = queue.receive_at_once(4, 43_200)  # a worker that died: in flight for half a day
    processor = world.processor(world.lane(queue, concurrency=5, prefetch=5))
    running = Running(processor)
    await until(lambda: len(world.names("begin")) == 5)
    gauges = Gauges(processor, world.clock.now_ms)

    await gauges.look()
    figures = gauges.figures("work")

    assert len(crashed) == 4
    assert figures["in_flight"] == 14
    assert (figures["live"], figures["visible"]) == (10, 16)
    assert figures["runnable"] == 26
    assert figures["running"] == 5
    assert figures["up"] == 1.0
    await running.stop()


@in_virtual_time
async def test_oldest_age_grows_with_the_message_and_text_is_for_prometheus(
    world: World,
) -> None:
    queue = world.queue()
    await world.send(queue, Task("t", 500.0))
    processor = world.processor(world.lane(queue), grace_ms=30_000)
    running = Running(processor)
    await until(lambda: world.now_s > 100)
    gauges = Gauges(processor, world.clock.now_ms)

    await gauges.look()

    assert 99 < gauges.figures("work")["oldest_age_seconds"] < 102
    assert '# TYPE cape_queue_runnable gauge\ncape_queue_runnable{queue="work"} 1\n' in gauges.text
    await running.stop()


def test_figures_are_served_and_nothing_else_is() -> None:
    import urllib.error
    import urllib.request

    (port,) = free_ports(1)

    with serve_gauges(ProcessorSettings(metrics_port=port), lambda: "cape_up 1\n"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            found = answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=10)

    assert found == b"cape_up 1\n"
