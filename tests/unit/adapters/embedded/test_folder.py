import subprocess
import sys
from pathlib import Path

import pytest

from cape_stream.adapters.embedded import EmbeddedLog
from cape_stream.errors import Fatal, Retry
from cape_stream.ports.log import TopicPartition, TopicSpec, Write
from tests.unit.adapters.embedded.listeners import Follower

TOPIC = TopicSpec(name="t", partitions=1, config={})

HOLD = """
import sys, time
from cape_stream.adapters.embedded import EmbeddedLog
log = EmbeddedLog(sys.argv[1])
print("open", flush=True)
time.sleep(60)
"""


def _filled(path: Path, count: int) -> None:
    log = EmbeddedLog(path)
    log.create_topics([TOPIC])
    producer = log.producer()
    for number in range(count):
        producer.send("t", 0, b"k", b"%d" % number + bytes(50))
    producer.close()
    log.close()


def test_open_is_fatal_when_the_folder_is_in_use_here(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")

    with pytest.raises(Fatal, match="in use") as caught:
        EmbeddedLog(tmp_path / "log")

    assert str(tmp_path / "log") in caught.value.reason
    log.create_topics([TOPIC])
    log.close()


def test_open_is_fatal_while_another_process_lives_and_works_once_it_is_killed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"

        with pytest.raises(Fatal, match="in use") as caught:
            EmbeddedLog(path)
        other.kill()
        other.wait()

    assert str(path) in caught.value.reason
    EmbeddedLog(path).close()


def test_open_is_fatal_when_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("not a folder")

    with pytest.raises(Fatal, match="log"):
        EmbeddedLog(tmp_path / "log")


def test_open_is_fatal_when_the_manifest_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    _filled(path, 10)
    for manifest in path.glob("MANIFEST-*"):
        manifest.unlink()

    with pytest.raises(Fatal, match="damaged") as caught:
        EmbeddedLog(path)

    assert str(path) in caught.value.reason


def test_read_is_fatal_when_a_block_is_damaged_and_never_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "log"
    _filled(path, 20_000)
    for file in path.glob("*.sst"):
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 64] = b"\xa5" * 64
        file.write_bytes(content)
    log = EmbeddedLog(path)
    seen: list[int] = []

    def read_all() -> None:
        for batch in log.reader().read(TopicPartition("t", 0), 0, 20_000):
            seen.extend(record.offset for record in batch)

    with pytest.raises(Fatal, match="damaged"):
        read_all()

    assert seen == list(range(len(seen)))
    log.close()


def test_use_after_close_is_fatal(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topics([TOPIC])
    follower, producer = Follower(log, "g", ["t"]), log.producer()
    producer.close()
    follower.member.close()
    log.close()
    log.close()

    with pytest.raises(Fatal):
        log.producer()
    with pytest.raises(Fatal):
        producer.send("t", 0, b"k", b"v")
    with pytest.raises(Fatal):
        follower.poll()


def test_everybody_learns_it_when_a_write_has_failed(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topics([TOPIC])
    follower, producer = Follower(log, "g", ["t"]), log.producer()
    follower.poll()
    proof = follower.member.ownership()
    log._state.store.close()  # as if the disk were taken away

    producer.send("t", 0, b"k", b"v")

    with pytest.raises(Fatal):
        producer.flush(1_000)
    with pytest.raises(Fatal):
        follower.poll()
    with pytest.raises(Fatal):
        log.committer("c").commit([Write("t", 0, b"k", b"v")], {}, proof)
    assert producer.settled == {}
    log.close()


def test_commit_wants_to_be_repeated_when_its_topic_is_created_later(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topics([TOPIC])
    follower, committer = Follower(log, "g", ["t", "late"]), log.committer("c")
    follower.poll()
    writes = [Write("t", 0, b"k", b"v"), Write("late", 0, b"k", b"v")]

    with pytest.raises(Retry, match="late"):
        committer.commit(writes, {}, follower.member.ownership())
    log.create_topics([TopicSpec(name="late", partitions=1, config={})])
    committer.commit(writes, {}, follower.member.ownership())
    follower.drain()

    assert sorted(record.topic for record in follower.records) == ["late", "t"]
    log.close()


def test_commit_is_fatal_when_a_record_can_never_be_stored(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topics([TOPIC])
    follower = Follower(log, "g", ["t"])
    follower.poll()
    writes = [Write("t", 0, b"k", b"v"), Write("t", 0, b"k", bytes(2_000_000))]

    with pytest.raises(Fatal, match=r"max\.message\.bytes"):
        log.committer("c").commit(writes, {}, follower.member.ownership())

    assert log.reader().watermarks(TopicPartition("t", 0)) == (0, 0)
    log.close()
