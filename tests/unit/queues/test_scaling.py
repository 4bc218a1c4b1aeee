"""What the fleet scales on."""

import pytest

from cape_stream.queues.fleet import FLEET, Pool, queues_of
from cape_stream.queues.gauges import Gauges
from cape_stream.queues.settings import ProcessorSettings
from cape_stream.roles.gauge_server import serve_gauges
from deploy.local.ports import free_ports
from tests.unit.queues.worlds import Running, Task, World, in_virtual_time, until


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
