"""Every codec: what goes in comes out, and what is no record of ours is refused with a reason."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cape_stream.errors import Reject
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.event import Event
from cape_stream.model.job import BACKLOG
from cape_stream.model.operation import AuditEntry, Outcome, Verb
from cape_stream.model.ping import Ping
from cape_stream.model.status import EventFailure, FailureClass, StatusKind
from cape_stream.ports.codec import Codec
from tests.contract.codec_implementations import (
    CODECS,
    job,
    operation,
    status,
    through_ping,
    through_status,
)

SEQUENCE_MAX = 2**63 - 1
EDGES = (0, 1, 63, 64, 8191, 8192, 2**20, 2**21, 2**31 - 1, 2**31, SEQUENCE_MAX - 1, SEQUENCE_MAX)


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    """A new codec of every implementation."""
    return CODECS[request.param]()


@pytest.mark.parametrize(
    "ping",
    [
        Ping("acct-7"),
        Ping("acct-7", 0),
        Ping("acct-7", 12, 1_790_000_000_123, BACKLOG),
        Ping("k" * 1024, SEQUENCE_MAX, SEQUENCE_MAX),
    ],
    ids=["bare", "zero", "full", "largest"],
)
def test_ping_comes_back_as_it_was(codec: Codec, ping: Ping) -> None:
    """Twice, for the second time an implementation may take another way."""
    assert through_ping(codec, ping) == ping
    assert through_ping(codec, ping) == ping


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lane": BACKLOG},
        {"subject": "é" * 512, "job_id": "j" * 9_000},
        {"domain": "d" * 63, "topology": "t" * 64, "lambda_id": "l" * 249},
        {"partition": 2**31 - 1, "epoch": SEQUENCE_MAX, "attempt": 2**31 - 1},
        {"issued_ms": SEQUENCE_MAX, "timeout_ms": SEQUENCE_MAX},
        {"issued_ms": 0, "timeout_ms": 1},
        {"events": [Event(0, b"")]},
        {"events": [Event(1, b"p" * 64, {"a": "é", "": ""}, {"parse": b"\x00\xff"})]},
        {"events": [Event(1, b"", {"a": "b"}), Event(2, b"", {}, {"parse": b""})]},
        {"events": [Event(edge, b"p" * (edge % 20_000)) for edge in EDGES]},
        {"events": [Event(sequence, b"p") for sequence in range(10_000)]},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_job_comes_back_as_it_was(codec: Codec, changes: dict[str, Any]) -> None:
    """The queue is not on the wire: the topic says it."""
    sent = job(**changes)

    for queue in ("general", "bulk"):
        assert codec.decode_job(codec.encode_job(sent), queue) == replace(sent, queue=queue)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kind": StatusKind.HEARTBEAT},
        {"kind": StatusKind.HANDED_BACK, "queued_ms": 5_000_000},
        {"done": (7,)},
        {"done": (7, 8), "queued_ms": 63},
        {"done": (7,), "outputs": {7: b"out"}, "queued_ms": 64},
        {"done": EDGES, "outputs": dict.fromkeys(EDGES, b"")},
        {"failures": (EventFailure(8, FailureClass.BUG, "é" * 300, SEQUENCE_MAX),)},
        {
            "done": (7,),
            "failures": tuple(EventFailure(9, each) for each in FailureClass),
        },
        {"subject": "k" * 64, "job_id": "j" * 64, "attempt": 64},
        {"subject": "d", "epoch": SEQUENCE_MAX, "attempt": 2**31 - 1, "job_id": "j" * 9_000},
        {"domain": "acct-7", "topology": "acct-7", "lambda_id": "acct-7"},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_status_comes_back_as_it_was(codec: Codec, changes: dict[str, Any]) -> None:
    """Twice, for the second time an implementation may take another way."""
    sent = status(**changes)

    assert through_status(codec, sent) == sent
    assert through_status(codec, sent) == sent


@pytest.mark.parametrize(
    "info",
    [
        CursorInfo("acct-7", -1, {}),
        CursorInfo("acct-7", 0, {"t": -1}),
        CursorInfo("é" * 512, SEQUENCE_MAX, {f"t{edge}": edge for edge in EDGES}),
        CursorInfo("acct-7", 5, {"t" * 64: 5, "é": 4, "t": 3}),
        CursorInfo("acct-7", 5, {f"t{number}": number for number in range(9_000)}),
    ],
    ids=["none", "before the first", "edges", "names", "many"],
)
def test_cursors_come_back_as_they_were(codec: Codec, info: CursorInfo) -> None:
    """Twice, for the second time an implementation may take another way."""
    for _ in range(2):
        assert codec.decode_cursors(codec.encode_cursors(info)) == info


@pytest.mark.parametrize(
    "letter",
    [
        DeadLetter("app.d.pings", 0, 0, "truncated", b"acct-7", b"\x00"),
        DeadLetter("t", 2**31 - 1, SEQUENCE_MAX, "é", b"", b""),
        DeadLetter("t", 1, -1, "never got in", None, None),
        DeadLetter("t", 1, 2, "r", bytes(range(256)), bytes(range(256)) * 4_000),
    ],
    ids=["usual", "largest", "null", "any bytes"],
)
def test_dead_letter_comes_back_as_it_was(codec: Codec, letter: DeadLetter) -> None:
    """Above all its key and value, byte for byte, and null apart from empty."""
    assert codec.decode_dead_letter(codec.encode_dead_letter(letter)) == letter


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"subject": None, "sequence": None, "why": "", "issued_ms": 0},
        {"sequence": -1, "subject": "é" * 512},
        *({"verb": verb} for verb in Verb),
        {"sequence": SEQUENCE_MAX, "who": "é", "why": "w" * 9_000},
    ],
    ids=lambda changes: ",".join(map(str, changes.values()))[:30] or "plain",
)
@pytest.mark.parametrize("outcome", Outcome)
def test_order_and_what_became_of_it_come_back(
    codec: Codec, changes: dict[str, Any], outcome: Outcome
) -> None:
    order = operation(**changes)
    entry = AuditEntry(order, 2**31 - 1, outcome, "cursor none → 3", SEQUENCE_MAX)

    key = (order.subject or "t").encode()
    assert codec.decode_operation(key, codec.encode_operation(order)) == order
    assert codec.decode_audit_entry(codec.encode_audit_entry(entry)) == entry


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"operation_id": ""}, "operation_id is empty"),
        ({"verb": "explode"}, "verb must be one of pause, drain"),
        ({"domain": ""}, "domain is empty"),
        ({"topology": 7}, "topology must be text"),
        ({"subject": ""}, "subject is empty"),
        ({"sequence": -2}, "sequence is negative: -2"),
        ({"sequence": True}, "sequence must be an integer, not True"),
        ({"who": ""}, "who is empty"),
        ({"why": None}, "why must be text"),
        ({"issued_ms": -1}, "issued_ms is not in"),
    ],
)
def test_order_that_is_none_is_refused_naming_the_field(
    codec: Codec, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Reject) as refused:
        codec.encode_operation(operation(**changes))

    assert refused.value.reason.startswith(reason)


def test_order_under_another_subjects_key_is_refused(codec: Codec) -> None:
    with pytest.raises(Reject, match=r"^key differs from subject$"):
        codec.decode_operation(b"acct-8", codec.encode_operation(operation()))


def test_error_text_is_cut_and_mended_not_refused(codec: Codec) -> None:
    """It is foreign text for people: a status must not be lost for it."""
    failure = EventFailure(8, FailureClass.BUG, "\ud800" + "x" * 400)

    [found] = through_status(codec, status(failures=(failure,))).failures

    assert found == EventFailure(8, FailureClass.BUG, "?" + "x" * 299)


@pytest.mark.parametrize("key", [b"acct-8", b"acct-", b"acct-77", b"ACCT-7", b"x" * 70])
def test_key_of_another_subject_is_refused(codec: Codec, key: bytes) -> None:
    """Also where another record of the same task has been read just before."""
    ping, report = codec.encode_ping(Ping("acct-7", 3)), codec.encode_status(status(done=(7,)))
    codec.decode_ping(b"acct-7", ping)
    codec.decode_status(b"acct-7", report)

    with pytest.raises(Reject, match=r"^key differs from subject$"):
        codec.decode_ping(key, ping)
    with pytest.raises(Reject, match=r"^key differs from subject$"):
        codec.decode_status(key, report)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "record has no key"),
        (b"", "subject is empty"),
        (b"\x85\xff\x00", "subject is not UTF-8: invalid start byte at 0"),
        (b"k" * 1025, "subject has 1025 bytes, more than 1024"),
    ],
)
def test_key_that_is_no_subject_is_refused(codec: Codec, key: bytes | None, reason: str) -> None:
    """B30: a null key is nobody's."""
    for decode, data in (
        (codec.decode_ping, codec.encode_ping(Ping("acct-7", 3))),
        (codec.decode_status, codec.encode_status(status(done=(7,)))),
    ):
        with pytest.raises(Reject) as refused:
            decode(key, data)
        assert refused.value.reason == reason


