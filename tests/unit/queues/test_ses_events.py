"""B38, B41: what became of a mail, in every form and of every kind, stored once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cape_stream.adapters.deliveries_sql import SqlDeliveries
from cape_stream.ports.deliveries import DeliveryEvent
from cape_stream.queues.contract import Decoded, Unhandled
from cape_stream.queues.messages import ses_events
from tests.unit.queues.test_envelopes import read, unwrapped, wrapped
from tests.unit.queues.test_mail_messages import context, run_real, value

MAIL = {
    "timestamp": "2026-03-02T10:15:30.000Z",
    "messageId": "m-1",
    "source": "news@example.com",
    "destination": ["One@Example.com", "two@example.com"],
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlDeliveries]:
    found = SqlDeliveries(f"sqlite:///{tmp_path / 'deliveries.db'}")
    yield found
    found.close()


def stored(store: SqlDeliveries, *bodies: str) -> list[DeliveryEvent]:
    """What lies in the store once the handler has had every body."""

    async def scene() -> list[DeliveryEvent]:
        handler = ses_events.SesEventsHandler(store)
        mails = []
        for body in bodies:
            events = value(ses_events.CONTRACT, body)
            await handler(events, context())
            mails += [each.message_id for each in events]
        return [event for mail in dict.fromkeys(mails) for event in await store.history(mail)]

    found: list[DeliveryEvent] = run_real(scene)
    return found


def forms_of(name: str) -> list[str]:
    """An event of the inputs as event publishing and as plain notifications send it, each bare and
    wrapped, the plain ones without tags and headers."""
    published = unwrapped(name)
    document = json.loads(published)
    document["notificationType"] = document.pop("eventType")
    for missing in ("tags", "headers"):
        document["mail"].pop(missing, None)
    plain = json.dumps(document)
    return [read(name), published, wrapped(plain), plain]


def published(kind: str, section: str, **fields: Any) -> str:
    return json.dumps({"eventType": kind, "mail": MAIL, section: fields})


@pytest.mark.parametrize(
    ("name", "kind", "detail", "at_ms", "recipients"),
    [
        (
            *("ses-bounce.json", "bounce", "Permanent/General", 1_772_446_533_000),
            ["gone@example.com"],
        ),
        (
            *("ses-complaint.json", "complaint", "abuse", 1_772_449_200_000),
            ["reader.one@example.com", "reader.three@example.com", "reader.two@example.com"],
        ),
        (
            *("ses-delivery.json", "delivery", "", 1_772_446_535_000),
            ["reader@example.com"],
        ),
    ],
)
def test_event_is_stored_once_whatever_its_form(
    store: SqlDeliveries, name: str, kind: str, detail: str, at_ms: int, recipients: list[str]
) -> None:
    message_id = json.loads(unwrapped(name))["mail"]["messageId"]

    found = stored(store, *forms_of(name))

    assert [each.recipient for each in found] == recipients
    for each in found:
        assert (each.message_id, each.kind, each.detail) == (message_id, kind, detail)
        assert each.at_ms == at_ms


def test_bounce_in_the_legacy_form_is_stored_beside_the_other(store: SqlDeliveries) -> None:
    bounce, legacy = stored(
        store, read("ses-bounce.json"), read("ses-bounce-legacy-notification.json")
    )

    assert (bounce.recipient, bounce.detail) == ("gone@example.com", "Permanent/General")
    assert (legacy.kind, legacy.detail) == ("bounce", "Transient/MailboxFull")


def test_complaint_marks_all_who_may_be_meant_as_possible(store: SqlDeliveries) -> None:
    changed = json.loads(unwrapped("ses-complaint.json"))
    named = changed["complaint"]["complainedRecipients"]
    assert any(each["emailAddress"] != each["emailAddress"].lower() for each in named)
    del changed["complaint"]["complaintSubType"]  # absent means the same as null

    found = stored(store, read("ses-complaint.json"), json.dumps(changed))

    assert [each.recipient for each in found] == [
        "reader.one@example.com",
        "reader.three@example.com",
        "reader.two@example.com",
    ]
    assert not any(each.is_certain for each in found)


@pytest.mark.parametrize(
    ("kind", "section", "fields", "ours", "detail"),
    [
        ("Send", "send", {}, "send", ""),
        ("Reject", "reject", {"reason": "Bad content"}, "reject", "Bad content"),
        (
            *("Rendering Failure", "failure"),
            {"errorMessage": "Attribute 'name' is not present", "templateName": "hello"},
            *("rendering_failure", "Attribute 'name' is not present"),
        ),
        (
            *("Subscription", "subscription"),
            {"contactList": "readers", "timestamp": "2026-03-02T10:15:30.000Z"},
            *("subscription", ""),
        ),
    ],
)
def test_kind_that_names_nobody_is_about_all_who_the_mail_went_to(
    store: SqlDeliveries, kind: str, section: str, fields: Any, ours: str, detail: str
) -> None:
    found = stored(store, published(kind, section, **fields))

    assert [(each.kind, each.recipient, each.detail) for each in found] == [
        (ours, "one@example.com", detail),
        (ours, "two@example.com", detail),
    ]
    assert {each.at_ms for each in found} == {1_772_446_530_000}
    assert all(each.is_certain for each in found)


@pytest.mark.parametrize(
    ("kind", "section", "fields", "ours", "recipients"),
    [
        (
            *("DeliveryDelay", "deliveryDelay"),
            {
                "delayType": "MailboxFull",
                "delayedRecipients": [{"emailAddress": "Two@example.com", "status": "4.2.2"}],
            },
            *("delivery_delay", ["two@example.com"]),
        ),
        ("Open", "open", {"ipAddress": "192.0.2.1"}, "open", ["one@example.com"]),
        ("Click", "click", {"link": "https://example.com"}, "click", ["one@example.com"]),
    ],
)
def test_what_may_happen_again_is_stored_each_time_but_once(
    store: SqlDeliveries,
    kind: str,
    section: str,
    fields: Any,
    ours: str,
    recipients: list[str],
) -> None:
    times = ["2026-03-02T10:15:31.000Z", "2026-03-02T10:15:32.000Z"]
    early, late = (published(kind, section, timestamp=each, **fields) for each in times)

    found = stored(store, early, late, early)

    mine = [each for each in found if each.recipient in recipients]
    assert [(each.kind, each.at_ms) for each in mine] == [
        (ours, 1_772_446_531_000),
        (ours, 1_772_446_532_000),
    ]


@pytest.mark.parametrize("body", ['{"eventType": "Bounce"}', '{"eventType": "Bounce", "mail": 3}'])
def test_event_without_what_it_is_about_goes_back(body: str) -> None:
    decoded = ses_events.CONTRACT.decode(body)

    assert isinstance(decoded, Unhandled)


def test_unknown_kind_of_event_is_counted_under_its_own_name() -> None:
    decoded = ses_events.CONTRACT.decode('{"eventType": "Teleport"}')

    assert isinstance(decoded, Unhandled)
    assert decoded.label == "ses Teleport"


@pytest.mark.parametrize("kind", ses_events.SECTIONS)
def test_event_that_should_name_its_recipients_and_does_not_blames_nobody(kind: str) -> None:
    ours, section = ses_events.SECTIONS[kind]

    decoded = ses_events.CONTRACT.decode(published(kind, section))

    names_nobody = ours not in ses_events.RECIPIENT_LISTS
    assert isinstance(decoded, Decoded if names_nobody else Unhandled)


def test_alarm_on_the_events_queue_has_no_handler_there() -> None:
    decoded = ses_events.CONTRACT.decode(read("ses-reputation.json"))

    assert isinstance(decoded, Unhandled)
    assert decoded.label == "cloudwatch_alarm"
