"""Legal bytes that our own encoders never write, and how much a codec remembers of strangers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cape_stream.adapters.avro import AvroCodec, FileRegistry, framing
from cape_stream.adapters.avro.framing import Framing, remember
from cape_stream.errors import Reject
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.ping import Ping
from cape_stream.model.status import StatusKind
from tests.unit.adapters.avro.anatomy import varint
from tests.unit.adapters.avro.folders import framed
from tests.unit.adapters.avro.samples import (
    CURSORS,
    JOB,
    KEY,
    ONE_DONE,
    PING,
    SAMPLES,
    STATUS,
)

DONE_1 = varint(1) + varint(4711) + b"\x00"
"""The list of done events of `ONE_DONE`, as our encoder writes it."""


@pytest.mark.parametrize(
    "done",
    [
        varint(-1) + varint(2) + varint(4711) + b"\x00",
        b"\x82\x00" + varint(4711) + b"\x00",
        varint(1) + b"\xce\xc9\x80\x00" + b"\x00",
        varint(1) + varint(4711) + b"\x80\x00",
    ],
    ids=["block with size", "long count", "long number", "long end"],
)
def test_status_with_another_spelling_is_read(done: bytes) -> None:
    codec = AvroCodec()
    data = codec.encode_status(ONE_DONE)
    other = data.replace(DONE_1, done)
    assert other != data

    for _ in range(2):
        assert codec.decode_status(KEY, other) == ONE_DONE


def test_status_with_its_events_in_several_blocks_is_read() -> None:
    codec = AvroCodec()
    blocks = varint(1) + varint(1) + varint(-2) + varint(2) + varint(2) + varint(3) + DONE_1

    found = codec.decode_status(KEY, codec.encode_status(ONE_DONE).replace(DONE_1, blocks))

    assert found == replace(ONE_DONE, done=(1, 2, 3, 4711))


@pytest.mark.parametrize("record", ["job", "job_status"])
def test_record_with_a_token_is_read(record: str) -> None:
    codec, registry = AvroCodec(), FileRegistry()
    sample = next(each for each in SAMPLES if each.record == record)
    version = registry.version(record, 1)
    framing = Framing(registry, record, 1, version.fingerprint)
    fields = dict(framing.fields(sample.encode(codec, sample.value)))

    signed = framed(version, fields | {"token": "eyJhbGciOi"})

    assert sample.decode(codec, signed) == sample.value


def test_subject_that_its_prefix_holds_too_is_found_in_its_own_place() -> None:
    codec = AvroCodec()
    status = replace(ONE_DONE, domain="acct-7", topology="acct-7", subject="acct-7")
    data = codec.encode_status(status)

    for _ in range(3):
        assert codec.decode_status(b"acct-7", data) == status


def test_status_cut_behind_its_prefix_is_rejected_though_the_prefix_is_known() -> None:
    codec = AvroCodec()
    data = codec.encode_status(ONE_DONE)
    codec.decode_status(KEY, data)
    start = data.index(b"\x0cN14228")

    for size in range(start, len(data)):
        with pytest.raises(Reject, match=r"^truncated$"):
            codec.decode_status(KEY, data[:size])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ((b"\x0cN14228", b"\x00"), "subject is empty"),
        ((b"\x1c3-17-12345", b"\x00"), "job_id is empty"),
    ],
)
def test_job_with_an_empty_text_is_rejected(changed: tuple[bytes, bytes], reason: str) -> None:
    codec = AvroCodec()
    data = codec.encode_job(replace(JOB, job_id="3-17-123456789"[:14]))
    old, new = changed
    at = data.index(old)
    end = at + 1 + data[at] // 2
    codec.decode_job(data, "general")

    with pytest.raises(Reject, match=f"^{reason}$"):
        codec.decode_job(data[:at] + new + data[end:], "general")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"events": []}, "events is empty"),
        ({"events": "reversed"}, "events are not ascending"),
        ({"events": "doubled"}, "events are not ascending"),
        ({"attempt": 0}, "attempt is not in 1 to 2147483647: 0"),
        ({"attempt": -1}, "attempt is not in 1 to 2147483647: -1"),
        ({"attempt": 2**31}, "integer beyond int32"),
        ({"partition": 2**31}, "integer beyond int32"),
        ({"timeout_ms": 0}, "timeout_ms is not in 1 to 9223372036854775807: 0"),
        ({"partition": -1}, "partition is not in 0 to 2147483647: -1"),
        ({"epoch": -1}, "epoch is not in 0 to 9223372036854775807: -1"),
        ({"issued_ms": -1}, "issued_ms is not in 0 to 9223372036854775807: -1"),
        ({"subject": "k" * 1025}, "subject has 1025 bytes, more than 1024"),
        ({"subject": "é" * 513}, "subject has 1026 bytes, more than 1024"),
        ({"domain": ""}, "domain is empty"),
        ({"topology": ""}, "topology is empty"),
        ({"lambda_id": ""}, "lambda_id is empty"),
    ],
)
def test_job_that_nobody_may_issue_is_rejected(fields: dict[str, Any], reason: str) -> None:
    codec, registry = AvroCodec(), FileRegistry()
    version = registry.version("job", 1)
    framing = Framing(registry, "job", 1, version.fingerprint)
    good = dict(framing.fields(codec.encode_job(JOB)))
    events = {"reversed": good["events"][::-1], "doubled": good["events"][:1] * 2}
    if fields.get("events"):
        fields = {"events": events[fields["events"]]}
    codec.decode_job(codec.encode_job(JOB), "general")

    with pytest.raises(Reject) as refused:
        codec.decode_job(framed(version, good | fields), "general")

    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"attempt": 0}, "attempt is not in 1 to 2147483647: 0"),
        ({"attempt": 2**31}, "integer beyond int32"),
        ({"partition": 2**31}, "integer beyond int32"),
        ({"queued_ms": -1}, "queued_ms is not in 0 to 9223372036854775807: -1"),
        ({"done": [-1]}, "done is negative: -1"),
        ({"done": [1, -1]}, "done is negative: -1"),
        ({"outputs": [{"sequence": -1, "output": b""}]}, "output is negative: -1"),
        ({"job_id": ""}, "job_id is empty"),
    ],
)
def test_status_that_nobody_may_report_is_rejected(fields: dict[str, Any], reason: str) -> None:
    codec, registry = AvroCodec(), FileRegistry()
    version = registry.version("job_status", 1)
    framing = Framing(registry, "job_status", 1, version.fingerprint)
    good = dict(framing.fields(codec.encode_status(STATUS)))
    codec.decode_status(KEY, codec.encode_status(STATUS))

    with pytest.raises(Reject) as refused:
        codec.decode_status(KEY, framed(version, good | fields))

    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"latest": -2}, "latest is negative: -2"),
        ({"cursors": {"t": -2}}, "cursor of t is negative: -2"),
        ({"cursors": {"": 3}}, "topology is empty"),
        ({"subject": ""}, "subject is empty"),
        ({"subject": "k" * 1025}, "subject has 1025 bytes, more than 1024"),
    ],
)
def test_cursors_that_nobody_may_have_are_rejected(fields: dict[str, Any], reason: str) -> None:
    codec, registry = AvroCodec(), FileRegistry()
    good = {"subject": "N14228", "latest": 3, "cursors": {"t": 3}}
    codec.decode_cursors(codec.encode_cursors(CURSORS))

    with pytest.raises(Reject) as refused:
        codec.decode_cursors(framed(registry.version("cursor_info", 1), good | fields))

    assert refused.value.reason == reason


def test_cursors_in_a_block_that_claims_one_and_has_none_are_rejected() -> None:
    codec = AvroCodec()
    empty = codec.encode_cursors(CursorInfo("N14228", 3, {}))

    with pytest.raises(Reject, match=r"^truncated$"):
        codec.decode_cursors(empty[:-1] + varint(-1) + b"\x00")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"latest": -1}, "latest is negative: -1"),
        ({"sent_ms": -1}, "sent_ms is not in 0 to 9223372036854775807: -1"),
    ],
)
def test_ping_that_nobody_may_send_is_rejected(fields: dict[str, Any], reason: str) -> None:
    good = {"subject": "N14228", "latest": 3, "sent_ms": 0, "lane": "live"}

    with pytest.raises(Reject) as refused:
        AvroCodec().decode_ping(KEY, framed(FileRegistry().version("ping", 1), good | fields))

    assert refused.value.reason == reason


def flood_pings(codec: AvroCodec, number: int) -> None:
    ping = Ping("a", number, 1_790_000_000_000 + number)
    assert codec.decode_ping(b"a", codec.encode_ping(ping)) == ping


def flood_jobs(codec: AvroCodec, number: int) -> None:
    job = replace(JOB, domain=f"d{number}", issued_ms=1_790_000_000_000 + number)
    assert codec.decode_job(codec.encode_job(job), "general") == job


def flood_statuses(codec: AvroCodec, number: int) -> None:
    status = replace(ONE_DONE, domain=f"d{number}", kind=StatusKind.HEARTBEAT)
    assert codec.decode_status(KEY, codec.encode_status(status)) == status


def flood_cursors(codec: AvroCodec, number: int) -> None:
    info = CursorInfo("a", 1, {f"t{number}": 1})
    assert codec.decode_cursors(codec.encode_cursors(info)) == info


@pytest.mark.parametrize("flood", [flood_pings, flood_jobs, flood_statuses, flood_cursors])
def test_codec_remembers_no_more_than_its_bound(
    flood: Callable[[AvroCodec, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "_MEMORY_ENTRIES_MAX", 100)
    codec = AvroCodec()
    fixed = {name for name in vars(codec) if name.endswith("_heads")}

    for number in range(350):
        flood(codec, number)

    sizes = {
        name: len(each)
        for name, each in vars(codec).items()
        if isinstance(each, dict) and name not in fixed
    }
    assert max(sizes.values()) <= 100
    assert any(size >= 50 for size in sizes.values()), "the flood did not reach the memory"


def test_remember_starts_anew_when_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_MEMORY_ENTRIES_MAX", 3)
    memory = dict.fromkeys(range(3), "old")

    remember(memory, -1, "new")

    assert memory == {-1: "new"}


def outcome(decode: Callable[[AvroCodec, bytes], Any], codec: AvroCodec, data: bytes) -> Any:
    """What a decoder returns, or why it refuses."""
    try:
        return decode(codec, data)
    except Reject as refused:
        return refused.reason


OCTETS = (0, 1, 2, 3, 4, 12, 14, 0x7F, 0x80, 0x81, 0xFE, 0xFF)


@pytest.mark.parametrize(
    ("data", "quick", "plain"),
    [
        pytest.param(
            AvroCodec().encode_ping(PING),
            lambda codec, data: codec.decode_ping(KEY, data),
            lambda codec, data: codec._plain_ping(KEY, data),
            id="ping",
        ),
        pytest.param(
            AvroCodec().encode_ping(Ping("N14228")),
            lambda codec, data: codec.decode_ping(KEY, data),
            lambda codec, data: codec._plain_ping(KEY, data),
            id="bare ping",
        ),
        pytest.param(
            AvroCodec().encode_job(JOB),
            lambda codec, data: codec.decode_job(data, "general"),
            lambda codec, data: codec._plain_job(data, "general"),
            id="job",
        ),
        pytest.param(
            AvroCodec().encode_status(ONE_DONE),
            lambda codec, data: codec.decode_status(KEY, data),
            lambda codec, data: codec._plain_status(KEY, data),
            id="one done",
        ),
        pytest.param(
            AvroCodec().encode_status(STATUS),
            lambda codec, data: codec.decode_status(KEY, data),
            lambda codec, data: codec._plain_status(KEY, data),
            id="status",
        ),
        pytest.param(
            AvroCodec().encode_cursors(CURSORS),
            lambda codec, data: codec.decode_cursors(data),
            lambda codec, data: codec._plain_cursors(data),
            id="cursors",
        ),
    ],
)
def test_quick_path_agrees_with_the_plain_one_on_every_changed_byte(
    data: bytes,
    quick: Callable[[AvroCodec, bytes], Any],
    plain: Callable[[AvroCodec, bytes], Any],
) -> None:
    warm, cold = AvroCodec(), AvroCodec()
    quick(warm, data)

    for at in range(5, len(data)):
        for octet in OCTETS:
            changed = data[:at] + bytes([octet]) + data[at + 1 :]
            assert outcome(quick, warm, changed) == outcome(plain, cold, changed), changed
