import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.local.broker import BrokerFailed, LocalBroker, ToolMissing, missing_tool
from deploy.local.jars import PROJECT
from deploy.local.ports import free_ports
from deploy.local.processes import is_running

WAIT_S = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """A broker of this file; a test that ends it starts it again."""
    with LocalBroker() as broker:
        yield broker


def create_topic(bootstrap: str) -> str:
    topic = f"letters-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(WAIT_S)
    return topic


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(WAIT_S) == 0
    assert failures == [None] * len(values)


def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """Reads `count` records from the start of the topic, as a member of a new group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    read = [message.value() for message in consumer.consume(count, timeout=WAIT_S)]
    consumer.close()
    return read


def test_broker_carries_records_from_producer_to_consumer(kafka_bootstrap: str) -> None:
    topic = create_topic(kafka_bootstrap)

    produce(kafka_bootstrap, topic, b"a", b"b")

    assert consume(kafka_bootstrap, topic, 2) == [b"a", b"b"]


def test_brokers_do_not_see_each_other_when_two_run_at_once(
    kafka_bootstrap: str, kafka_broker: LocalBroker
) -> None:
    topic = create_topic(kafka_bootstrap)

    known_to_other = AdminClient({"bootstrap.servers": kafka_broker.bootstrap}).list_topics()

    assert kafka_broker.bootstrap != kafka_bootstrap
    assert topic not in known_to_other.topics


@pytest.mark.kafka
@pytest.mark.parametrize("end", [LocalBroker.stop, LocalBroker.kill])
def test_broker_keeps_port_and_records_when_it_comes_back(
    broker: LocalBroker, end: Callable[[LocalBroker], None]
) -> None:
    address, pid = broker.bootstrap, broker.pid
    topic = create_topic(address)
    produce(address, topic, b"before")

    end(broker)
    was_gone = broker.pid is None and not broker.is_ready()
    broker.restart()

    assert was_gone
    assert broker.pid not in (None, pid)
    assert broker.bootstrap == address
    produce(address, topic, b"after")
    assert consume(address, topic, 2) == [b"before", b"after"]


@pytest.mark.kafka
def test_broker_answers_nothing_when_paused_and_again_when_resumed(broker: LocalBroker) -> None:
    broker.pause()
    answered_paused = broker.is_ready()
    broker.resume()
    broker.start()  # waits until it answers; it runs already

    assert not answered_paused
    assert broker.is_ready()


@pytest.mark.kafka
def test_broker_ends_when_stopped_while_paused(broker: LocalBroker) -> None:
    broker.pause()

    broker.stop()
    ended = broker.pid is None
    broker.start()

    assert ended


@pytest.mark.kafka
def test_broker_and_its_folder_are_gone_when_the_process_that_started_it_is_killed() -> None:
    script = (
        "import time\n"
        "from deploy.local.broker import LocalBroker\n"
        "broker = LocalBroker()\n"
        "broker.start()\n"
        "print(broker.pid, broker.folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=PROJECT)
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().decode().split()
    ran = is_running(int(pid), "kafka.Kafka")

    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + WAIT_S
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.05)

    assert ran
    assert not is_running(int(pid), "kafka.Kafka")
    assert not Path(folder).exists()


@pytest.mark.kafka
def test_broker_starts_on_other_ports_when_its_first_ones_are_taken(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = int(kafka_bootstrap.rpartition(":")[2])
    offered = [[taken, taken + 1]]
    monkeypatch.setattr(
        "deploy.local.broker.free_ports",
        lambda count: offered.pop() if offered else free_ports(count),
    )

    with LocalBroker() as broker:
        assert broker.is_ready()
        assert broker.bootstrap != kafka_bootstrap


@pytest.mark.kafka
def test_broker_says_why_when_it_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPE_KAFKA_HEAP", "1k")
    broker = LocalBroker()

    with pytest.raises(BrokerFailed, match="Too small maximum heap"), broker:
        pass

    assert broker.pid is None
    assert not broker.folder.exists()


@pytest.fixture
def broker_name() -> Iterator[str]:
    """A name for the command, whose broker would outlive a failed test."""
    name = f"test-{os.getpid()}"
    folder = PROJECT / ".cache" / "brokers" / name
    yield name
    LocalBroker(folder).stop()
    shutil.rmtree(folder)


@pytest.mark.kafka
def test_command_starts_finds_and_stops_a_named_broker(broker_name: str) -> None:
    def run(action: str) -> tuple[int, str]:
        command = [sys.executable, "deploy/local/broker.py", action, "--name", broker_name]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    before, started, repeated, found = run("status"), run("start"), run("start"), run("status")
    stopped, after = run("stop"), run("status")

    assert before == after == (3, f"broker {broker_name}: not running\n")
    assert started == repeated == found
    assert started[0] == 0
    assert "bootstrap.servers=127.0.0.1:" in started[1]
    assert stopped == (0, f"broker {broker_name}: not running\n")


def test_broker_raises_tool_missing_when_there_is_no_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(ToolMissing, match="java is not on the PATH") as caught:
        LocalBroker(tmp_path / "broker").start()

    assert caught.value.tool == "java"
    assert str(missing_tool()) == str(caught.value)
