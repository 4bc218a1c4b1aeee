"""Every codec: sequence ids exact to the end of int64, subjects byte for byte, the rest refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cape_stream.errors import Reject
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.event import Event
from cape_stream.model.ping import Ping
from cape_stream.model.status import EventFailure, FailureClass, StatusKind
from cape_stream.ports.codec import Codec
from tests.contract.codec_implementations import CODECS, job, status, through_ping, through_status

DATA = Path(__file__).parents[1] / "data"
INT64 = json.loads((DATA / "int64-cases.json").read_text())
ACCEPTED = [*INT64["accept"], 0]
REFUSED = [case["value"] for case in INT64["refuse"]]
KEYS = json.loads((DATA / "subject-keys.json").read_text())["keys"]

Encode = Callable[[Codec, Any], bytes]

event: Callable[..., Event] = Event
failure: Callable[..., EventFailure] = EventFailure
"""As a user's source or handler may build them, whatever the types say."""

PLACES: dict[str, Encode] = {
    "latest": lambda codec, n: codec.encode_ping(Ping("acct-7", n)),
    "sequence": lambda codec, n: codec.encode_job(job(events=[Event(n, b"")])),
    "done": lambda codec, n: codec.encode_status(status(done=(n,))),
    "output sequence": lambda codec, n: codec.encode_status(status(outputs={n: b""})),
    "failure sequence": lambda codec, n: codec.encode_status(
        status(failures=(EventFailure(n, FailureClass.BUG),))
    ),
    "cursor of t": lambda codec, n: codec.encode_cursors(CursorInfo("acct-7", 1, {"t": n})),
    "latest of cursors": lambda codec, n: codec.encode_cursors(CursorInfo("acct-7", n, {})),
}
"""Field that an error names → how a sequence id gets there."""


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    """A new codec of every implementation."""
    return CODECS[request.param]()


@pytest.mark.parametrize("number", ACCEPTED)
def test_sequence_id_is_exact_in_every_record(codec: Codec, number: int) -> None:
    """B28: also beyond what a float holds."""
    failed = EventFailure(number, FailureClass.BUG)
    report = status(done=(number,), outputs={number: b"o"}, failures=(failed,))
    info = CursorInfo("acct-7", number, {"t": number, "u": number})
    events = [Event(number, b"")]

    assert through_ping(codec, Ping("acct-7", number)).latest == number
    assert codec.decode_job(codec.encode_job(job(events=events)), "general").events == events
    assert through_status(codec, report) == report
    assert codec.decode_cursors(codec.encode_cursors(info)) == info


@pytest.mark.parametrize("field", PLACES)
@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_what_is_no_sequence_id_is_refused_naming_field_and_value(
    codec: Codec, field: str, value: Any
) -> None:
    """B28: True, 1.0 and "7" are no integers; a cursor's -1 and a ping's null mean "none"."""
    if (field == "latest" and value is None) or ("cursor" in field and value == -1):
        PLACES[field](codec, value)
        return

    with pytest.raises(Reject) as refused:
        PLACES[field](codec, value)

    assert refused.value.reason.startswith(field.removesuffix(" of cursors"))
    assert repr(value) in refused.value.reason


def key_bytes(case: dict[str, Any]) -> bytes:
    if "repeat" in case:
        return str(case["repeat"]["text"]).encode() * int(case["repeat"]["count"])
    return bytes.fromhex(case["hex"]) if "hex" in case else str(case["text"]).encode()


def is_accepted(case: dict[str, Any]) -> bool:
    """What the table leaves to our documentation is accepted up to 1,024 bytes."""
    return case["accept"] == "yes" or (case["accept"] == "doc" and len(key_bytes(case)) <= 1024)


@pytest.mark.parametrize(
    "case", [case for case in KEYS if is_accepted(case)], ids=lambda case: case["id"]
)
def test_subject_comes_back_byte_for_byte(codec: Codec, case: dict[str, Any]) -> None:
    """B17: no normalising, trimming or folding; look-alikes stay different subjects."""
    key = key_bytes(case)
    subject = key.decode()

    assert codec.decode_ping(key, codec.encode_ping(Ping(subject, 3))).subject.encode() == key
    for _ in range(2):
        report = codec.encode_status(status(subject=subject, done=(7,)))
        assert codec.decode_status(key, report).subject.encode() == key
    found = codec.decode_job(codec.encode_job(job(subject=subject)), "general")
    assert found.subject.encode() == key
    info = CursorInfo(subject, 3, {subject: 3})
    assert codec.decode_cursors(codec.encode_cursors(info)) == info


@pytest.mark.parametrize(
    "subject", ["", "k" * 1025, "é" * 513, "\ud800", 7, None, b"acct-7"], ids=ascii
)
def test_what_is_no_subject_is_refused(codec: Codec, subject: Any) -> None:
    """B17: at the source, so before anybody could disagree about its owner."""
    with pytest.raises(Reject, match=r"^subject "):
        codec.encode_ping(Ping(subject, 3))
    with pytest.raises(Reject, match=r"^subject "):
        codec.encode_job(job(subject=subject))
    with pytest.raises(Reject, match=r"^subject "):
        codec.encode_status(status(subject=subject))
    with pytest.raises(Reject, match=r"^subject "):
        codec.encode_cursors(CursorInfo(subject, 3, {"t": 3}))