@pytest.mark.parametrize("key", [b"acct-7", None])
def test_null_value_is_refused(codec: Codec, key: bytes | None) -> None:
    """B30: and is not taken for text or for an empty record."""
    for decode in (codec.decode_ping, codec.decode_status):
        with pytest.raises(Reject, match=r"^null value$"):
            decode(key, None)
    for decode_value in (codec.decode_cursors, codec.decode_dead_letter):
        with pytest.raises(Reject, match=r"^null value$"):
            decode_value(None)
    with pytest.raises(Reject, match=r"^null value$"):
        codec.decode_job(None, "general")


def test_record_of_another_kind_is_refused_by_every_decoder(codec: Codec) -> None:
    """Whoever writes to the wrong topic is told what came and what was expected."""
    decoders: dict[str, Callable[[bytes], object]] = {
        "ping": lambda data: codec.decode_ping(b"acct-7", data),
        "job": lambda data: codec.decode_job(data, "general"),
        "job_status": lambda data: codec.decode_status(b"acct-7", data),
        "cursor_info": codec.decode_cursors,
        "dead_letter": codec.decode_dead_letter,
        "operation": lambda data: codec.decode_operation(b"acct-7", data),
        "audit_entry": codec.decode_audit_entry,
    }
    records = {
        "ping": codec.encode_ping(Ping("acct-7")),
        "job": codec.encode_job(job()),
        "job_status": codec.encode_status(status()),
        "cursor_info": codec.encode_cursors(CursorInfo("acct-7", 3, {"t": 3})),
        "dead_letter": codec.encode_dead_letter(DeadLetter("t", 1, 2, "r", None, None)),
        "operation": codec.encode_operation(operation()),
        "audit_entry": codec.encode_audit_entry(
            AuditEntry(operation(), 3, Outcome.APPLIED, "done", 9)
        ),
    }

    for expected, decode in decoders.items():
        for came, data in records.items():
            if came != expected:
                with pytest.raises(Reject, match=f"{came}, expected {expected}"):
                    decode(data)
