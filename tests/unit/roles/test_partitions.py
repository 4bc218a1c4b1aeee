"""Topics that are missing, differ, or grow."""

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.simulated import SimClock, SimLog
from cape_stream.errors import Fatal
from cape_stream.ports.log import TopicSpec
from cape_stream.roles.backends import Backend
from cape_stream.roles.partitions import PartitionWatch, check_counts, wanted_counts
from cape_stream.roles.topic_plan import carry_out
from cape_stream.roles.topics import topic_specs
from tests.unit.roles.test_orphans import shop

PINGS = "shop.orders.pings"


def backend_of(log: SimLog) -> Backend:
    return Backend("embedded", "memory", log, AvroCodec(), SimClock(log.broker.timeline), 0)


def log_with(**partitions: int) -> SimLog:
    """A log with the shop's topics, some of them with another number of partitions."""
    log = SimLog()
    counts = wanted_counts(shop()) | {PINGS: partitions.get("pings", 2)}
    specs = [TopicSpec(name=name, partitions=count, config={}) for name, count in counts.items()]
    log.create_topics([each for each in specs if each.partitions])
    return log


def test_check_is_content_with_what_apply_created() -> None:
    log = SimLog()
    log.create_topics(topic_specs(shop()))

    check_counts(log, shop())


def test_check_names_every_missing_topic_and_the_command_to_run() -> None:
    with pytest.raises(Fatal, match=rf"do not exist: {PINGS}; create them with `cape topics apply"):
        check_counts(log_with(pings=0), shop())


def test_check_says_both_numbers_when_they_differ() -> None:
    with pytest.raises(Fatal, match=f"{PINGS} has 3 partitions where 2 are wanted"):
        check_counts(log_with(pings=3), shop())


def test_check_looks_only_at_what_is_asked_for() -> None:
    check_counts(log_with(pings=3), shop(), ["shop.orders.statuses"])


def test_watch_raises_both_numbers_once_a_topic_has_grown() -> None:
    log = log_with()
    backend = backend_of(log)
    watch = PartitionWatch(backend, shop(), 1_000)
    start_ms = backend.clock.now_ms()

    def look_until_it_raises() -> None:
        for turn in range(1_000_000):
            watch.turn(start_ms + 1_000 * turn)

    try:
        for turn in range(1_000):
            watch.turn(start_ms + 1_000 * turn)
        backend.log = log_with(pings=4)
        with pytest.raises(Fatal, match=f"were added .*{PINGS} has 4 partitions where 2"):
            look_until_it_raises()
    finally:
        watch.close()


def test_watch_never_looks_when_it_is_switched_off() -> None:
    watch = PartitionWatch(backend_of(log_with(pings=3)), shop(), 0)
    try:
        for turn in range(1_000):
            watch.turn(10**12 * turn)
    finally:
        watch.close()


def test_plan_changes_nothing_and_apply_creates_what_is_missing() -> None:
    log = SimLog()
    backend = backend_of(log)

    plan = carry_out("plan", shop(), backend)
    nothing_yet = log.partition_counts([PINGS])
    apply = carry_out("apply", shop(), backend)

    assert not plan.complete
    assert nothing_yet == {}
    assert apply.complete
    assert PINGS in apply.created
    assert f"{PINGS}: created with 2 partitions" in apply.in_words()


def test_check_of_topics_says_both_numbers_and_the_way_out() -> None:
    outcome = carry_out("check", shop(), backend_of(log_with(pings=3)))

    assert not outcome.complete
    assert f"{PINGS}: has 3 partitions where 2 are wanted" in outcome.in_words()
    assert "move to new topics under a new App name" in outcome.in_words()
