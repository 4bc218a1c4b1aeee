"""Active rows ↔ bytes: MessagePack arrays, one element a field.

A row of another release reads as far as both know the fields: more are left out, missing ones have
their default (see `cape_stream.model.active_row`).
"""

from collections.abc import Sequence
from typing import Any

from msgspec import DecodeError, msgpack

from cape_stream.errors import Corrupt
from cape_stream.model.active_row import ActiveRow, JobRow, LambdaRow, ParkedRow

encode_active_row = msgpack.Encoder().encode
"""Bytes of an `ActiveRow`."""

_decode = msgpack.Decoder(list[Any]).decode


def decode_active_row(value: bytes) -> ActiveRow:
    """The row, or `Corrupt` if the bytes are none."""
    try:
        row = ActiveRow(*_known(ActiveRow, _decode(value)))
        _check((row.subject, str), (row.head, int), (row.saved_ms, int), (row.wake_ms, int))
        return row._replace(lambdas=[_lambda_row(fields) for fields in row.lambdas])
    except (DecodeError, TypeError, ValueError) as error:
        raise Corrupt(f"active row does not decode: {error}") from error


def _lambda_row(fields: Sequence[Any]) -> LambdaRow:
    row = LambdaRow(*_known(LambdaRow, fields))
    _check((row.topology, str), (row.lambda_id, str), (row.cursor, int), (row.outputs, dict))
    jobs = [JobRow(*_known(JobRow, each)) for each in row.jobs]
    parked = [ParkedRow(*_known(ParkedRow, each)) for each in row.parked]
    for job in jobs:
        _check((job.job_id, str), (job.attempt, int), (job.timeout_ms, int), (job.epoch, int))
    for put_aside in parked:
        _check((put_aside.sequence, int), (put_aside.attempts, int), (put_aside.due_ms, int))
        _check((put_aside.epoch, int))
    return row._replace(jobs=jobs, parked=parked)


def _known(kind: type[Any], fields: Sequence[Any]) -> Sequence[Any]:
    """The fields that this release knows."""
    return fields[: len(kind._fields)]


def _check(*pairs: tuple[object, type]) -> None:
    for value, kind in pairs:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not {kind.__name__}")
