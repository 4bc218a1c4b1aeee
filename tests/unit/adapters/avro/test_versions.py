"""B26: old and new writers and readers of every record understand one another during a deploy."""

from pathlib import Path
from typing import Any

import pytest

from cape_stream.adapters.avro import AvroCodec, FileRegistry
from cape_stream.adapters.avro.framing import Framing
from cape_stream.errors import Reject
from cape_stream.model.status import FailureClass
from tests.unit.adapters.avro.folders import Change, add_version, framed, hint_at, shipped_copy
from tests.unit.adapters.avro.samples import KEY, SAMPLES, STATUS, Sample

NEW_ID = 70
PLACES = pytest.mark.parametrize("place", [-1, 0, 1, 2], ids=["appended", "first", "2nd", "3rd"])
EVERY_SAMPLE = pytest.mark.parametrize("sample", SAMPLES, ids=str)


def registry_with(folder: Path, record: str, change: Change) -> FileRegistry:
    shipped_copy(folder / "schemas")
    add_version(folder / "schemas", record, change, NEW_ID)
    return FileRegistry(folder / "schemas")


def new_reader(registry: FileRegistry, record: str) -> Framing:
    """The next release's way of reading: the same code, tied to version 2."""
    return Framing(registry, record, 2, registry.version(record, 2).fingerprint)


def as_new_writer_writes(registry: FileRegistry, sample: Sample, **new: Any) -> bytes:
    """A record of version 2 with the sample's own content."""
    codec = AvroCodec(registry)
    old = Framing(registry, sample.record, 1, registry.version(sample.record, 1).fingerprint)
    fields = dict(old.fields(sample.encode(codec, sample.value)))
    return framed(registry.version(sample.record, 2), fields | new)


@EVERY_SAMPLE
@PLACES
@pytest.mark.parametrize("hint", [None, "left"])
def test_old_reader_takes_a_record_of_a_new_writer(
    sample: Sample, place: int, hint: str | None, tmp_path: Path
) -> None:
    registry = registry_with(tmp_path, sample.record, hint_at(place))
    data = as_new_writer_writes(registry, sample, hint=hint)

    assert sample.decode(AvroCodec(registry), data) == sample.value


@EVERY_SAMPLE
@PLACES
def test_new_reader_takes_a_record_of_an_old_writer(
    sample: Sample, place: int, tmp_path: Path
) -> None:
    registry = registry_with(tmp_path, sample.record, hint_at(place))
    data = sample.encode(AvroCodec(registry), sample.value)

    fields = new_reader(registry, sample.record).fields(data)

    assert fields["hint"] is None
    assert data == framed(
        registry.version(sample.record, 1),
        {name: value for name, value in fields.items() if name != "hint"},
    )


@EVERY_SAMPLE
@PLACES
def test_new_reader_takes_a_record_of_a_new_writer(
    sample: Sample, place: int, tmp_path: Path
) -> None:
    registry = registry_with(tmp_path, sample.record, hint_at(place))
    data = as_new_writer_writes(registry, sample, hint="left")

    assert new_reader(registry, sample.record).fields(data)["hint"] == "left"


@EVERY_SAMPLE
def test_writer_writes_its_own_version_also_where_a_newer_one_is_known(
    sample: Sample, tmp_path: Path
) -> None:
    registry = registry_with(tmp_path, sample.record, hint_at(-1))

    data = sample.encode(AvroCodec(registry), sample.value)

    assert data == sample.encode(AvroCodec(), sample.value)


@EVERY_SAMPLE
def test_reader_meets_a_version_that_came_while_it_ran(sample: Sample, tmp_path: Path) -> None:
    codec = AvroCodec(FileRegistry(shipped_copy(tmp_path / "schemas")))
    later = registry_with(tmp_path / "later", sample.record, hint_at(-1))
    data = as_new_writer_writes(later, sample, hint="left")
    with pytest.raises(Reject, match=f"^unknown schema id {NEW_ID}$"):
        sample.decode(codec, data)

    add_version(tmp_path / "schemas", sample.record, hint_at(-1), NEW_ID)

    assert sample.decode(codec, data) == sample.value


@EVERY_SAMPLE
def test_reader_rejects_bad_bytes_of_another_version(sample: Sample, tmp_path: Path) -> None:
    registry = registry_with(tmp_path, sample.record, hint_at(-1))
    codec = AvroCodec(registry)
    good = as_new_writer_writes(registry, sample, hint="left")

    for size in range(5, len(good)):
        with pytest.raises(Reject, match=r"^truncated$"):
            sample.decode(codec, good[:size])
    with pytest.raises(Reject, match=r"^trailing bytes$"):
        sample.decode(codec, good + b"\x00")
    with pytest.raises(Reject, match=r"^varint longer than 10 bytes$"):
        sample.decode(codec, good[:5] + b"\xff" * 10 + b"\x01" + good[5:])


def test_reader_takes_a_failure_class_it_does_not_know_for_transient(tmp_path: Path) -> None:
    def change(schema: dict[str, Any]) -> None:
        failures = next(each for each in schema["fields"] if each["name"] == "failures")
        failures["type"]["items"]["fields"][1]["type"]["symbols"].append("cosmic")

    registry = registry_with(tmp_path, "job_status", change)
    failure = {"sequence": 1, "failure_class": "cosmic", "error": "ray", "retry_after_ms": None}
    sample = next(each for each in SAMPLES if each.record == "job_status")
    data = as_new_writer_writes(registry, sample, failures=[failure])

    status = AvroCodec(registry).decode_status(KEY, data)

    assert [each.failure_class for each in status.failures] == [FailureClass.TRANSIENT]
    assert status.done == STATUS.done


def test_reader_rejects_a_status_kind_it_does_not_know(tmp_path: Path) -> None:
    def change(schema: dict[str, Any]) -> None:
        kind = next(each for each in schema["fields"] if each["name"] == "kind")
        kind["type"]["symbols"].append("postponed")

    registry = registry_with(tmp_path, "job_status", change)
    sample = next(each for each in SAMPLES if each.record == "job_status")
    data = as_new_writer_writes(registry, sample, kind="postponed")

    with pytest.raises(Reject, match=f"^schema id {NEW_ID} does not resolve to job_status"):
        AvroCodec(registry).decode_status(KEY, data)


def test_reader_rejects_a_version_without_a_field_it_needs(tmp_path: Path) -> None:
    def change(schema: dict[str, Any]) -> None:
        schema["fields"] = [each for each in schema["fields"] if each["name"] != "subject"]

    registry = registry_with(tmp_path, "ping", change)
    fields = {"latest": 1, "sent_ms": 0, "lane": "live"}

    with pytest.raises(Reject, match=f"^schema id {NEW_ID} does not resolve to ping"):
        AvroCodec(registry).decode_ping(KEY, framed(registry.version("ping", 2), fields))
