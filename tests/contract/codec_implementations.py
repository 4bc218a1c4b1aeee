"""Every implementation of the codec port, and the values its suite plays with."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cape_stream.adapters.avro import AvroCodec
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.operation import Operation, Verb
from cape_stream.model.ping import Ping
from cape_stream.model.status import JobStatus
from cape_stream.ports.codec import Codec

CODECS: dict[str, Callable[[], Codec]] = {"avro": AvroCodec}


def job(**changes: Any) -> Job:
    events = [Event(sequence, b"payload") for sequence in (7, 8)]
    whole = Job("3-1-9", "d", 3, "acct-7", "t", "l", "general", 1, 1, 1_000, 30_000, events)
    return replace(whole, **changes)


def status(**changes: Any) -> JobStatus:
    return replace(JobStatus("3-1-9", "d", 3, "acct-7", "t", "l", 1, 1), **changes)


def operation(**changes: Any) -> Operation:
    whole = Operation(
        operation_id="o-1",
        verb=Verb.SKIP,
        domain="d",
        topology="t",
        subject="acct-7",
        sequence=7,
        who="ann",
        why="it cannot be read",
        issued_ms=1_000,
    )
    return replace(whole, **changes)


def through_ping(codec: Codec, ping: Ping) -> Ping:
    return codec.decode_ping(ping.subject.encode(), codec.encode_ping(ping))


def through_status(codec: Codec, status: JobStatus) -> JobStatus:
    return codec.decode_status(status.subject.encode(), codec.encode_status(status))
