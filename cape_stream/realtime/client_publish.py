"""What a client may publish: ephemeral signals within the bounds of its grant."""

import time
from dataclasses import dataclass

import msgspec

from cape_stream.errors import Reject, Retry
from cape_stream.ports.channels import ChannelFeed, RateLimit
from cape_stream.realtime.counters import Counters
from cape_stream.realtime.framing import message_body
from cape_stream.realtime.grants import Grant

REQUEST_BYTES_MAX = 16_384
"""Of one request or WebSocket message of a client."""


class Signal(msgspec.Struct, forbid_unknown_fields=True):
    """One publish of a client."""

    channel: str
    data: msgspec.Raw
    kind: str = "signal"
    type: str = "publish"
    ref: int = 0
    """Comes back in the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of it."""

    status: int
    """As HTTP has it: 202 told, 400, 403, 413, 429 or 503."""
    reason: str = ""
    """Empty if it was told."""
    ref: int = 0


_DECODER = msgspec.json.Decoder(Signal)


class ClientPublisher:
    """Checks what clients send and tells it to everybody else.

    Args:
        feed: where it goes.
        counters: where it is counted.
    """

    def __init__(self, feed: ChannelFeed, counters: Counters) -> None:
        self._feed = feed
        self._counters = counters
        self._second = 0
        self._used: dict[str, int] = {}

    async def publish(self, grant: Grant, raw: bytes) -> Answer:
        """Pass one signal on, or say why not. Never raises for what a client sent."""
        answer = await self._answer(grant, raw)
        if answer.reason:
            self._counters.refuse_publish(answer.reason)
        else:
            self._counters.client_publishes += 1
        return answer

    async def _answer(self, grant: Grant, raw: bytes) -> Answer:
        if len(raw) > REQUEST_BYTES_MAX:
            return Answer(413, "too_large")
        try:
            signal = _DECODER.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return Answer(400, "malformed")
        refusal = _beyond(grant, signal)
        if refusal is not None:
            return refusal
        bounds = grant.publish
        assert bounds is not None, "checked above"
        if not self._has_budget(grant.grant_id, bounds.per_s):
            return Answer(429, "rate", signal.ref)
        try:
            body = message_body(
                signal.channel,
                signal.kind,
                # Said anew: what a client sent may have line breaks between its values.
                msgspec.json.decode(signal.data),
                bounds.bytes_max,
                is_from_client=True,
                sender=grant.holder,
            )
            told = await self._feed.publish(
                grant.realm, signal.channel, body, RateLimit(grant.grant_id, bounds.per_s)
            )
        except Reject:
            return Answer(413, "too_large", signal.ref)
        except (msgspec.DecodeError, RecursionError):
            return Answer(400, "malformed", signal.ref)
        except Retry:
            return Answer(503, "unavailable", signal.ref)
        return Answer(202, "", signal.ref) if told else Answer(429, "rate", signal.ref)

    def _has_budget(self, grant_id: str, per_s: int) -> bool:
        """A first look that costs no round trip; the store's count is over all processes."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._used = second, {}
        used = self._used[grant_id] = self._used.get(grant_id, 0) + 1
        return used <= per_s


def _beyond(grant: Grant, signal: Signal) -> Answer | None:
    """Why a signal is outside its grant, or None."""
    bounds = grant.publish
    if bounds is None or signal.channel not in bounds.channels:
        return Answer(403, "channel", signal.ref)
    if signal.kind not in bounds.kinds:
        return Answer(403, "kind", signal.ref)
    if len(memoryview(signal.data)) > REQUEST_BYTES_MAX:
        return Answer(413, "too_large", signal.ref)
    return None
