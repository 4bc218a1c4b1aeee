"""Pings as bytes and back."""

from cape_stream.adapters.avro.fields import (
    LANE_OF,
    SUBJECT_SIZES,
    checked_count,
    checked_key,
    checked_lane,
    checked_sequence,
    checked_subject,
    count_bytes,
    lane_bytes,
    sequence_bytes,
)
from cape_stream.adapters.avro.framing import Framing
from cape_stream.adapters.avro.registry import FileRegistry
from cape_stream.adapters.avro.wire import (
    NULL,
    QUICK_MISSES,
    SIGNS,
    SOME,
    read_natural,
)
from cape_stream.model.ping import Ping

_VERSION = 1
_FINGERPRINT = "a29b774cff1577d0"

_SOME_INDEX = SOME[0]


class PingCodec:
    """The part of the codec for pings."""

    def __init__(self, registry: FileRegistry) -> None:
        self._ping_framing = Framing(registry, "ping", _VERSION, _FINGERPRINT)
        header = self._ping_framing.header
        self._ping_heads = {size: header + octets for size, octets in SUBJECT_SIZES.items()}
        """Header and length of the subject, by that length."""

    def encode_ping(self, ping: Ping) -> bytes:
        """Return a ping as a record value. Raises Reject naming field and value."""
        subject = checked_subject(ping.subject).encode()
        return b"".join(
            (
                self._ping_heads[len(subject)],
                subject,
                NULL if ping.latest is None else SOME + sequence_bytes(ping.latest, "latest"),
                count_bytes(ping.sent_ms, "sent_ms"),
                lane_bytes(ping.lane),
            )
        )

    def decode_ping(self, key: bytes | None, value: bytes | None) -> Ping:
        """Return the ping of a record. Raises Reject with a short stable reason."""
        if key and value:
            try:
                # With the key we know how the record must begin: one comparison for all of it.
                head = self._ping_heads[len(key)] + key
                if value.startswith(head):
                    at = len(head)
                    latest = None
                    branch = value[at]
                    if branch == _SOME_INDEX:
                        latest, at = read_natural(value, at + 1)
                    else:
                        at += 1
                    sent_ms, at = read_natural(value, at)
                    if branch <= _SOME_INDEX and not branch & SIGNS and at + 1 == len(value):
                        return Ping(key.decode(), latest, sent_ms, LANE_OF[value[at]])
            except (KeyError, *QUICK_MISSES):
                pass  # the plain path reads it, or says what is wrong
        return self._plain_ping(key, value)

    def _plain_ping(self, key: bytes | None, value: bytes | None) -> Ping:
        fields = self._ping_framing.fields(value)
        subject = checked_subject(fields["subject"])
        checked_key(key, subject)
        latest = fields["latest"]
        return Ping(
            subject,
            None if latest is None else checked_sequence(latest, "latest"),
            checked_count(fields["sent_ms"], "sent_ms"),
            checked_lane(fields["lane"]),
        )
