"""The file registry: what it serves, and that it refuses a folder nobody should run with."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cape_stream.adapters.avro import AvroCodec, FileRegistry
from cape_stream.errors import Fatal
from tests.unit.adapters.avro.folders import add_version, hint_at, shipped_copy
from tests.unit.adapters.avro.samples import PING


def rewrite(folder: Path, file: str, change: Callable[[str], str]) -> None:
    (folder / file).write_text(change((folder / file).read_text()))


def test_registry_serves_the_shipped_schemas() -> None:
    registry = FileRegistry()

    assert [(each.schema_id, each.record, each.version) for each in registry.all()] == [
        (1, "ping", 1),
        (2, "event", 1),
        (3, "job", 1),
        (4, "job_status", 1),
        (5, "cursor_info", 1),
        (6, "dead_letter", 1),
        (7, "operation", 1),
        (8, "audit_entry", 1),
    ]
    assert registry.find(4) == registry.version("job_status", 1)
    assert registry.find(9) is None


def test_registry_knows_old_versions_beside_new_ones(tmp_path: Path) -> None:
    folder = shipped_copy(tmp_path / "schemas")
    add_version(folder, "ping", hint_at(-1), 70)

    registry = FileRegistry(folder)

    found = [registry.find(1), registry.find(70)]
    assert [each and (each.record, each.version) for each in found] == [("ping", 1), ("ping", 2)]


def test_registry_keeps_what_it_has_when_the_folder_is_half_written(tmp_path: Path) -> None:
    folder = shipped_copy(tmp_path / "schemas")
    registry = FileRegistry(folder)

    rewrite(folder, "registry.json", lambda text: text[: len(text) // 2])

    assert registry.find(70) is None
    assert registry.find(1) == registry.version("ping", 1)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("registry.json", lambda text: text[:-9], "registry.json is not a registry"),
        ("registry.json", lambda text: "[]", "registry.json is not a registry"),
        ("registry.json", lambda text: '{"records": []}', "registry.json is not a registry"),
        ("registry.json", lambda text: text.replace('"id": 2', '"id": 1'), "schema id 1"),
        ("registry.json", lambda text: text.replace('"id": 2', '"id": 0'), "schema id 0"),
        ("registry.json", lambda text: text.replace('"id": 2', f'"id": {2**32}'), "4294967296"),
        ("registry.json", lambda text: text.replace("ping.avsc", "gone.avsc"), "gone.avsc"),
        ("job.avsc", lambda text: text[:-9], "job.avsc is not an Avro schema"),
        ("job.avsc", lambda text: text.replace('"bytes"', '"octets"'), "job.avsc is not an Avro"),
        ("job.avsc", lambda text: '{"type": "record"}', "job.avsc is not an Avro schema"),
    ],
)
def test_registry_refuses_a_wrong_folder_naming_the_fault(
    file: str, change: Callable[[str], str], message: str, tmp_path: Path
) -> None:
    folder = shipped_copy(tmp_path / "schemas")
    rewrite(folder, file, change)

    with pytest.raises(Fatal, match=message) as refused:
        FileRegistry(folder)

    assert str(folder) in refused.value.reason


def test_registry_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match=r"registry\.json cannot be read"):
        FileRegistry(tmp_path / "nowhere")


def test_codec_refuses_a_registry_without_its_records(tmp_path: Path) -> None:
    folder = shipped_copy(tmp_path / "schemas")
    registry = json.loads((folder / "registry.json").read_text())
    del registry["records"]["job"]
    (folder / "registry.json").write_text(json.dumps(registry))

    with pytest.raises(Fatal, match="no version 1 of job"):
        AvroCodec(FileRegistry(folder))


def test_codec_refuses_a_registry_that_means_other_bytes_by_its_version(tmp_path: Path) -> None:
    folder = shipped_copy(tmp_path / "schemas")
    rewrite(folder, "ping.avsc", lambda text: text.replace('"backlog"]', '"backlog", "night"]'))

    with pytest.raises(Fatal, match="version 1 of ping in the registry is not the one"):
        AvroCodec(FileRegistry(folder))


def test_codec_takes_a_registry_with_other_words_for_the_same_bytes(tmp_path: Path) -> None:
    folder = shipped_copy(tmp_path / "schemas")
    rewrite(folder, "ping.avsc", lambda text: text.replace("Whose news it is", "Our words"))

    assert AvroCodec(FileRegistry(folder)).encode_ping(PING) == AvroCodec().encode_ping(PING)
