"""BACKWARD_TRANSITIVE: the newest schema of a record reads what every earlier one has written."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError
from fastavro.utils import generate_many

from cape_stream.adapters.avro import FileRegistry, SchemaVersion
from cape_stream.shipped import shipped
from tests.unit.adapters.avro.folders import Change, add_version, hint_at, shipped_copy

RECORDS_EACH = 50
SHIPPED = FileRegistry().all()


def assert_reads(reader: SchemaVersion, writer: SchemaVersion) -> None:
    """Raise SchemaResolutionError, or fail, unless all of the writer's records can be read."""
    for record in generate_many(writer.schema, RECORDS_EACH):
        body = BytesIO()
        schemaless_writer(body, writer.schema, record)
        body.seek(0)
        found: Any = schemaless_reader(body, writer.schema, reader.schema)
        assert body.read() == b""
        assert set(found) == {field["name"] for field in reader.schema["fields"]}


def newest(versions: list[SchemaVersion], record: str) -> SchemaVersion:
    return max((each for each in versions if each.record == record), key=lambda v: v.version)


@pytest.mark.parametrize("version", SHIPPED, ids=lambda each: f"{each.record}-{each.version}")
def test_newest_schema_reads_every_version(version: SchemaVersion) -> None:
    """Of all that ship: a record may lie in a topic for as long as the topic keeps it."""
    assert_reads(newest(SHIPPED, version.record), version)


def without_default(schema: dict[str, Any]) -> None:
    hint_at(-1)(schema)
    del schema["fields"][-1]["default"]


def other_type(schema: dict[str, Any]) -> None:
    next(each for each in schema["fields"] if each["name"] == "subject")["type"] = "long"


@pytest.mark.parametrize("change", [without_default, other_type])
def test_check_refuses_a_schema_that_cannot_read_the_earlier_one(
    change: Change, tmp_path: Path
) -> None:
    """The check above can fail."""
    folder = shipped_copy(tmp_path / "schemas")
    add_version(folder, "ping", change, 70)
    registry = FileRegistry(folder)

    with pytest.raises(SchemaResolutionError):
        assert_reads(registry.version("ping", 2), registry.version("ping", 1))


def test_registry_promises_what_is_checked() -> None:
    """The word in the file is the one this module stands for."""
    registry = json.loads((shipped("schemas") / "registry.json").read_text())

    assert registry["compatibility"] == "BACKWARD_TRANSITIVE"
