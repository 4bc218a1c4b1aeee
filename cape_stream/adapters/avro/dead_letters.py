"""Dead letters as bytes and back. They are rare, so there is no quick path."""

from cape_stream.adapters.avro.fields import (
    checked_bytes,
    checked_count,
    checked_partition,
    checked_text,
    count_bytes,
    text_bytes,
)
from cape_stream.adapters.avro.framing import Framing
from cape_stream.adapters.avro.registry import FileRegistry
from cape_stream.adapters.avro.wire import INT32_MAX, MINUS_ONE, NULL, SOME, length_prefixed
from cape_stream.model.dead_letter import DeadLetter

_VERSION = 1
_FINGERPRINT = "debaeef5eafe0bc69778f0eeadfcfe4e0eb825c80e9b62bd65f24a5164a2e2bd"

NO_OFFSET = -1


def _optional_bytes(octets: bytes | None, field: str) -> bytes:
    return NULL if octets is None else SOME + length_prefixed(checked_bytes(octets, field))


class DeadLetterCodec:
    """The part of the codec for dead letters."""

    def __init__(self, registry: FileRegistry) -> None:
        self._letter_framing = Framing(registry, "dead_letter", _VERSION, _FINGERPRINT)

    def encode_dead_letter(self, letter: DeadLetter) -> bytes:
        """Return a dead letter as a record value. Raises Reject naming field and value."""
        return b"".join(
            (
                self._letter_framing.header,
                text_bytes(letter.topic, "topic"),
                count_bytes(letter.partition, "partition", most=INT32_MAX),
                MINUS_ONE if letter.offset == NO_OFFSET else count_bytes(letter.offset, "offset"),
                text_bytes(letter.reason, "reason"),
                _optional_bytes(letter.key, "key"),
                _optional_bytes(letter.value, "value"),
            )
        )

    def decode_dead_letter(self, value: bytes | None) -> DeadLetter:
        """Return the dead letter of a record. Raises Reject with a short stable reason."""
        fields = self._letter_framing.fields(value)
        return DeadLetter(
            checked_text(fields["topic"], "topic"),
            checked_partition(fields["partition"]),
            checked_count(fields["offset"], "offset", least=NO_OFFSET),
            checked_text(fields["reason"], "reason"),
            fields["key"],
            fields["value"],
        )
