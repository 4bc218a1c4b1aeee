"""Hypothesis strategies for every record, and what fastavro would be given to write the same."""

from dataclasses import asdict
from typing import Any

from hypothesis import strategies as st

from cape_stream.model.cursor import CursorInfo
from cape_stream.model.dead_letter import DeadLetter
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.operation import AuditEntry, Operation, Outcome, Verb
from cape_stream.model.ping import Ping
from cape_stream.model.status import EventFailure, FailureClass, JobStatus, StatusKind

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=80)
subjects = names.filter(lambda text: len(text.encode()) <= 1024)
lanes = st.sampled_from(["live", "backlog"])
naturals = st.one_of(
    st.integers(0, 200), st.integers(0, 2**22), st.integers(0, INT64_MAX), st.just(INT64_MAX)
)
stamps = st.one_of(st.integers(1_790_000_000_000, 1_790_000_000_003), naturals)
partitions = st.one_of(st.integers(0, 100), st.integers(0, INT32_MAX))
attempts = st.one_of(st.integers(1, 100), st.integers(1, INT32_MAX))
octets = st.one_of(st.binary(max_size=20), st.binary(min_size=60, max_size=200))

pings = st.builds(Ping, subjects, st.none() | naturals, stamps, lanes)
events = st.builds(
    Event,
    naturals,
    octets,
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), names, max_size=2),
    st.dictionaries(names, octets, max_size=2),
)
batches = st.lists(events, min_size=1, max_size=5, unique_by=lambda event: event.sequence).map(
    lambda batch: sorted(batch, key=lambda event: event.sequence)
)
jobs = st.builds(
    Job,
    job_id=names,
    domain=names,
    partition=partitions,
    subject=subjects,
    topology=names,
    lambda_id=names,
    queue=st.just("general"),
    epoch=naturals,
    attempt=attempts,
    issued_ms=stamps,
    timeout_ms=st.integers(1, INT64_MAX),
    events=batches,
    lane=lanes,
)
failures = st.builds(
    EventFailure,
    naturals,
    st.sampled_from(FailureClass),
    st.text(st.characters(codec="utf-8"), max_size=300),
    st.none() | naturals,
)
statuses = st.builds(
    JobStatus,
    job_id=names,
    domain=names,
    partition=partitions,
    subject=subjects,
    topology=names,
    lambda_id=names,
    epoch=naturals,
    attempt=attempts,
    kind=st.sampled_from(StatusKind),
    done=st.lists(naturals, max_size=4).map(tuple),
    outputs=st.dictionaries(naturals, octets, max_size=3),
    failures=st.lists(failures, max_size=3).map(tuple),
    queued_ms=naturals,
)
cursor_infos = st.builds(
    CursorInfo,
    subjects,
    st.just(-1) | naturals,
    st.dictionaries(names, st.just(-1) | naturals, max_size=6),
)
letters = st.builds(
    DeadLetter,
    topic=names,
    partition=partitions,
    offset=st.just(-1) | naturals,
    reason=names,
    key=st.none() | octets,
    value=st.none() | octets,
)
operations = st.builds(
    Operation,
    operation_id=names,
    verb=st.sampled_from(Verb),
    domain=names,
    topology=names,
    subject=subjects,
    sequence=st.none() | st.just(-1) | naturals,
    who=names,
    why=st.just("") | names,
    issued_ms=stamps,
)
audit_entries = st.builds(
    AuditEntry, operations, partitions, st.sampled_from(Outcome), names, stamps
)
values = st.one_of(pings, jobs, statuses, cursor_infos, letters, operations, audit_entries)

RECORDS: dict[type, str] = {
    Ping: "ping",
    Job: "job",
    JobStatus: "job_status",
    CursorInfo: "cursor_info",
    DeadLetter: "dead_letter",
    Operation: "operation",
    AuditEntry: "audit_entry",
}
"""Type of the model → record of the registry."""


def avro_fields(value: Any) -> dict[str, Any]:
    """The record as fastavro takes and gives it, made from the model alone."""
    fields = asdict(value)
    if isinstance(value, Job):
        del fields["queue"]
        fields["token"] = None
    elif isinstance(value, JobStatus):
        fields["kind"] = value.kind.value
        fields["done"] = list(value.done)
        fields["outputs"] = [
            {"sequence": sequence, "output": output} for sequence, output in value.outputs.items()
        ]
        fields["failures"] = [
            asdict(failure) | {"failure_class": failure.failure_class.value}
            for failure in value.failures
        ]
        fields["token"] = None
    elif isinstance(value, Operation):
        fields["verb"] = value.verb.value
    elif isinstance(value, AuditEntry):
        fields |= fields.pop("operation")
        fields["verb"] = value.operation.verb.value
        fields["outcome"] = value.outcome.value
    return fields
