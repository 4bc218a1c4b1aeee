"""What SES reports of single mails: sent, delivered, bounced, complained, delayed and so on.

Event publishing names the kind in ``eventType``, plain notifications in ``notificationType``; each
comes bare or inside an SNS envelope. Source: Amazon SES developer guide, both "contents" pages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cape_stream.errors import Reject
from cape_stream.ports.deliveries import DeliveryEvent, DeliveryStore
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import Decoded, Unhandled, shown_label
from cape_stream.queues.envelopes import Document, moment_ms, open_document, part, text_at

QUEUE = "ses-events"
EVENTS = "ses_events"

SECTIONS: Mapping[str, tuple[str, str]] = {
    "Send": ("send", "send"),
    "Delivery": ("delivery", "delivery"),
    "Bounce": ("bounce", "bounce"),
    "Complaint": ("complaint", "complaint"),
    "DeliveryDelay": ("delivery_delay", "deliveryDelay"),
    "Rendering Failure": ("rendering_failure", "failure"),
    "Reject": ("reject", "reject"),
    "Open": ("open", "open"),
    "Click": ("click", "click"),
    "Subscription": ("subscription", "subscription"),
}
"""Kind as SES spells it → ours, and the section of the event that belongs to it."""

RECIPIENT_LISTS: Mapping[str, str] = {
    "bounce": "bouncedRecipients",
    "complaint": "complainedRecipients",
    "delivery": "recipients",
    "delivery_delay": "delayedRecipients",
}
"""Where a kind names whom it is about; the others are about everybody the mail went to."""

DETAILS: Mapping[str, tuple[str, ...]] = {
    "bounce": ("bounceType", "bounceSubType"),
    "complaint": ("complaintFeedbackType", "complaintSubType"),
    "delivery_delay": ("delayType",),
    "rendering_failure": ("errorMessage",),
    "reject": ("reason",),
}
DETAIL_CHARS_MAX = 300
REPEATING = frozenset({"open", "click", "delivery_delay"})
"""Kinds that may happen to one mail again and again."""


@dataclass(slots=True, frozen=True)
class SesEventsContract:
    """The ses-events queue. Implements `Contract`."""

    queue: str = QUEUE

    def decode(self, body: str) -> Decoded | Unhandled:
        """See `Contract.decode`."""
        try:
            document = open_document(body)
            kind = document.get("eventType", document.get("notificationType"))
            if not isinstance(kind, str):
                return Unhandled(_stranger(document), "not an event of a mail")
            if kind not in SECTIONS:
                return Unhandled(
                    shown_label(f"ses {kind}"), f"no event of mails is called {kind!r}"
                )
            return Decoded(EVENTS, delivery_events(kind, document))
        except Reject as error:
            return Unhandled("undecodable", error.reason)


CONTRACT = SesEventsContract()


def _stranger(document: Document) -> str:
    if "AlarmName" in document:
        return "cloudwatch_alarm"
    return shown_label(str(document.get("type", "unknown")))


def delivery_events(kind: str, document: Document) -> tuple[DeliveryEvent, ...]:
    """One event a recipient.

    Raises:
        Reject: it does not say of which mail it speaks, or when it happened.
    """
    ours, section_name = SECTIONS[kind]
    section = part(document, section_name)
    message_id = text_at(document, "mail", "messageId")
    mail = part(document, "mail")
    at_ms = moment_ms(section.get("timestamp") or mail.get("timestamp"))
    feedback = section.get("feedbackId")
    return tuple(
        DeliveryEvent(
            message_id=message_id,
            kind=ours,
            recipient=recipient,
            at_ms=at_ms,
            feedback_id=feedback if isinstance(feedback, str) else None,
            occurrence=at_ms if ours in REPEATING else 0,
            detail=_detail(ours, section),
            is_certain=ours != "complaint",
        )
        for recipient in _recipients(ours, section, mail)
    )


def _recipients(kind: str, section: Document, mail: Document) -> list[str]:
    own = RECIPIENT_LISTS.get(kind)
    named: Any = mail.get("destination") if own is None else section.get(own)
    if not isinstance(named, list):
        raise Reject(f"{kind} event without recipients")
    addresses = [each.get("emailAddress") if isinstance(each, dict) else each for each in named]
    found = {each.lower() for each in addresses if isinstance(each, str)}
    if not found or not all(isinstance(each, str) for each in addresses):
        raise Reject(f"{kind} event without an address of a recipient")
    return sorted(found)


def _detail(kind: str, section: Document) -> str:
    found = [section.get(name) for name in DETAILS.get(kind, ())]
    return "/".join(each for each in found if isinstance(each, str))[:DETAIL_CHARS_MAX]


@dataclass(slots=True)
class SesEventsHandler:
    """Stores what happened to a mail; a repeat changes nothing."""

    store: DeliveryStore

    async def __call__(self, events: tuple[DeliveryEvent, ...], context: JobContext) -> None:
        """See `cape_stream.queues.contract.Handler`."""
        await self.store.record(events)
