"""The shipped schema files as such: each stands alone, documents every field, and is registered."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastavro import parse_schema

from cape_stream.shipped import shipped

FILES = sorted(file.name for file in shipped("schemas").iterdir() if file.name.endswith(".avsc"))
RANGE = re.compile(r"\d to |\d( [a-z]+)? or more|live for|one of six|heartbeat")
"""Every doc tells a range, or which values there are."""


def schema(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((shipped("schemas") / file).read_text())
    return content


def records(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every named type inside a schema."""
    if isinstance(node, dict):
        if str(node.get("type")) in {"record", "enum"}:
            yield node
        for part in node.values():
            yield from records(part)
    elif isinstance(node, list):
        for part in node:
            yield from records(part)


def fields(file: str) -> Iterator[tuple[str, str]]:
    for record in records(schema(file)):
        for field in record.get("fields", ()):
            yield f"{record['name']}.{field['name']}", field.get("doc", "")


def test_there_is_a_file_for_every_record() -> None:
    records = {"cursor_info", "dead_letter", "event", "job", "job_status", "ping"}
    records |= {"audit_entry", "operation"}

    assert {file.removesuffix(".avsc") for file in FILES} == records


@pytest.mark.parametrize("file", FILES)
def test_schema_stands_alone_under_our_namespace(file: str) -> None:
    parsed = parse_schema(schema(file))

    assert isinstance(parsed, dict)
    camel = "".join(word.capitalize() for word in file.removesuffix(".avsc").split("_"))
    assert parsed["name"] == f"cape_stream.{camel}"


@pytest.mark.parametrize("file", FILES)
def test_every_named_type_has_a_doc(file: str) -> None:
    assert [each["name"] for each in records(schema(file)) if not each.get("doc")] == []


@pytest.mark.parametrize("file", FILES)
def test_every_field_has_a_doc_with_its_range(file: str) -> None:
    assert [name for name, doc in fields(file) if not RANGE.search(doc)] == []


@pytest.mark.parametrize("file", FILES)
def test_every_field_of_time_names_its_unit(file: str) -> None:
    unsaid = [n for n, doc in fields(file) if n.endswith("_ms") and "milliseconds" not in doc]

    assert unsaid == []


def test_job_repeats_the_event_word_for_word() -> None:
    event = schema("event.avsc")
    del event["namespace"]

    assert event in list(records(schema("job.avsc")))


def test_ping_and_job_mean_the_same_by_a_lane() -> None:
    lanes = [
        each
        for file in ("ping.avsc", "job.avsc")
        for each in records(schema(file))
        if each["name"] == "Lane"
    ]

    assert len(lanes) == 2
    assert lanes[0] == lanes[1]


def test_registry_names_every_file_as_its_records_newest_version() -> None:
    records = json.loads((shipped("schemas") / "registry.json").read_text())["records"]

    assert sorted(versions[-1]["file"] for versions in records.values()) == FILES
    for record, versions in records.items():
        assert versions[-1]["file"] == f"{record}.avsc"
        assert [each["version"] for each in versions] == list(range(1, len(versions) + 1))


def test_registry_uses_no_id_twice() -> None:
    records = json.loads((shipped("schemas") / "registry.json").read_text())["records"]
    ids = [each["id"] for versions in records.values() for each in versions]

    assert len(set(ids)) == len(ids)
