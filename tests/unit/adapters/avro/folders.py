"""Registry folders for tests: the shipped one, copied, and changed as a later release would."""

import json
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from fastavro import schemaless_writer

from cape_stream.adapters.avro import SchemaVersion
from cape_stream.shipped import shipped

Change = Callable[[dict[str, Any]], None]


def shipped_copy(folder: Path) -> Path:
    """Copy the shipped registry, so that a test may change it."""
    shutil.copytree(str(shipped("schemas")), folder)
    return folder


def add_version(folder: Path, record: str, change: Change, schema_id: int) -> None:
    """Add a next version of a record, as the registry's own text says it is done."""
    registry = json.loads((folder / "registry.json").read_text())
    versions = registry["records"][record]
    schema = json.loads((folder / f"{record}.avsc").read_text())
    old_file = f"history/{record}.v{versions[-1]['version']}.avsc"
    (folder / "history").mkdir(exist_ok=True)
    (folder / f"{record}.avsc").rename(folder / old_file)
    change(schema)
    (folder / f"{record}.avsc").write_text(json.dumps(schema))
    versions[-1]["file"] = old_file
    number = versions[-1]["version"] + 1
    versions.append({"version": number, "id": schema_id, "file": f"{record}.avsc"})
    (folder / "registry.json").write_text(json.dumps(registry))


def hint_at(place: int) -> Change:
    """Insert the field `hint`, null or text, at a place among the fields; -1 appends it."""
    hint = {"name": "hint", "type": ["null", "string"], "default": None, "doc": "New in v2."}

    def change(schema: dict[str, Any]) -> None:
        fields = schema["fields"]
        fields.insert(place if place >= 0 else len(fields), hint)

    return change


def framed(version: SchemaVersion, fields: dict[str, Any]) -> bytes:
    """What a writer of that version puts on the wire, by fastavro."""
    body = BytesIO()
    schemaless_writer(body, version.schema, fields)
    return b"\x00" + version.schema_id.to_bytes(4, "big") + body.getvalue()
