"""Which schema id stands for which schema: a folder with ``registry.json`` and the schema files.

The folder that ships with the package is the default. A rolling deploy that brings a new version
puts one folder where all members see it, brings the new files there first, and then the first
writer: a member that meets an id it does not know looks into the folder again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fastavro.schema import SchemaParseException, UnknownType, fingerprint, parse_schema
from fastavro.schema import to_parsing_canonical_form as canonical_form

from cape_stream.adapters.avro.strict import Schema, named_types
from cape_stream.errors import Fatal
from cape_stream.shipped import shipped

REGISTRY_FILE = "registry.json"
SCHEMA_ID_MAX = 2**32 - 1


@dataclass(slots=True, frozen=True)
class SchemaVersion:
    """One version of one record's schema."""

    schema_id: int
    """Its number in the framing of every record; 1 to 2^32 - 1."""
    record: str
    """Which record it describes, such as ``job_status``."""
    version: int
    """1 for the record's first schema, then growing."""
    schema: Schema
    """As fastavro parsed it."""
    names: Mapping[str, Schema]
    """Full name → definition, of every named type in it."""
    fingerprint: str
    """SHA-256 of its canonical form: the same for schemas with the same bytes on the wire."""


class FileRegistry:
    """The schemas of one folder. Safe to share by threads."""

    def __init__(self, folder: Traversable | Path | None = None) -> None:
        """Read the folder; None means the one that ships with the package.

        Raises:
            Fatal: a file is missing or wrong; the message names it.
        """
        self._folder = shipped("schemas") if folder is None else folder
        self._text = self._read(REGISTRY_FILE)
        self._versions = self._load(self._text)

    def find(self, schema_id: int) -> SchemaVersion | None:
        """Return the schema with that id, or None if the folder does not name it, even now."""
        found = self._versions.get(schema_id)
        return found if found is not None else self._look_again().get(schema_id)

    def version(self, record: str, version: int) -> SchemaVersion:
        """Return that version of a record's schema. Raises Fatal when there is none."""
        for each in self._versions.values():
            if each.record == record and each.version == version:
                return each
        raise Fatal(f"{self._folder}: {REGISTRY_FILE} names no version {version} of {record}")

    def all(self) -> list[SchemaVersion]:
        """Return every schema, by id."""
        return [version for _, version in sorted(self._versions.items())]

    def _look_again(self) -> Mapping[int, SchemaVersion]:
        try:
            text = self._read(REGISTRY_FILE)
            if text != self._text:
                self._versions = self._load(text)
                self._text = text
        except Fatal:
            pass  # half written: what we had still stands, and the next unknown id looks again
        return self._versions

    def _load(self, text: str) -> dict[int, SchemaVersion]:
        try:
            entries = [
                (entry["id"], record, entry["version"], entry["file"])
                for record, entries in json.loads(text)["records"].items()
                for entry in entries
            ]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Fatal(f"{self._folder}: {REGISTRY_FILE} is not a registry: {error!r}") from error
        versions: dict[int, SchemaVersion] = {}
        for schema_id, record, version, file in entries:
            if schema_id in versions or not 0 < schema_id <= SCHEMA_ID_MAX:
                raise Fatal(f"{self._folder}: {REGISTRY_FILE} cannot use schema id {schema_id}")
            schema = self._schema(file)
            print_ = fingerprint(canonical_form(schema), "SHA-256")
            versions[schema_id] = SchemaVersion(
                schema_id, record, version, schema, named_types(schema), print_
            )
        return versions

    def _schema(self, file: str) -> Any:
        try:
            return parse_schema(json.loads(self._read(file)))
        except (ValueError, LookupError, SchemaParseException, UnknownType) as error:
            raise Fatal(f"{self._folder}: {file} is not an Avro schema: {error!r}") from error

    def _read(self, file: str) -> str:
        try:
            return self._folder.joinpath(file).read_text(encoding="utf-8")
        except OSError as error:
            raise Fatal(f"{self._folder}: {file} cannot be read: {error!r}") from error
