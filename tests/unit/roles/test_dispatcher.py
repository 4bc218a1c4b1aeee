from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.simulated import SimClock, SimLog
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.roles.backends import Backend
from cape_stream.roles.dispatcher import _figures, task_groups
from cape_stream.roles.settings import Settings
from cape_stream.roles.source_limits import SourceLimits
from cape_stream.roles.topics import topic_specs
from cape_stream.runtime.loop import check_partitions
from cape_stream.sdk import App, Batch
from tests.desk import topology
from tests.unit.runtime.engine_worlds import EngineWorld


def shop() -> App:
    app = App("shop", partitions=2)
    ledger = app.domain("orders", source=MemoryEventSource()).topology("ledger")

    def book(batch: Batch) -> None:
        """Takes what comes."""

    ledger.handler(queue="general", name="first")(book)
    ledger.handler(queue="bulk", name="second")(book)
    return app


def test_task_groups_read_back_and_write_both_lanes_of_every_queue() -> None:
    app, log = shop(), SimLog()
    backend = Backend("embedded", "memory", log, AvroCodec(), SimClock(log.broker.timeline), 0)
    (group,) = task_groups(app, backend, Settings(), SourceLimits(app.name, Settings().engine, {}))

    assert set(group.outputs) == {
        "shop.jobs.general",
        "shop.jobs.bulk",
        "shop.jobs.general.backlog",
        "shop.jobs.bulk.backlog",
    }
    log.create_topics(topic_specs(app))
    assert set(check_partitions(log, [group])) >= set(group.outputs)


def test_figures_count_the_records_that_were_put_aside() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.put_ping(b"S", b"junk")
    world.turn(engine)

    assert _figures(engine)["dead_letters"] == 1
