import pytest

from cape_stream.adapters.simulated import Faults, SimLog
from cape_stream.errors import Reject
from cape_stream.ports.log import TopicPartition
from tests.unit.adapters.simulated.worlds import SmallWorld


def test_producer_loses_its_buffer_with_its_process_but_not_what_is_on_the_wire() -> None:
    faults = Faults(send_ms=(10, 10), wire_ms=(10, 10))
    world = SmallWorld(partitions=1, faults=faults)
    process, log = world.process("a")
    producer = log.producer()
    producer.send("pings", 0, b"k", b"on the wire")
    world.run(5)
    producer.send("pings", 0, b"k", b"in the buffer")
    world.run(7)
    process.kill()
    world.run(1_000)

    assert [record.value for record in world.broker.records("pings", 0)] == [b"on the wire"]


def test_producer_of_a_stopped_process_gives_up_what_is_too_old_before_it_sends() -> None:
    world = SmallWorld(partitions=1, faults=Faults(send_ms=(10, 10)))
    process, log = world.process("a")
    producer = log.producer()
    producer.send("pings", 0, b"k", b"old")
    process.stop(400)
    world.run(400)
    producer.send("pings", 0, b"k", b"new")
    world.run(10)
    producer.poll(0)

    assert [(f.value, f.reason) for f in producer.take_failed()] == [(b"old", "message timeout")]
    assert [record.value for record in world.broker.records("pings", 0)] == [b"new"]
    assert producer.settled == {TopicPartition("pings", 0): 2}
    assert producer.take_failed() == []


def test_producer_counts_what_is_settled_in_order_and_keeps_the_order_of_a_partition() -> None:
    faults = Faults(send_ms=(0, 9), wire_ms=(0, 9), ack_ms=(0, 9), send_fail=0.2)
    world = SmallWorld(partitions=1, faults=faults)
    with world.timeline:
        process, log = world.process("a")
        producer = log.producer()

        def loop() -> None:
            for number in range(200):
                assert producer.send("pings", 0, b"k", b"%03d" % number)
                producer.poll(1)
                assert producer.settled[TopicPartition("pings", 0)] <= number + 1
            assert producer.flush(1_000)

        process.start(loop)
        world.run(5_000)

        failed = [send.value for send in producer.take_failed()]
        stored = [record.value for record in world.broker.records("pings", 0)]
        assert stored == sorted(v for v in stored if v is not None)
        assert len(failed) > 10
        assert sorted(v for v in stored + failed if v) == [b"%03d" % n for n in range(200)]
        assert producer.acked_offset == {TopicPartition("pings", 0): len(stored) - 1}


def test_producer_rejects_what_is_too_large_and_refuses_more_than_its_queue_holds() -> None:
    log = SimLog()
    with pytest.raises(Reject):
        log.producer().send("pings", 0, b"k", bytes(1_048_577))
    world = SmallWorld(faults=Faults(send_full=1.0))

    assert not world.process("a")[1].producer().send("pings", 0, b"k", b"v")


def test_producer_gives_up_what_goes_to_a_topic_that_does_not_exist() -> None:
    producer = SimLog().producer()
    producer.send("nowhere", 0, b"k", b"v")
    producer.poll(0)

    assert [send.topic for send in producer.take_failed()] == ["nowhere"]


def test_producer_gives_up_what_the_log_has_when_its_acknowledgement_is_lost() -> None:
    world = SmallWorld(partitions=1, faults=Faults(ack_lost=1.0))
    producer = world.process("a")[1].producer()
    producer.send("pings", 0, b"k", b"v")
    world.run(10)
    producer.poll(0)

    assert [failed.value for failed in producer.take_failed()] == [b"v"]
    assert [record.value for record in world.broker.records("pings", 0)] == [b"v"]
