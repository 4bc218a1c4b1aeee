"""What CloudWatch says of the whole account: bounce and complaint rates that cross a limit.

On ALARM all sending pauses and the limit shrinks; when every alarm of the account is over, sending
goes on. Source: Amazon SES developer guide, creating reputation monitoring alarms.
"""

import logging
from dataclasses import dataclass

from cape_stream.errors import Reject
from cape_stream.ports.deliveries import DeliveryStore, ReputationSignal
from cape_stream.ports.limits import AdaptiveLimit
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import Decoded, Unhandled, shown_label
from cape_stream.queues.envelopes import Document, moment_ms, open_document, part, text_at

QUEUE = "ses-reputation"
SIGNAL = "ses_reputation"
METRICS = ("Reputation.BounceRate", "Reputation.ComplaintRate")
STATES = ("ALARM", "OK", "INSUFFICIENT_DATA")

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class SesReputationContract:
    """The ses-reputation queue. Implements `Contract`."""

    queue: str = QUEUE

    def decode(self, body: str) -> Decoded | Unhandled:
        """See `Contract.decode`."""
        try:
            document = open_document(body)
            if "AlarmName" not in document:
                kind = document.get("eventType", document.get("notificationType", "unknown"))
                return Unhandled(shown_label(f"ses {kind}"), "not an alarm of CloudWatch")
            signal = _signal(document)
        except Reject as error:
            return Unhandled("undecodable", error.reason)
        if signal.metric not in METRICS:
            return Unhandled(shown_label(f"alarm on {signal.metric}"), "not a reputation metric")
        return Decoded(SIGNAL, signal)


CONTRACT = SesReputationContract()


def _signal(document: Document) -> ReputationSignal:
    trigger = part(document, "Trigger")
    threshold = trigger.get("Threshold")
    state = text_at(document, "NewStateValue")
    if state not in STATES:
        raise Reject(f"an alarm has no state {state!r}")
    return ReputationSignal(
        account=text_at(document, "AWSAccountId"),
        alarm=text_at(document, "AlarmName"),
        metric=text_at(document, "Trigger", "MetricName"),
        state=state,
        threshold=float(threshold) if isinstance(threshold, int | float) else None,
        at_ms=moment_ms(document.get("StateChangeTime")),
        reason=str(document.get("NewStateReason", "")),
    )


@dataclass(slots=True)
class SesReputationHandler:
    """Stores a signal and acts on what the account's signals say together."""

    store: DeliveryStore
    limit: AdaptiveLimit

    async def restore(self) -> None:
        """Pause again what the last signals say, for a process that has just begun.

        Raises:
            Retry: the store is away.
        """
        newest = await self.store.newest_signals()
        alarms = sorted(each.alarm for each in newest if each.state == "ALARM")
        if alarms:
            await self.limit.pause(f"SES reputation: {', '.join(alarms)}")
            logger.warning("mail is paused: %s", ", ".join(alarms))

    async def __call__(self, signal: ReputationSignal, context: JobContext) -> None:
        """See `cape_stream.queues.contract.Handler`."""
        is_new = await self.store.record_signal(signal)
        newest = await self.store.newest_signals(signal.account)
        alarms = sorted(each.alarm for each in newest if each.state == "ALARM")
        # Acts on every receive, new or not: a crash may lie between storing and acting.
        if alarms:
            if is_new and signal.state == "ALARM":
                await self.limit.shrink()
            await self.limit.pause(f"SES reputation: {', '.join(alarms)}")
            logger.warning("mail is paused: %s of account %s", ", ".join(alarms), signal.account)
        elif signal.state == "OK":
            await self.limit.resume()
