"""Items of a gateway's request as values: JSON objects with the field names of the schemas."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cape_stream.errors import Reject
from cape_stream.model.ping import Ping
from cape_stream.model.sequence import BadSequenceError, check_sequence
from cape_stream.model.status import (
    ERROR_HEAD_CHARS_MAX,
    EventFailure,
    FailureClass,
    JobStatus,
    StatusKind,
)
from cape_stream.model.subject import BadSubjectError, check_subject

STATUS_FIELDS = frozenset(
    {
        *("domain", "topology", "lambda_id", "partition", "epoch", "kind", "subject", "job_id"),
        *("attempt", "queued_ms", "done", "outputs", "failures", "token"),
    }
)
PING_FIELDS = frozenset({"domain", "subject", "latest"})
_OUTPUT_FIELDS = frozenset({"sequence", "output"})
_FAILURE_FIELDS = frozenset({"sequence", "failure_class", "error", "retry_after_ms"})

Item = Mapping[str, Any]


def status_of(item: object) -> tuple[JobStatus, str | None]:
    """A status and the token of its job.

    Raises:
        Reject: names the field and what it should be.
    """
    fields = _fields(item, STATUS_FIELDS, "a job status")
    outputs = [_fields(each, _OUTPUT_FIELDS, "an output") for each in _list(fields, "outputs")]
    status = JobStatus(
        _text(fields, "job_id"),
        _text(fields, "domain"),
        _count(fields, "partition"),
        _subject(fields),
        _text(fields, "topology"),
        _text(fields, "lambda_id"),
        _count(fields, "epoch"),
        _count(fields, "attempt"),
        StatusKind(_choice(fields, "kind", tuple(StatusKind), str(StatusKind.RESULTS))),
        tuple(_sequence(each, "done") for each in _list(fields, "done")),
        {_sequence(each.get("sequence"), "outputs.sequence"): _output(each) for each in outputs},
        [_failure(each) for each in _list(fields, "failures")],
        _count(fields, "queued_ms") if "queued_ms" in fields else 0,
    )
    return status, _text(fields, "token") if fields.get("token") is not None else None


def ping_of(item: object, domain: str | None, sent_ms: int) -> tuple[str | None, Ping]:
    """A ping and the domain it names, which may be none if ``domain`` is given besides.

    Raises:
        Reject: names the field and what it should be.
    """
    fields = _fields(item, PING_FIELDS, "a ping")
    named = _text(fields, "domain") if "domain" in fields else domain
    latest = fields.get("latest")
    if latest is not None:
        latest = _sequence(latest, "latest")
    return named, Ping(_subject(fields), latest, sent_ms)


def _failure(item: object) -> EventFailure:
    fields = _fields(item, _FAILURE_FIELDS, "a failure")
    error = fields.get("error", "")
    if not isinstance(error, str):
        raise Reject("error must be a text")
    after_ms = fields.get("retry_after_ms")
    return EventFailure(
        _sequence(fields.get("sequence"), "failures.sequence"),
        FailureClass(_choice(fields, "failure_class", tuple(FailureClass), "transient")),
        error[:ERROR_HEAD_CHARS_MAX],
        None if after_ms is None else _count(fields, "retry_after_ms"),
    )


def _output(fields: Item) -> bytes:
    """As the handlers that take it read it: JSON text."""
    if "output" not in fields:
        raise Reject("outputs.output is missing")
    return json.dumps(fields["output"], separators=(",", ":"), allow_nan=False).encode()


def _fields(item: object, known: frozenset[str], what: str) -> Item:
    if not isinstance(item, dict):
        raise Reject(f"{what} must be a JSON object")
    unknown = sorted(set(item) - known)
    if unknown:
        raise Reject(f"{what} has no field {unknown[0][:40]!r}; it has {', '.join(sorted(known))}")
    return item


def _text(fields: Item, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise Reject(f"{name} must be a text of one character or more")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Reject(f"{name} is not valid UTF-8 text") from error
    return value


def _subject(fields: Item) -> str:
    try:
        return check_subject(fields.get("subject"))
    except BadSubjectError as error:
        raise Reject(str(error)) from error


def _count(fields: Item, name: str) -> int:
    return _sequence(fields.get(name), name)


def _sequence(value: object, name: str) -> int:
    try:
        return check_sequence(value, name)
    except BadSequenceError as error:
        raise Reject(str(error)[:200]) from error


def _list(fields: Item, name: str) -> Sequence[Any]:
    found = fields.get(name, [])
    if not isinstance(found, list):
        raise Reject(f"{name} must be a list")
    return found


def _choice(fields: Item, name: str, choices: Sequence[str], default: str) -> str:
    value = fields.get(name, default)
    if value not in choices:
        raise Reject(f"{name} must be one of {', '.join(choices)}")
    return str(value)
