"""B25: cut, padded and foreign bytes of every record end as a Reject with a stable reason."""

import json
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.errors import Reject
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.shipped import shipped
from tests.unit.adapters.avro.anatomy import Part, parts, varint
from tests.unit.adapters.avro.samples import SAMPLES, Sample, data_file

MUTATIONS: list[dict[str, Any]] = data_file("avro-mutations.json")["mutations"]

REASONS = {
    "zero-bytes": "truncated",
    "magic-only": "truncated",
    "header-cut": "truncated",
    "header-no-body": "truncated",
    "wrong-magic": "bad magic byte",
    "unknown-schema-id": "unknown schema id 2147483647",
    "cut-last-byte": "truncated",
    "cut-half": "truncated",
    "trailing-byte": "trailing bytes",
    "two-records": "trailing bytes",
    "string-length-2^60": "truncated",
    "string-length-negative": "negative length",
    "overlong-varint": "varint longer than 10 bytes",
    "bad-utf8": "text is not UTF-8",
    "union-index-9": "bad union index",
    "json-text": "bad magic byte",
    "container-file": "bad magic byte",
    "gzip": "bad magic byte",
    "random-1MB": "bad magic byte",
}
FOREIGN = {
    "ping": "foreign schema id 4 (job_status, expected ping)",
    "job": "foreign schema id 4 (job_status, expected job)",
    "job_status": "foreign schema id 1 (ping, expected job_status)",
    "cursor_info": "foreign schema id 4 (job_status, expected cursor_info)",
    "dead_letter": "foreign schema id 4 (job_status, expected dead_letter)",
    "operation": "foreign schema id 4 (job_status, expected operation)",
    "audit_entry": "foreign schema id 4 (job_status, expected audit_entry)",
}
WITHOUT_UNION = {"cursor_info"}
"""Records in which `union-index-9` has nothing to change."""
CLAIMED_BYTES_MAX = 50_000
"""What refusing a few hundred bytes may allocate, whatever they claim."""

CASES = [
    pytest.param(sample, mutation, id=f"{sample}-{mutation['id']}")
    for sample in SAMPLES
    for mutation in MUTATIONS
    if not (mutation["id"] == "union-index-9" and sample.record in WITHOUT_UNION)
]


def dissect(sample: Sample, body: bytes) -> list[Part]:
    schema = json.loads((shipped("schemas") / f"{sample.record}.avsc").read_text())
    return list(parts(schema, body))


def replace_part(
    sample: Sample, good: bytes, kind: str, octets: bytes, *, with_length: bool = False
) -> bytes:
    """Put other bytes in the place of the first part of a kind, and of the length before it."""
    head, body = good[:5], good[5:]
    found = dissect(sample, body)
    place = next(place for place, part in enumerate(found) if part.kind == kind)
    start = found[place].start
    if with_length:
        start, octets = found[place - 1].start, varint(len(octets)) + octets
    return head + body[:start] + octets + body[found[place].end :]


def set_schema_id(good: bytes, schema_id: int) -> bytes:
    return good[:1] + schema_id.to_bytes(4, "big") + good[5:]


OPERATIONS: dict[str, Callable[[Sample, bytes, bytes, dict[str, Any]], bytes]] = {
    "replace_all": lambda sample, good, octets, row: row.get("utf8", "").encode() or octets,
    "keep_header_drop_body": lambda sample, good, octets, row: good[:5],
    "set_byte": lambda sample, good, octets, row: (
        good[: row["at"]] + octets + good[row["at"] + 1 :]
    ),
    "set_schema_id": lambda sample, good, octets, row: set_schema_id(good, row["value"]),
    "set_schema_id_to": lambda sample, good, octets, row: set_schema_id(
        good, 1 if sample.record == "job_status" else 4
    ),
    "drop_last": lambda sample, good, octets, row: good[: -row["count"]],
    "drop_last_half": lambda sample, good, octets, row: good[: len(good) // 2],
    "append": lambda sample, good, octets, row: good + octets,
    "append_copy_of_body": lambda sample, good, octets, row: good + good[5:],
    "set_first_string_length_varint": lambda sample, good, octets, row: replace_part(
        sample, good, "string-length", octets
    ),
    "set_first_long_varint": lambda sample, good, octets, row: replace_part(
        sample, good, "long", octets
    ),
    "set_first_union_index_varint": lambda sample, good, octets, row: replace_part(
        sample, good, "union", octets
    ),
    "set_first_string_bytes": lambda sample, good, octets, row: replace_part(
        sample, good, "string", octets, with_length=True
    ),
    "random": lambda sample, good, octets, row: random.Random(row["seed"]).randbytes(row["bytes"]),
}


def mutate(sample: Sample, good: bytes, mutation: dict[str, Any]) -> bytes:
    """Apply a row of the table to valid bytes."""
    octets = bytes.fromhex(mutation.get("hex", ""))
    return OPERATIONS[mutation["op"]](sample, good, octets, mutation)


@pytest.mark.parametrize(("sample", "mutation"), CASES)
def test_codec_rejects_a_mutation_and_reads_the_next_record(
    sample: Sample, mutation: dict[str, Any]
) -> None:
    codec = AvroCodec()
    good = sample.encode(codec, sample.value)
    bad = mutate(sample, good, mutation)
    assert sample.decode(codec, good) == sample.value

    with pytest.raises(Reject) as refused:
        sample.decode(codec, bad)

    assert (
        refused.value.reason
        == {**REASONS, "other-known-schema": FOREIGN[sample.record]}[mutation["id"]]
    )
    assert sample.decode(codec, good) == sample.value


@pytest.mark.parametrize(("sample", "mutation"), CASES)
def test_dead_letter_keeps_a_mutation_unchanged(sample: Sample, mutation: dict[str, Any]) -> None:
    codec = AvroCodec()
    bad = mutate(sample, sample.encode(codec, sample.value), mutation)
    letter = DeadLetter("t", 1, 2, "why", b"\xff key", bad)

    assert codec.decode_dead_letter(codec.encode_dead_letter(letter)) == letter


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("claimed", [2**60, 2**31, 10**7, -(2**60), 2**63 - 1, -(2**63)])
def test_codec_allocates_nothing_by_a_claimed_length(sample: Sample, claimed: int) -> None:
    codec = AvroCodec()
    good = sample.encode(codec, sample.value)
    kinds = {part.kind for part in dissect(sample, good[5:])}
    claiming = sorted(kind for kind in kinds if kind.endswith(("-length", "-count")))
    bad = [replace_part(sample, good, kind, varint(claimed)) for kind in claiming]
    sample.decode(codec, good)
    assert bad

    tracemalloc.start()
    try:
        for each in bad:
            with pytest.raises(Reject):
                sample.decode(codec, each)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < CLAIMED_BYTES_MAX


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_codec_rejects_every_cut(sample: Sample) -> None:
    codec = AvroCodec()
    good = sample.encode(codec, sample.value)

    for size in range(len(good)):
        with pytest.raises(Reject, match=r"^truncated$"):
            sample.decode(codec, good[:size])


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_codec_rejects_a_null_value(sample: Sample) -> None:
    with pytest.raises(Reject, match=r"^null value$"):
        sample.decode(AvroCodec(), None)
