"""B17: every subject of `tests/data/subject-keys.json` through the engine, byte for byte."""

import json
from pathlib import Path
from typing import Any

from cape_stream.model.ping import Ping
from cape_stream.model.subject import SUBJECT_BYTES_MAX, partition_of
from tests.desk import topology
from tests.unit.runtime.engine_worlds import EngineWorld

KEYS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "subject-keys.json").read_text()
)["keys"]
PARTITIONS = 6


def key_of(entry: dict[str, Any]) -> bytes:
    if "hex" in entry:
        return bytes.fromhex(entry["hex"])
    spelled = entry.get("repeat", {"text": entry.get("text", ""), "count": 1})
    return str(spelled["text"] * spelled["count"]).encode()


def accepted() -> list[str]:
    keys = [key_of(entry) for entry in KEYS if entry["accept"] != "refuse"]
    return [key.decode() for key in keys if len(key) <= SUBJECT_BYTES_MAX]


def serve(world: EngineWorld, latest: int) -> None:
    """Ping every subject, and let all its jobs be done."""
    engine = world.running()
    for subject in accepted():
        world.ping(subject, latest)
    world.turn(engine, 20)
    for job in world.jobs():
        world.report(job)
    world.turn(engine, 20)


def test_each_subject_keeps_a_cursor_of_its_own_over_a_restart_with_an_empty_table() -> None:
    world = EngineWorld(topology("T1"), partitions=PARTITIONS)
    for subject in accepted():
        world.publish(subject, 1, 2, 3)
    serve(world, 3)
    world.kill()
    world.disk.lose()
    for subject in accepted():
        world.publish(subject, 4)
    serve(world, 4)

    delivered: dict[str, list[int]] = {subject: [] for subject in accepted()}
    for subject, sequences in world.batches():
        delivered[subject] += sequences
    assert delivered == {subject: [1, 2, 3, 4] for subject in accepted()}
    owners = {job.subject: {job.partition} for job in world.jobs()}
    assert owners == {
        subject: {partition_of(subject.encode(), PARTITIONS)} for subject in accepted()
    }


def test_keys_that_are_no_subjects_are_put_aside_and_never_get_an_owner() -> None:
    world = EngineWorld(topology("T1"), partitions=PARTITIONS)
    engine = world.running()
    good = {subject.encode() for subject in accepted()}
    refused = [key for entry in KEYS if (key := key_of(entry)) not in good]
    value = world.codec.encode_ping(Ping("S", 1))
    for number, key in enumerate(refused):
        world.put_ping(key, value, number % PARTITIONS)
    world.turn(engine, 20)

    assert sorted(str(letter.key) for letter in world.letters()) == sorted(map(str, refused))
    assert world.jobs() == []
