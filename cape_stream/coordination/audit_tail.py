"""The live audit tail: the newest events of each workspace, for a dashboard to show at once.

One short stream per workspace, bounded by count and age. The durable record is the audit topic; who
needs every event reads that. A reader resumes by id, and is told when what it asks for is gone.

Without the server events are counted and dropped, for the durable record has them; readers get
Retry.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cape_stream.coordination.events import request_id
from cape_stream.coordination.keys import Name, encoded
from cape_stream.coordination.scripts import NOW, Script
from cape_stream.coordination.store import WAIT_SLICE_MS, Store
from cape_stream.errors import CapeError, Reject

BODY_BYTES_MAX = 16_384

_APPEND = Script(
    "append to an audit tail",
    NOW
    + """\
local tail, request, body, most, kept = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local last = redis.call('XREVRANGE', tail, '+', '-', 'COUNT', 16)
for _, entry in ipairs(last) do
  if entry[2][2] == request then return entry[1] end
end
local id = redis.call('XADD', tail, 'MAXLEN', most, '*', 'r', request, 'b', body)
redis.call('XTRIM', tail, 'MINID', whole(math.max(0, now_ms - kept)))
redis.call('PEXPIRE', tail, kept)
return id
""",
)


@dataclass(frozen=True, slots=True)
class TailSettings:
    """How much is kept, per workspace."""

    most: int = 1_000
    """Newest events, >= 1."""
    kept_ms: int = 24 * 3_600_000
    """Age after which an event is dropped, 1 s to 30 days."""

    def __post_init__(self) -> None:
        if self.most < 1 or not 1_000 <= self.kept_ms <= 30 * 24 * 3_600_000:
            raise Reject(
                f"a tail keeps 1 event or more for 1 s to 30 days, not {self.most} for"
                f" {self.kept_ms} ms"
            )


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One event of a workspace."""

    id: str
    """Grows within the workspace; resume with it."""
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Gap:
    """What was asked for is no longer there: events are missing before what follows."""

    after: str
    """The id that was asked for."""


class AuditTail:
    """Appends to and reads tails. Threads share it."""

    def __init__(self, store: Store, settings: TailSettings | None = None) -> None:
        self._store = store
        self._settings = settings or TailSettings()
        self._keys = store.keys("audit")

    def append(self, workspace: Name, body: Mapping[str, Any]) -> str | None:
        """Show an event; its id, or None if the server could not take it.

        Never raises for want of the server: whoever does something audited shall not wait for a
        dashboard.

        Raises:
            Reject: the workspace's name cannot be one, or the body is no JSON of at most 16 KiB.
        """
        key = self._key(workspace)
        try:
            text = json.dumps(body, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise Reject(f"an audit event must be JSON: {error}") from error
        if len(text) > BODY_BYTES_MAX:
            raise Reject(f"an audit event has {len(text)} bytes, at most {BODY_BYTES_MAX}")
        settings = self._settings
        try:
            arguments = (request_id(), text, settings.most, settings.kept_ms)
            found: bytes = self._store.call(_APPEND.call([key], *arguments))
        except CapeError:
            self._store.figures.add("audit_dropped")
            return None
        self._store.figures.add("audit_appended")
        return found.decode()

    def recent(self, workspace: Name, count: int = 100) -> list[AuditEvent]:
        """The newest events, the newest last.

        Raises:
            Retry: the server cannot be reached.
        """
        if count < 1:
            return []
        entries = self._store.command("XREVRANGE", self._key(workspace), "+", "-", "COUNT", count)
        return [_event(entry) for entry in reversed(entries)]

    def since(self, workspace: Name, after: str, count: int = 100) -> list[AuditEvent | Gap]:
        """What followed an id, oldest first; begins with a `Gap` if some of it is gone.

        Raises:
            Reject: ``after`` is no id of an event.
            Retry: the server cannot be reached.
        """
        key, known = self._key(workspace), checked_id(after)
        entries = self._store.command("XRANGE", key, known, "+", "COUNT", count + 1)
        if entries and entries[0][0].decode() == known:
            return [_event(entry) for entry in entries[1:]]
        return [Gap(known), *(_event(entry) for entry in entries[:count])]

    def follow(
        self, workspace: Name, after: str | None = None, idle_ms: int = WAIT_SLICE_MS
    ) -> Iterator[AuditEvent | Gap | None]:
        """Events as they come, for ever; None each time that nothing came for ``idle_ms``.

        Args:
            workspace: whose.
            after: resume after this id; None: only what comes from now on.
            idle_ms: at most one second; a chance for the caller to stop.

        Raises:
            Retry: the server cannot be reached: follow again, after the last id that came.
            Reject: ``after`` is no id of an event.
        """
        key = self._key(workspace)
        if after is None:
            newest = self._store.command("XREVRANGE", key, "+", "-", "COUNT", 1)
            position = newest[0][0].decode() if newest else "0-0"
        else:
            position = checked_id(after)
            for found in self.since(workspace, position, self._settings.most):
                yield found
                if isinstance(found, AuditEvent):
                    position = found.id
        while True:
            words = ("XREAD", "BLOCK", max(1, min(idle_ms, WAIT_SLICE_MS)), "COUNT", 100)
            reply = self._store.block(WAIT_SLICE_MS, *words, "STREAMS", key, position)
            events = [_event(entry) for entry in _entries(reply)]
            yield from events
            if events:
                position = events[-1].id
            else:
                yield None

    def _key(self, workspace: Name) -> str:
        return self._keys.of(encoded(workspace, "workspace"), "tail")


def checked_id(text: str) -> str:
    """An id of an event, if it is one.

    Raises:
        Reject: it is not.
    """
    time_ms, dash, number = text.partition("-")
    parts = (time_ms, number)
    if not dash or not all(part.isascii() and part.isdigit() for part in parts):
        raise Reject(f"{text[:40]!r} is no id of an audit event, such as 1700000000000-0")
    if any(int(part) >= 1 << 64 for part in parts):
        raise Reject(f"{text[:40]!r} is no id of an audit event: a number is too large")
    return f"{int(time_ms)}-{int(number)}"


def _entries(reply: Any) -> Sequence[Any]:
    """Entries of the one stream that was read, however the client shaped them."""
    if not reply:
        return []
    if isinstance(reply, dict):
        (batches,) = reply.values()
        return list(batches)
    ((_, entries),) = reply
    return list(entries)


def _event(entry: Any) -> AuditEvent:
    found, fields = entry
    body = json.loads(fields.get(b"b", b"{}"))
    return AuditEvent(found.decode(), body)
