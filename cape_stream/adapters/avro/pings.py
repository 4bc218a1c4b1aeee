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
from cape_stream.adapters.avro.framing import NULL_VALUE, STAMP_BYTES, Framing, read_stamp
from cape_stream.adapters.avro.registry import FileRegistry
from cape_stream.adapters.avro.wire import (
    NULL,
    QUICK_MISSES,
    SOME,
    UnusualError,
    read_natural,
)
from cape_stream.errors import Reject
from cape_stream.model.ping import Ping

_VERSION = 1
_FINGERPRINT = "a58136453b71a3c752578a745f68ac4d98018b477d9c145512cc014ac6f9c8ed"

_NULL = NULL[0]
_SOME = SOME[0]


class PingCodec:
    """The part of the codec for pings."""

    def __init__(self, registry: FileRegistry) -> None:
        self._ping_framing = Framing(registry, "ping", _VERSION, _FINGERPRINT)
        header = self._ping_framing.header
        self._ping_heads = {size: header + octets for size, octets in SUBJECT_SIZES.items()}
        """Header and length of the subject, by that length."""
        self._ping_stamps: dict[bytes, int] = {}
        """Bytes of ``sent_ms`` seen → the number."""

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
                    return self._quick_ping(key, value, len(head))
            except (KeyError, *QUICK_MISSES):
                pass  # the plain path reads it, or says what is wrong
        return self._plain_ping(key, value)

    def _quick_ping(self, key: bytes, value: bytes, at: int) -> Ping:
        latest = None
        branch = value[at]
        at += 1
        if branch == _SOME:
            latest, at = read_natural(value, at)
        elif branch != _NULL:
            raise UnusualError
        sent_ms = self._ping_stamps.get(value[at : at + STAMP_BYTES])
        if sent_ms is None:
            sent_ms, at = read_stamp(self._ping_stamps, value, at)
        else:
            at += STAMP_BYTES
        if at + 1 != len(value):
            raise UnusualError
        return Ping(key.decode(), latest, sent_ms, LANE_OF[value[at]])

    def decode_lone_ping(self, value: bytes) -> Ping:
        """Return a ping that has no key beside it. Raises Reject with a short stable reason."""
        fields = self._ping_framing.fields(value)
        latest = fields["latest"]
        return Ping(
            checked_subject(fields["subject"]),
            None if latest is None else checked_sequence(latest, "latest"),
            checked_count(fields["sent_ms"], "sent_ms"),
            checked_lane(fields["lane"]),
        )

    def _plain_ping(self, key: bytes | None, value: bytes | None) -> Ping:
        if value is None:
            raise Reject(NULL_VALUE)
        ping = self.decode_lone_ping(value)
        checked_key(key, ping.subject)
        return ping
