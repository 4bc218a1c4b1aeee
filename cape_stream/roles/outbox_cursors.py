"""How far everybody has come, read from the changelog: what an outbox may forget.

The changelog never knows more than has been done: it trails the dispatchers by a commit. What is
read here may be old by the time it is used, which errs on the side of keeping too much; the one
exception is a rewind ordered meanwhile, and what it wants back is guarded by the outbox's ``keep``
only.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from cape_stream.errors import Corrupt
from cape_stream.model.active_row import ActiveRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.sequence import NO_CURSOR
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import Log, Reader, TopicPartition
from cape_stream.runtime.active_rows import decode_active_row
from cape_stream.runtime.dispatching import ACTIVE_PREFIX, ASLEEP_PREFIX, CURSOR_PREFIX
from cape_stream.sdk.app import App

FULL_ROWS = (ACTIVE_PREFIX, ASLEEP_PREFIX)


class Wanted(NamedTuple):
    """Whose cursors count."""

    names: Collection[tuple[str, ...]]
    """The names of each topology, the present one first."""
    ignored: Collection[str]
    """Names of topologies that hold nothing back: former ones of the above, and retired ones."""


def wanted_of(app: App, domain: str, retired: Collection[str]) -> Wanted:
    """The topologies of a domain."""
    topologies = app.domains[domain].spec().topologies
    names = [(each.name, *each.formerly) for each in topologies]
    former = {name for each in names for name in each[1:]}
    return Wanted(names, frozenset(retired) | former)


def slowest(cursors: Mapping[str, int], wanted: Wanted) -> int:
    """The lowest cursor of a row: of all topologies declared, and of all others it holds, which a
    newer release may have added. `NO_CURSOR` if a declared one is missing, for it has yet to begin.
    """
    found = [cursor for name, cursor in cursors.items() if name not in wanted.ignored]
    found += (
        next((cursors[name] for name in names if name in cursors), NO_CURSOR)
        for names in wanted.names
    )
    return min(found, default=NO_CURSOR)


def slowest_cursors(
    log: Log, codec: Codec, app: App, domain: str, retired: Collection[str]
) -> dict[str, int]:
    """Subject → cursor of the slowest topology. Holds a number for each subject in memory.

    Raises:
        Retry: the log is away.
        Corrupt: a row does not decode.
        Reject: the same.
    """
    wanted = wanted_of(app, domain, retired)
    topic = app.topic_names.changelog(domain)
    reader = log.reader()
    try:
        found: dict[str, int] = {}
        for partition in range(app.partitions):
            found.update(_of_partition(reader, codec, TopicPartition(topic, partition), wanted))
        return found
    finally:
        reader.close()


def _of_partition(
    reader: Reader, codec: Codec, partition: TopicPartition, wanted: Wanted
) -> dict[str, int]:
    kept = reader.watermarks(partition)
    rows: dict[bytes, int] = {}
    """Row key → slowest cursor; only the newest record of a key counts."""
    for records in reader.read(partition, kept.low, kept.high):
        for record in records:
            key = record.key
            if key is None or len(key) < 2 or key[:1] not in (*FULL_ROWS, CURSOR_PREFIX):
                continue
            if record.value is None:
                rows.pop(key, None)
            else:
                rows[key] = slowest(_cursors(codec, key, record.value), wanted)
    found: dict[str, int] = {}
    for key, cursor in rows.items():
        subject = key[1:].decode()
        found[subject] = min(cursor, found.get(subject, cursor))
    return found


def _cursors(codec: Codec, key: bytes, value: bytes) -> Mapping[str, int]:
    row: CursorInfo | ActiveRow
    if key[:1] in FULL_ROWS:
        row = decode_active_row(value)
        _check_subject(key, row.subject)
        return _lowest((each.topology, each.cursor) for each in row.lambdas)
    row = codec.decode_cursors(value)
    _check_subject(key, row.subject)
    return row.cursors


def _lowest(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    cursors: dict[str, int] = {}
    for topology, cursor in pairs:
        cursors[topology] = min(cursor, cursors.get(topology, cursor))
    return cursors


def _check_subject(key: bytes, subject: str) -> None:
    if subject.encode() != key[1:]:
        raise Corrupt(f"the row of key {key!r} is about {subject!r}")
