"""Operators' orders on their way: into the operations topic, and what became of them out of the
audit topic."""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from cape_stream.errors import Corrupt, Fatal, Reject, Retry
from cape_stream.model.operation import (
    NUMBERED_VERBS,
    TOPOLOGY_VERBS,
    AuditEntry,
    Operation,
    Verb,
)
from cape_stream.model.sequence import NO_CURSOR, BadSequenceError, check_sequence
from cape_stream.model.subject import BadSubjectError, check_subject, partition_of
from cape_stream.ports.log import Producer, Reader, TopicPartition
from cape_stream.roles.backends import Backend
from cape_stream.roles.live_tail import LiveTail
from cape_stream.sdk.app import App

LOOK_S = 0.05
FLUSH_MS = 15_000
AT_ONCE_MAX = 1_000
"""Orders of one call that are on their way at a time."""


def new_operation(
    app: App,
    verb: str,
    domain: str,
    topology: str,
    *,
    who: str,
    why: str = "",
    subject: str | None = None,
    sequence: int | None = None,
    now_ms: int,
) -> Operation:
    """An order that can be sent.

    Raises:
        Reject: it names no verb, domain or topology that there is, or lacks what the verb needs.
    """
    _check_known("verb", verb, list(Verb))
    _check_known("domain", domain, list(app.domains))
    known = Verb(verb)
    topologies = list(app.domains[domain].topologies)
    if known is not Verb.RESUME:  # of one that another release has and paused, too
        _check_known("topology", topology, topologies)
    if known in TOPOLOGY_VERBS and subject is not None:
        raise Reject(f"{verb} is about a whole topology and takes no subject")
    if known not in TOPOLOGY_VERBS and subject is None:
        raise Reject(f"{verb} is about one subject: name it")
    if known in NUMBERED_VERBS and sequence is None:
        raise Reject(f"{verb} needs a sequence id")
    return Operation(
        operation_id=secrets.token_hex(8),
        verb=known,
        domain=domain,
        topology=topology,
        who=who,
        why=why,
        subject=subject,
        sequence=sequence,
        issued_ms=now_ms,
    )


def operation_of(app: App, fields: Mapping[str, Any], now_ms: int) -> Operation:
    """An order from the fields of a request; raises Reject naming what is wrong with them."""
    known = {"verb", "domain", "topology", "who", "why", "subject", "sequence"}
    if unknown := sorted(fields.keys() - known):
        raise Reject(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
    for name in ("verb", "domain", "topology", "who"):
        if not isinstance(fields.get(name), str) or not fields[name]:
            raise Reject(f"{name} must be text of one character or more")
    subject, sequence = fields.get("subject"), fields.get("sequence")
    try:
        if subject is not None:
            check_subject(subject)
        if sequence is not None and sequence != NO_CURSOR:
            check_sequence(sequence, "sequence")
    except (BadSubjectError, BadSequenceError) as error:
        raise Reject(str(error)) from error
    return new_operation(app, **fields, now_ms=now_ms)


def carry_out(
    app: App, backend: Backend, operations: Iterable[Operation], timeout_ms: int, tail: LiveTail
) -> list[AuditEntry]:
    """Send orders and wait for what becomes of them: one entry for each about a subject, one a
    partition for each about a topology.

    Args:
        app: whose subjects or topologies they are about.
        backend: the log they go through.
        operations: sent a thousand at a time.
        timeout_ms: how long each thousand may take.
        tail: where what came of them is shown as well.

    Raises:
        Reject: an order is none; nothing after it was sent.
        Retry: not every answer came in time; what was sent is carried out all the same.
        Fatal: the log did not take an order.
    """
    producer, reader = backend.log.producer(), backend.log.reader()
    entries: list[AuditEntry] = []
    try:
        for waiting in _batches(operations):
            found = _send_and_wait(app, backend, producer, reader, waiting, timeout_ms)
            tail.show(map(as_event, found))
            entries += found
    finally:
        producer.close()
        reader.close()
    return entries


def entry_as_fields(entry: AuditEntry) -> dict[str, Any]:
    """An audit entry as one flat object."""
    fields = asdict(entry)
    order: dict[str, Any] = fields.pop("operation")
    return order | fields


def as_event(entry: AuditEntry) -> dict[str, Any]:
    """An audit entry as the live tail shows it."""
    return {"event": f"order {entry.outcome.value}", **entry_as_fields(entry)}


def _check_known(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise Reject(f"there is no {what} {value!r}; known: {', '.join(known)}")


def _batches(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    left = iter(operations)
    while batch := list(islice(left, AT_ONCE_MAX)):
        yield batch


def _send_and_wait(
    app: App,
    backend: Backend,
    producer: Producer,
    reader: Reader,
    operations: Sequence[Operation],
    timeout_ms: int,
) -> list[AuditEntry]:
    places = {each.operation_id: _partitions(app, each) for each in operations}
    wanted = {(name, place) for name, partitions in places.items() for place in partitions}
    names = app.topic_names
    starts: dict[TopicPartition, int] = {}
    for operation in operations:
        for place in places[operation.operation_id]:
            answers = TopicPartition(names.audit(operation.domain), place)
            if answers not in starts:
                starts[answers] = reader.watermarks(answers).high
    for operation in operations:
        value = backend.codec.encode_operation(operation)
        key = (operation.subject or operation.topology).encode()
        for place in places[operation.operation_id]:
            while not producer.send(names.operations(operation.domain), place, key, value):
                producer.poll(FLUSH_MS)
    if not producer.flush(FLUSH_MS) or producer.take_failed():
        raise Fatal(f"{backend.place} did not take the order; nothing is known to be done")
    return _answers(backend, reader, starts, wanted, timeout_ms)


def _partitions(app: App, operation: Operation) -> list[int]:
    if operation.subject is None:
        return list(range(app.partitions))
    return [partition_of(operation.subject.encode(), app.partitions)]


def _answers(
    backend: Backend,
    reader: Reader,
    starts: dict[TopicPartition, int],
    wanted: set[tuple[str, int]],
    timeout_ms: int,
) -> list[AuditEntry]:
    found: list[AuditEntry] = []
    deadline_s = time.monotonic() + timeout_ms / 1_000
    while wanted:
        for place, start in starts.items():
            high = reader.watermarks(place).high
            for batch in reader.read(place, start, high) if high > start else ():
                for record in batch:
                    entry = _decoded(backend, record.value)
                    key = entry and (entry.operation.operation_id, entry.partition)
                    if entry is not None and key in wanted:
                        wanted.discard((entry.operation.operation_id, entry.partition))
                        found.append(entry)
            starts[place] = max(start, high)
        if not wanted:
            break
        if time.monotonic() > deadline_s:
            partitions = sorted({place for _, place in wanted})
            raise Retry(
                f"sent, but no answer within {timeout_ms / 1_000:.0f} s from the owner of partition"
                f" {', '.join(map(str, partitions))}: the order is carried out as soon as a"
                " dispatcher of the App runs there"
            )
        time.sleep(LOOK_S)
    return sorted(found, key=lambda entry: (entry.operation.subject or "", entry.partition))


def _decoded(backend: Backend, value: bytes | None) -> AuditEntry | None:
    """An entry, or None for what is none: somebody else's record must not hide ours."""
    try:
        return backend.codec.decode_audit_entry(value)
    except (Reject, Corrupt):
        return None
