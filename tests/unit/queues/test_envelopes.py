"""B32, B33, B35: what S3 and SNS send, in every form."""

import json
from pathlib import Path
from typing import Any

import pytest

from cape_stream.errors import Reject
from cape_stream.queues.contract import Decoded, Unhandled
from cape_stream.queues.envelopes import decoded_key, moment_ms, open_document
from cape_stream.queues.messages import file_scan, ses_events, ses_reputation

DATA = Path(__file__).parents[2] / "data" / "aws"


def read(name: str) -> str:
    return (DATA / name).read_text()


def wrapped(body: str, **changes: Any) -> str:
    envelope = {
        "Type": "Notification",
        "TopicArn": "arn:aws:sns:us-east-1:111122223333:topic",
        "Message": body,
    }
    return json.dumps({**envelope, **changes})


def unwrapped(name: str) -> str:
    inner: str = json.loads(read(name))["Message"]
    return inner


def test_s3_event_is_the_same_bare_and_wrapped() -> None:
    bare = file_scan.CONTRACT.decode(read("s3-object-created.json"))

    assert bare == file_scan.CONTRACT.decode(read("s3-via-sns.json"))
    assert isinstance(bare, Decoded)
    (found,) = bare.value
    assert (found.bucket, found.key, found.size) == ("example-uploads", "in/report.pdf", 20_480)


def test_s3_test_event_is_known_for_what_it_is() -> None:
    decoded = file_scan.CONTRACT.decode(read("s3-test-event.json"))

    assert isinstance(decoded, Decoded)
    assert decoded.label == file_scan.TEST_EVENT


def test_s3_event_with_two_records_gives_both_the_empty_object_too() -> None:
    decoded = file_scan.CONTRACT.decode(read("s3-two-records.json"))

    assert isinstance(decoded, Decoded)
    assert [(each.key, each.size) for each in decoded.value] == [
        ("in/first.txt", 0),
        ("in/second.bin", 7_340_032),
    ]


def test_s3_key_is_decoded_once_and_exactly() -> None:
    decoded = file_scan.CONTRACT.decode(read("s3-url-encoded-key.json"))

    assert isinstance(decoded, Decoded)
    assert decoded.value[0].key == "reports/2026 plan + notes (v1)/naïve café.pdf"


@pytest.mark.parametrize(
    ("spelled", "key"),
    [("a+b", "a b"), ("a%2Bb", "a+b"), ("100%25", "100%"), ("%2525", "%25"), ("a/b", "a/b")],
)
def test_key_with_space_plus_and_percent(spelled: str, key: str) -> None:
    assert decoded_key(spelled) == key


def test_key_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(Reject, match="does not decode"):
        decoded_key("a%FFb")


def test_event_bridge_spells_keys_as_they_are() -> None:
    event = {
        "source": "aws.s3",
        "detail-type": "Object Created",
        "detail": {
            "bucket": {"name": "b"},
            "object": {"key": "a+b %2B.txt", "size": 3, "etag": "e", "sequencer": "01"},
        },
    }

    decoded = file_scan.CONTRACT.decode(json.dumps(event))

    assert isinstance(decoded, Decoded)
    assert decoded.value[0].key == "a+b %2B.txt"


def test_only_created_objects_are_scanned() -> None:
    removed = {"Records": [{"eventName": "ObjectRemoved:Delete", "s3": {}}]}

    assert file_scan.CONTRACT.decode(json.dumps(removed)) == Decoded(file_scan.OBJECTS, ())


@pytest.mark.parametrize(
    "document",
    [
        {"Message": "{}", "kind": "mine"},
        {"Type": "Notification", "Message": "{}"},
        {"Type": "SubscriptionConfirmation", "TopicArn": "a", "Message": "{}"},
        {"TopicArn": "a", "Message": "{}"},
    ],
)
def test_field_called_message_is_no_envelope(document: dict[str, str]) -> None:
    assert open_document(json.dumps(document)) == document


def test_envelope_is_opened_once() -> None:
    twice = wrapped(wrapped("{}"))

    assert open_document(twice)["Type"] == "Notification"


@pytest.mark.parametrize(
    "body",
    ["", "[]", "null", "{", "\ud800", '"text"', "1", wrapped("not json"), wrapped("{}", Message=3)],
)
def test_body_that_is_no_object_is_a_value_and_no_error(body: str) -> None:
    for contract in (file_scan.CONTRACT, ses_events.CONTRACT, ses_reputation.CONTRACT):
        decoded = contract.decode(body)
        assert isinstance(decoded, Unhandled)
        assert decoded.label == "undecodable"


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    decoded = file_scan.CONTRACT.decode('{"a":' * 100_000 + "1" + "}" * 100_000)

    assert isinstance(decoded, Unhandled)


@pytest.mark.parametrize("name", ["ses-delivery.json", "ses-bounce.json", "ses-complaint.json"])
def test_ses_event_is_the_same_bare_and_wrapped(name: str) -> None:
    bare = ses_events.CONTRACT.decode(unwrapped(name))

    assert isinstance(bare, Decoded)
    assert bare == ses_events.CONTRACT.decode(read(name))


def test_alarm_is_the_same_bare_and_wrapped() -> None:
    bare = ses_reputation.CONTRACT.decode(unwrapped("ses-reputation.json"))

    assert isinstance(bare, Decoded)
    assert bare == ses_reputation.CONTRACT.decode(read("ses-reputation.json"))


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01.500Z", 1_500),
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T01:00:00.000+0100", 0),
    ],
)
def test_moment_in_every_spelling_of_aws(text: str, ms: int) -> None:
    assert moment_ms(text) == ms


@pytest.mark.parametrize("text", [None, 3, "", "yesterday", "2026-03-02T10:15:30"])
def test_moment_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(Reject):
        moment_ms(text)
