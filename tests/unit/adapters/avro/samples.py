"""One sample of every record, and how to encode and decode it; the tables of bad input use them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cape_stream.adapters.avro import AvroCodec
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.operation import AuditEntry, Operation, Outcome, Verb
from cape_stream.model.ping import Ping
from cape_stream.model.status import EventFailure, FailureClass, JobStatus

DATA = Path(__file__).parents[3] / "data"
KEY = b"N14228"
NOW_MS = 1_790_000_000_123

PING = Ping("N14228", 4712, NOW_MS)
JOB = Job(
    job_id="3-17-123456",
    domain="flights",
    partition=3,
    subject="N14228",
    topology="delays",
    lambda_id="parse",
    queue="general",
    epoch=17,
    attempt=1,
    issued_ms=NOW_MS,
    timeout_ms=30_000,
    events=[Event(4711, b"x" * 100), Event(4712, b"y" * 100, {"type": "leg"}, {"parse": b"z"})],
)
STATUS = JobStatus(
    job_id="3-17-123456",
    domain="flights",
    partition=3,
    subject="N14228",
    topology="delays",
    lambda_id="parse",
    epoch=17,
    attempt=1,
    done=(4711,),
    outputs={4711: b"out"},
    failures=(EventFailure(4712, FailureClass.INVALID, "no tail number", 500),),
    queued_ms=12,
)
ONE_DONE = JobStatus(
    job_id="3-17-123456",
    domain="flights",
    partition=3,
    subject="N14228",
    topology="delays",
    lambda_id="parse",
    epoch=17,
    attempt=1,
    done=(4711,),
)
CURSORS = CursorInfo("N14228", 4712, {"delays": 4711, "rotations": -1, "alerts": 4712})
OPERATION = Operation(
    operation_id="o-1",
    verb=Verb.REWIND,
    domain="flights",
    topology="delays",
    subject="N14228",
    sequence=4_700,
    who="ann",
    why="the parser was wrong",
    issued_ms=NOW_MS,
)
ENTRY = AuditEntry(OPERATION, 3, Outcome.APPLIED, "cursor 4711 → 4700", NOW_MS)
LETTER = DeadLetter("flight-ops.flights.pings", 3, 812, "truncated", KEY, b"\x00\x00")


@dataclass(frozen=True)
class Sample:
    """A record, a value of it, and the two functions of the codec for it."""

    record: str
    value: Any
    encode: Callable[[AvroCodec, Any], bytes]
    decode: Callable[[AvroCodec, bytes | None], Any]

    def __str__(self) -> str:
        return self.record


SAMPLES = (
    Sample("ping", PING, AvroCodec.encode_ping, lambda codec, data: codec.decode_ping(KEY, data)),
    Sample("job", JOB, AvroCodec.encode_job, lambda codec, data: codec.decode_job(data, "general")),
    Sample(
        "job_status",
        STATUS,
        AvroCodec.encode_status,
        lambda codec, data: codec.decode_status(KEY, data),
    ),
    Sample("cursor_info", CURSORS, AvroCodec.encode_cursors, AvroCodec.decode_cursors),
    Sample("dead_letter", LETTER, AvroCodec.encode_dead_letter, AvroCodec.decode_dead_letter),
    Sample(
        "operation",
        OPERATION,
        AvroCodec.encode_operation,
        lambda codec, data: codec.decode_operation(KEY, data),
    ),
    Sample("audit_entry", ENTRY, AvroCodec.encode_audit_entry, AvroCodec.decode_audit_entry),
)


def data_file(name: str) -> Any:
    """Content of a JSON file under ``tests/data``."""
    return json.loads((DATA / name).read_text())