@pytest.mark.parametrize(
    "case", [case for case in KEYS if not is_accepted(case)], ids=lambda case: case["id"]
)
def test_key_that_is_refused_at_the_source_is_refused_at_the_consumer(
    codec: Codec, case: dict[str, Any]
) -> None:
    """B17: also beside a value that is in order."""
    with pytest.raises(Reject, match=r"^subject "):
        codec.decode_ping(key_bytes(case), codec.encode_ping(Ping("acct-7", 3)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"job_id": ""}, "job_id is empty"),
        ({"job_id": 7}, "job_id must be text, not 7"),
        ({"domain": ""}, "domain is empty"),
        ({"topology": "\ud800"}, "topology is not valid UTF-8 text"),
        ({"lambda_id": None}, "lambda_id must be text, not None"),
        ({"partition": -1}, "partition is not in 0 to 2147483647: -1"),
        ({"partition": 2**31}, "partition is not in 0 to 2147483647: 2147483648"),
        ({"epoch": 1.0}, "epoch must be an integer, not 1.0"),
        ({"epoch": 2**63}, "epoch is not in"),
        ({"attempt": 0}, "attempt is not in 1 to 2147483647: 0"),
        ({"attempt": -1}, "attempt is not in"),
        ({"attempt": 2**31}, "attempt is not in"),
    ],
)
def test_job_and_status_are_refused_naming_the_field(
    codec: Codec, changes: dict[str, Any], reason: str
) -> None:
    """The fields that both have."""
    with pytest.raises(Reject) as job_refused:
        codec.encode_job(job(**changes))
    with pytest.raises(Reject) as status_refused:
        codec.encode_status(status(**changes))

    assert job_refused.value.reason.startswith(reason)
    assert status_refused.value.reason.startswith(reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"timeout_ms": 0}, "timeout_ms is not in 1 to"),
        ({"issued_ms": -1}, "issued_ms is not in"),
        ({"issued_ms": "now"}, "issued_ms must be an integer, not 'now'"),
        ({"lane": "fast"}, "lane must be one of live, backlog, not 'fast'"),
        ({"events": []}, "events is empty"),
        ({"events": [event(1, "text")]}, "payload must be bytes, not str"),
        ({"events": [event(1, None)]}, "payload must be bytes, not NoneType"),
        ({"events": [Event(1, b"", {"a": "\ud800"})]}, "header a is not valid UTF-8 text"),
        ({"events": [event(1, b"", {"a": 7})]}, "header a must be text, not 7"),
        ({"events": [event(1, b"", {}, {"l": "o"})]}, "input l must be bytes, not str"),
    ],
)
def test_job_is_refused_naming_the_field(
    codec: Codec, changes: dict[str, Any], reason: str
) -> None:
    """The fields that only a job has."""
    with pytest.raises(Reject) as refused:
        codec.encode_job(job(**changes))

    assert refused.value.reason.startswith(reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "results!"}, "kind must be one of results, heartbeat, handed_back"),
        ({"queued_ms": -1}, "queued_ms is not in"),
        ({"queued_ms": 1.5}, "queued_ms must be an integer, not 1.5"),
        ({"outputs": {7: "text"}}, "output must be bytes, not str"),
        ({"failures": (EventFailure(1, FailureClass.BUG, "", -1),)}, "retry_after_ms is not in"),
        (
            {"failures": (failure(1, "odd"),)},
            "unknown failure class 'odd'",
        ),
    ],
)
def test_status_is_refused_naming_the_field(
    codec: Codec, changes: dict[str, Any], reason: str
) -> None:
    """The fields that only a status has."""
    with pytest.raises(Reject) as refused:
        codec.encode_status(status(**changes))

    assert refused.value.reason.startswith(reason)


def test_kind_and_class_given_as_plain_text_are_taken(codec: Codec) -> None:
    """They are string enums, so a caller may spell them."""
    spelled = status(kind="heartbeat", failures=(failure(1, "bug"),))

    found = through_status(codec, spelled)

    assert (found.kind, found.failures[0].failure_class) == (
        StatusKind.HEARTBEAT,
        FailureClass.BUG,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"topic": ""}, "topic is empty"),
        ({"partition": -1}, "partition is not in"),
        ({"offset": -2}, "offset is not in"),
        ({"reason": ""}, "reason is empty"),
        ({"key": "text"}, "key must be bytes, not str"),
        ({"value": 7}, "value must be bytes, not int"),
    ],
)
def test_dead_letter_is_refused_naming_the_field(
    codec: Codec, changes: dict[str, Any], reason: str
) -> None:
    """What cannot be put aside is a defect of ours, and says so."""
    letter = DeadLetter("t", 1, 2, "r", None, None)

    with pytest.raises(Reject) as refused:
        codec.encode_dead_letter(replace(letter, **changes))

    assert refused.value.reason.startswith(reason)


@pytest.mark.parametrize("lane", ["", "LIVE", None])
def test_ping_with_another_lane_is_refused(codec: Codec, lane: Any) -> None:
    """There are two."""
    with pytest.raises(Reject, match=r"^lane must be one of live, backlog"):
        codec.encode_ping(Ping("acct-7", 1, 0, lane))
