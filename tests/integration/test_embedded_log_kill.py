"""Kill -9 of a process that produces and commits on the embedded log, again and again."""

import random
from collections import Counter
from pathlib import Path

import pytest

from cape_stream.adapters.embedded import EmbeddedLog
from cape_stream.ports.log import Record, TopicPartition
from tests.contract.kills import lines_until_killed

PROGRAM = """
import sys
from cape_stream.adapters.embedded import EmbeddedLog
from cape_stream.ports.log import TopicPartition, TopicSpec, Write

class Listener:
    def assigned(self, partitions): pass
    def revoked(self, partitions): pass
    def lost(self, partitions): pass
    def repositioned(self, *told): raise SystemExit(f"repositioned {told}")

log = EmbeddedLog(FOLDER)
log.create_topics([
    TopicSpec(name="jobs", partitions=2, config={}),
    TopicSpec(name="changelog", partitions=2, config={"cleanup.policy": "compact"}),
])
member = log.member("g", ["jobs"], Listener())
member.poll(1, 0)
producer, committer = log.producer(), log.committer("c")
jobs = [TopicPartition("jobs", number) for number in range(2)]
number = member.position(jobs[0])
while True:
    number += 1
    value = b"%d" % number
    for partition in range(2):
        for _ in range(3):
            producer.send("jobs", partition, b"k", value)
    producer.poll(0)
    if producer.settled == producer.sent:
        print("sent", number)
    writes = [Write("changelog", p, key, value) for p in range(2) for key in (b"same", value)]
    committer.commit(writes, dict.fromkeys(jobs, number), member.ownership())
    print("committed", number)
"""


class _Silent:
    def assigned(self, partitions: object) -> None: ...
    def revoked(self, partitions: object) -> None: ...
    def lost(self, partitions: object) -> None: ...
    def repositioned(self, partition: object, committed: int, kept: object) -> None:
        raise AssertionError("a committed offset lies outside the log")


def _read(log: EmbeddedLog, topic: str, partition: int) -> list[Record]:
    reader, name = log.reader(), TopicPartition(topic, partition)
    low, high = reader.watermarks(name)
    return [record for batch in reader.read(name, low, high) for record in batch]


def _newest(lines: list[str], what: str) -> int:
    return max((int(line.split()[1]) for line in lines if line.startswith(what)), default=0)


def _check(log: EmbeddedLog, lines: list[str]) -> None:
    """What was reported is there; what was not is there in full or not at all."""
    member = log.member("g", ["jobs"], _Silent())
    member.poll(1, 0)
    committed = member.position(TopicPartition("jobs", 0))
    assert committed == member.position(TopicPartition("jobs", 1))
    member.close()
    assert committed is not None
    assert committed >= _newest(lines, "committed")
    for partition in range(2):
        changelog = _read(log, "changelog", partition)
        assert [record.value for record in changelog if record.key != b"same"] == [
            b"%d" % number for number in range(1, committed + 1)
        ]
        assert [r.value for r in changelog if r.key == b"same"] == [b"%d" % committed]
        sent = Counter(int(record.value or b"") for record in _read(log, "jobs", partition))
        assert list(sent) == list(range(1, len(sent) + 1))
        # What was sent but not committed is sent again by the next process.
        acknowledged = max(committed, _newest(lines, "sent"))
        assert all(sent[number] >= 3 for number in range(1, acknowledged + 1))


@pytest.mark.parametrize("seed", range(4))
def test_nothing_acknowledged_is_lost_and_commits_are_whole_after_kills(
    tmp_path: Path, seed: int
) -> None:
    """Two kills in a row on one folder, each at a random moment."""
    chance, folder = random.Random(seed), tmp_path / "log"
    program = PROGRAM.replace("FOLDER", repr(str(folder)))

    for _ in range(2):
        lines = lines_until_killed(program, tmp_path / "report", chance)
        log = EmbeddedLog(folder)
        _check(log, lines)
        log.close()
