"""The hand-written quick paths against fastavro, and against the plain paths beside them."""

from io import BytesIO
from typing import Any

from fastavro import schemaless_reader, schemaless_writer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cape_stream.adapters.avro import AvroCodec, FileRegistry
from cape_stream.errors import Reject
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.job import Job
from cape_stream.model.operation import AuditEntry, Operation
from cape_stream.model.ping import Ping
from cape_stream.model.status import JobStatus
from tests.property.codec_values import RECORDS, avro_fields, values

untimed = settings(deadline=None)
"""A loaded machine must not fail a test of meaning."""

REGISTRY = FileRegistry()
WARM = AvroCodec(REGISTRY)
"""Shared by all examples, so that what it remembers from one meets the next."""


def encode(codec: AvroCodec, value: Any) -> bytes:
    match value:
        case Ping():
            return codec.encode_ping(value)
        case Job():
            return codec.encode_job(value)
        case JobStatus():
            return codec.encode_status(value)
        case CursorInfo():
            return codec.encode_cursors(value)
        case DeadLetter():
            return codec.encode_dead_letter(value)
        case Operation():
            return codec.encode_operation(value)
        case AuditEntry():
            return codec.encode_audit_entry(value)
        case _:
            raise AssertionError(f"no record: {value!r}")


def decode(codec: AvroCodec, like: Any, key: bytes, data: bytes) -> Any:
    """Decode bytes as the kind of record that ``like`` is."""
    match like:
        case Ping():
            return codec.decode_ping(key, data)
        case Job():
            return codec.decode_job(data, "general")
        case JobStatus():
            return codec.decode_status(key, data)
        case CursorInfo():
            return codec.decode_cursors(data)
        case Operation():
            return codec.decode_operation(key, data)
        case AuditEntry():
            return codec.decode_audit_entry(data)
        case _:
            return codec.decode_dead_letter(data)


def decode_plainly(codec: AvroCodec, like: Any, key: bytes, data: bytes) -> Any:
    """The same by the plain path, which knows nothing of what came before."""
    match like:
        case Ping():
            return codec._plain_ping(key, data)
        case Job():
            return codec._plain_job(data, "general")
        case JobStatus():
            return codec._plain_status(key, data)
        case CursorInfo():
            return codec._plain_cursors(data)
        case Operation():
            return codec.decode_operation(key, data)
        case AuditEntry():
            return codec.decode_audit_entry(data)
        case _:
            return codec.decode_dead_letter(data)


def outcome(decoder: Any, *arguments: Any) -> Any:
    """What a decoder returns, or that it refuses. Anything else it raises fails the test."""
    try:
        return decoder(*arguments)
    except Reject:
        return Reject


def key_of(value: Any) -> bytes:
    return b"" if isinstance(value, DeadLetter | AuditEntry) else value.subject.encode()


@untimed
@given(values)
def test_encoder_writes_the_bytes_that_fastavro_writes(value: Any) -> None:
    """Twice, for the second time the codec knows the record's prefix."""
    version = REGISTRY.version(RECORDS[type(value)], 1)
    body = BytesIO()
    schemaless_writer(body, version.schema, avro_fields(value))
    expected = b"\x00" + version.schema_id.to_bytes(4, "big") + body.getvalue()

    assert encode(WARM, value) == expected
    assert encode(WARM, value) == expected


@untimed
@given(values)
def test_decoder_reads_what_fastavro_reads(value: Any) -> None:
    """Both read the record; ours gives the value back that went in, fastavro its fields."""
    data = encode(WARM, value)
    schema = REGISTRY.version(RECORDS[type(value)], 1).schema

    fields: Any = schemaless_reader(BytesIO(data[5:]), schema, None)

    assert fields == avro_fields(value)
    for _ in range(2):
        assert decode(WARM, value, key_of(value), data) == value
    assert decode_plainly(AvroCodec(REGISTRY), value, key_of(value), data) == value


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Any, bytes]:
    """A value, and its bytes with a few changed, cut out or put in."""
    value = draw(values)
    data = bytearray(encode(WARM, value))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 2))
        data[at : at + cut] = draw(
            st.sampled_from([b"", b"\x00", b"\x01", b"\x02", b"\x80", b"\x80\x00", b"\xff", b"a"])
        )
    return value, bytes(data)


@untimed
@given(damaged())
@example((Ping("a", 3), b"\x00\x00\x00\x00\x01\x82\x00a\x02\x06\x00\x00"))
def test_quick_path_accepts_nothing_that_the_plain_path_does_not(case: tuple[Any, bytes]) -> None:
    """Whatever the bytes are: the same value or a refusal, from a codec with a long memory."""
    like, data = case
    key = key_of(like)
    decode(WARM, like, key, encode(WARM, like))

    quick = outcome(decode, WARM, like, key, data)

    assert quick == outcome(decode_plainly, AvroCodec(REGISTRY), like, key, data)
    assert decode(WARM, like, key, encode(WARM, like)) == like


@untimed
@given(values, st.binary(max_size=60))
def test_decoder_refuses_or_reads_any_bytes_behind_its_header(value: Any, tail: bytes) -> None:
    """No exception but Reject crosses the port, and what is read can be written and read again."""
    header = encode(WARM, value)[:5]

    found = outcome(decode, WARM, value, key_of(value), header + tail)

    if found is not Reject:
        assert decode(WARM, value, key_of(value), encode(WARM, found)) == found


@untimed
@given(st.binary(max_size=100).filter(lambda octets: not octets.startswith(b"\x00\x00\x00")))
def test_decoder_refuses_random_bytes(octets: bytes) -> None:
    """Without a header of ours there is nothing to read."""
    for like in (Ping("a"), CursorInfo("a", 1, {})):
        assert outcome(decode, WARM, like, b"a", octets) is Reject
