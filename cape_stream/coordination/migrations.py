"""Migration status: what a migration does, written by the holder of its lock and nobody older."""

import json
from dataclasses import dataclass
from enum import StrEnum

from cape_stream.coordination.keys import Name, encoded
from cape_stream.coordination.leases import Lease
from cape_stream.coordination.scripts import NOW, Script
from cape_stream.coordination.store import Store
from cape_stream.errors import Fenced, Reject

KEPT_MS = 30 * 24 * 3_600_000
DETAIL_BYTES_MAX = 4_096

_WRITE = Script(
    "write a migration's status",
    NOW
    + """\
local fence = tonumber(redis.call('HGET', KEYS[1], 'fence')) or 0
if tonumber(ARGV[1]) < fence then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'status', ARGV[2], 'at_ms', whole(now_ms))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
""",
)
_READ = Script(
    "read a migration's status", "return redis.call('HMGET', KEYS[1], 'fence', 'status', 'at_ms')"
)


class MigrationState(StrEnum):
    """How far a migration is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """What is known of a migration."""

    state: MigrationState
    detail: str
    """For people: the step it is at, or why it failed; at most 4 KiB."""
    done: int
    """Parts that are done."""
    total: int
    """All parts; 0 if nobody counted."""
    fence: int
    """Of the lease it was written under."""
    at_ms: int
    """Unix milliseconds by the server's clock."""


class Migrations:
    """Status records of migrations, for a month. The record of truth is what was migrated."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys("migration")

    def write(
        self,
        name: Name,
        lease: Lease,
        state: MigrationState,
        detail: str = "",
        done: int = 0,
        total: int = 0,
    ) -> None:
        """Say how far it is.

        Raises:
            Fenced: the lease is lost, or a later holder has written: stop migrating.
            Reject: the detail is longer than 4 KiB, or the name cannot be one.
            Retry: the server cannot be reached.
        """
        if len(detail.encode(errors="surrogatepass")) > DETAIL_BYTES_MAX:
            raise Reject(f"the detail of migration {name!r} is over {DETAIL_BYTES_MAX} bytes")
        key = self._keys.of(encoded(name, "name of a migration"), "status")
        lease.check()
        text = json.dumps({"state": state, "detail": detail, "done": done, "total": total})
        if not self._store.call(_WRITE.call([key], lease.fence, text, KEPT_MS)):
            raise Fenced(f"a later holder has written the status of migration {name!r}")

    def read(self, name: Name) -> MigrationStatus | None:
        """The newest status; None if there is none, or it cannot be read as one."""
        key = self._keys.of(encoded(name, "name of a migration"), "status")
        fence, text, at_ms = self._store.call(_READ.call([key]))
        try:
            found = json.loads(text)
            state = MigrationState(found["state"])
            numbers = (int(found["done"]), int(found["total"]), int(fence), int(at_ms))
            return MigrationStatus(state, str(found["detail"]), *numbers)
        except (TypeError, ValueError, KeyError):
            return None
