"""Operators' orders and their audit entries as bytes and back. They are rare: no quick path."""

from collections.abc import Mapping
from typing import Any, TypeVar

from cape_stream.adapters.avro.fields import (
    checked_count,
    checked_cursor,
    checked_key,
    checked_partition,
    checked_subject,
    checked_text,
    count_bytes,
    subject_bytes,
    text_bytes,
)
from cape_stream.adapters.avro.framing import Framing
from cape_stream.adapters.avro.registry import FileRegistry
from cape_stream.adapters.avro.wire import (
    INT32_MAX,
    MINUS_ONE,
    NATURAL,
    NULL,
    SOME,
    length_prefixed,
    natural_bytes,
)
from cape_stream.errors import Reject
from cape_stream.model.operation import AuditEntry, Operation, Outcome, Verb
from cape_stream.model.sequence import NO_CURSOR

_VERSION = 1
_OPERATION_FINGERPRINT = "f04bc03c7b218ad6d57827002e38b5178f6569a469fb56772fb74c3bafc4f5d6"
_ENTRY_FINGERPRINT = "ad7a50767aa4dd6db3382836d42da610aa0641a660f9d0440673788d831c21a6"

_VERBS = ("pause", "drain", "resume", "rewind", "set", "skip", "release", "retry", "backfill")
"""In the order of the schema's symbols."""
_OUTCOMES = ("applied", "nothing", "refused")

E = TypeVar("E", Verb, Outcome)


class OperationCodec:
    """The part of the codec for orders and audit entries."""

    def __init__(self, registry: FileRegistry) -> None:
        self._operation_framing = Framing(registry, "operation", _VERSION, _OPERATION_FINGERPRINT)
        self._entry_framing = Framing(registry, "audit_entry", _VERSION, _ENTRY_FINGERPRINT)

    def encode_operation(self, operation: Operation) -> bytes:
        """Return an order as a record value. Raises Reject naming field and value."""
        verb = NATURAL[_VERBS.index(_checked(Verb, operation.verb, "verb"))]
        return self._operation_framing.header + _order_bytes(operation, verb)

    def decode_operation(self, key: bytes | None, value: bytes | None) -> Operation:
        """Return the order of a record. Raises Reject with a short stable reason."""
        operation = _order(self._operation_framing.fields(value))
        if operation.subject is not None:
            checked_key(key, operation.subject)
        return operation

    def encode_audit_entry(self, entry: AuditEntry) -> bytes:
        """Return an audit entry as a record value. Raises Reject naming field and value."""
        verb = text_bytes(_checked(Verb, entry.operation.verb, "verb").value, "verb")
        outcome = _checked(Outcome, entry.outcome, "outcome")
        return b"".join(
            (
                self._entry_framing.header,
                _order_bytes(entry.operation, verb),
                count_bytes(entry.partition, "partition", most=INT32_MAX),
                NATURAL[_OUTCOMES.index(outcome)],
                text_bytes(entry.detail, "detail"),
                count_bytes(entry.decided_ms, "decided_ms"),
            )
        )

    def decode_audit_entry(self, value: bytes | None) -> AuditEntry:
        """Return the audit entry of a record. Raises Reject with a short stable reason."""
        fields = self._entry_framing.fields(value)
        return AuditEntry(
            _order(fields),
            checked_partition(fields["partition"]),
            _checked(Outcome, fields["outcome"], "outcome"),
            checked_text(fields["detail"], "detail"),
            checked_count(fields["decided_ms"], "decided_ms"),
        )


def _order_bytes(operation: Operation, verb: bytes) -> bytes:
    why = checked_text(operation.why, "why", least_chars=0)
    return b"".join(
        (
            text_bytes(operation.operation_id, "operation_id"),
            verb,
            text_bytes(operation.domain, "domain"),
            text_bytes(operation.topology, "topology"),
            NULL if operation.subject is None else SOME + subject_bytes(operation.subject),
            NULL if operation.sequence is None else SOME + _cursor_bytes(operation.sequence),
            text_bytes(operation.who, "who"),
            length_prefixed(why.encode()),
            count_bytes(operation.issued_ms, "issued_ms"),
        )
    )


def _cursor_bytes(value: object) -> bytes:
    number = checked_cursor(value, "sequence")
    return MINUS_ONE if number == NO_CURSOR else natural_bytes(number)


def _order(fields: Mapping[str, Any]) -> Operation:
    subject, sequence = fields["subject"], fields["sequence"]
    return Operation(
        operation_id=checked_text(fields["operation_id"], "operation_id"),
        verb=_checked(Verb, fields["verb"], "verb"),
        domain=checked_text(fields["domain"], "domain"),
        topology=checked_text(fields["topology"], "topology"),
        subject=None if subject is None else checked_subject(subject),
        sequence=None if sequence is None else checked_cursor(sequence, "sequence"),
        who=checked_text(fields["who"], "who"),
        why=checked_text(fields["why"], "why", least_chars=0),
        issued_ms=checked_count(fields["issued_ms"], "issued_ms"),
    )


def _checked(kind: type[E], value: object, field: str) -> E:
    """Return a member of an enum, else raise Reject."""
    for member in kind:
        if value == member:
            return member
    raise Reject(f"{field} must be one of {', '.join(kind)}, not {value!r}")
