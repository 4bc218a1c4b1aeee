"""Everything at once on one embedded log: senders, members that come and go, retention."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from cape_stream.adapters.embedded import EmbeddedLog, EmbeddedSettings
from cape_stream.errors import Fenced
from cape_stream.ports.log import Record, TopicPartition, TopicSpec, Watermarks, Write

PARTITIONS = 5
RECORDS = 3_000
SENDERS = 2
SETTINGS = EmbeddedSettings(consumed_retention_ms=20, tail_bytes_max=0)


class Counting:
    """A member that counts a record only once the commit that covers it has succeeded."""

    def __init__(self, log: EmbeddedLog, counted: Counter[tuple[int, bytes | None]]) -> None:
        self._counted = counted
        self._open: list[Record] = []
        self._committer = log.committer("counting")
        self.member = log.member("g", ["in"], self)

    def step(self, chance: random.Random) -> None:
        records = self.member.poll(chance.randint(1, 200), 5)
        self._open += records  # not in one line: `revoked` replaces the list during the poll
        if chance.random() < 0.3:
            self._commit(self._open)

    def _commit(self, records: Sequence[Record]) -> None:
        offsets = {TopicPartition(*record[:2]): record.offset + 1 for record in records}
        writes = [Write("out", record.partition, record.key, record.value) for record in records]
        proof = self.member.ownership()
        try:
            self._committer.commit(writes, offsets, proof)
        except Fenced:
            raise AssertionError("nobody is silent here") from None
        self._counted.update((record.partition, record.value) for record in records)
        self._open = [record for record in self._open if record not in records]

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.member.resume(partitions)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._commit([record for record in self._open if record[:2] in partitions])

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        raise AssertionError("nobody is silent here")

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        raise AssertionError("retention takes only what is committed")


def _send(log: EmbeddedLog, sender: int) -> None:
    producer, chance = log.producer(), random.Random(sender)
    for number in range(RECORDS):
        producer.send("in", number % PARTITIONS, b"%d" % sender, b"%d/%d" % (sender, number))
        if chance.random() < 0.02:
            producer.poll(0)
    producer.close()


def _count(
    log: EmbeddedLog, seed: int, counted: Counter[tuple[int, bytes | None]], lock: threading.Lock
) -> None:
    """Join, work for a while, leave, and again, until everything is counted."""
    chance, own = random.Random(seed), Counter[tuple[int, bytes | None]]()
    while True:
        counting = Counting(log, own)
        for _ in range(chance.randint(1, 60)):
            counting.step(chance)
        counting.member.close()
        with lock:
            counted.update(own)
            own.clear()
            if counted.total() >= RECORDS * SENDERS:
                return


def _in_threads(works: Sequence[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not failures:
            thread.join(0.1)
    assert failures == []


def test_every_record_counts_once_while_members_come_and_go(tmp_path: Path) -> None:
    """And what the commits wrote is complete and in order for each sender."""
    log = EmbeddedLog(tmp_path / "log", SETTINGS)
    log.create_topics(
        [TopicSpec(name=name, partitions=PARTITIONS, config={}) for name in ("in", "out")]
    )
    counted, lock = Counter[tuple[int, bytes | None]](), threading.Lock()
    done = threading.Event()

    def keep_house() -> None:
        while not done.wait(0.01):
            log.housekeep()

    senders = [lambda sender=sender: _send(log, sender) for sender in range(SENDERS)]
    counters = [lambda seed=seed: _count(log, seed, counted, lock) for seed in range(3)]
    house = threading.Thread(target=keep_house)
    house.start()
    try:
        _in_threads([*senders, *counters])
    finally:
        done.set()
        house.join()

    assert len(counted) == counted.total() == RECORDS * SENDERS
    reader = log.reader()
    for partition in range(PARTITIONS):
        name = TopicPartition("out", partition)
        out = [r for batch in reader.read(name, *reader.watermarks(name)) for r in batch]
        for sender in range(SENDERS):
            numbers = [int(r.value[2:]) for r in out if r.value and r.key == b"%d" % sender]
            assert numbers == list(range(partition, RECORDS, PARTITIONS))
        assert reader.watermarks(TopicPartition("in", partition)).low > 0
    log.close()
