"""Which rows of a PostgreSQL table nothing can slip in front of any more.

A transaction may take sequence id 5, another one 6 and commit first: whoever delivers 6 then has
skipped 5 for good. A row is *settled* once no transaction is left that might still bring an
earlier one. This module decides that from sightings of the running transactions. It reads
no database and no clock.

The rule. A sighting is, of one moment: the oldest transaction id that is still running, the next
one after all that have ended, and the transactions that hold a write lock on the table or on a
sequence it owns. PostgreSQL takes that lock before it evaluates the row, so before a sequence id
is drawn, and keeps it until after the row has become visible. Therefore everybody who has drawn an
id below that of a row that was visible at the sighting is either among its writers or has ended.
When none of these writers is in a later sighting, everything below the sighting's oldest running
transaction is settled.

Comparing a row's own transaction id with the oldest running one is not enough: a transaction
may have got its id early, by a write elsewhere, and draw its sequence id late.

Why "below the oldest running" and not "visible in the snapshot": a row written inside a savepoint
carries the id of the savepoint, which a snapshot does not list; but it is above that of its
transaction.
"""

from dataclasses import dataclass
from threading import Lock

XIDS = 2**32
PENDING_MAX = 16


@dataclass(slots=True, frozen=True)
class Sighting:
    """The running transactions of one moment."""

    oldest: int
    """Every transaction with an id below has ended. 64 bits."""
    next: int
    """Every row that is visible was written by a transaction below. 64 bits."""
    writers: frozenset[str]
    """Who may be adding rows to the table, read after the two ids were."""


def parse_snapshot(text: str) -> tuple[int, int]:
    """Return oldest and next transaction id of PostgreSQL's text ``oldest:next:running,…``."""
    oldest, following, _ = text.split(":")
    return int(oldest), int(following)


def full_xid(xid: int, following: int) -> int:
    """Widen a row's 32-bit transaction id to 64 bits, given `Sighting.next` of the same statement.

    A row so old that the counter has gone round since then (it is frozen by then) comes out newer
    than it is, never older: it may be held back a while without need, and is never let go early.
    """
    return following - (following - xid) % XIDS


class Horizon:
    """The highest transaction id below which all is settled; only ever rises. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._turn = 0
        self._pending: list[tuple[int, Sighting]] = []
        self._boundary = 0
        self._raised = 0
        """Turn in which the boundary was raised."""

    def begin(self) -> int:
        """Call before the statement that sees; hand the number to `observe` with its result.

        A sighting proves that writers have ended only if it began after theirs was complete.
        """
        with self._lock:
            self._turn += 1
            return self._turn

    def observe(self, began: int, sighting: Sighting) -> int:
        """Take a sighting in; return the boundary: rows of transactions below it are settled."""
        with self._lock:
            self._turn += 1
            if sighting.next < self._boundary and self._raised < began:
                self._start_over()
            done = [
                earlier.oldest
                for turn, earlier in self._pending
                if turn < began and not earlier.writers & sighting.writers
            ]
            if not sighting.writers:
                done.append(sighting.oldest)
            if done and max(done) > self._boundary:
                self._boundary, self._raised = max(done), self._turn
            self._remember(sighting)
            return self._boundary

    def _start_over(self) -> None:
        """Forget all: the counter went back, so this is another server, or one restored."""
        self._boundary = 0
        self._pending.clear()

    def _remember(self, sighting: Sighting) -> None:
        """Keep what can still raise the boundary: the oldest, which ends first, and the newest."""
        self._pending.append((self._turn, sighting))
        self._pending = [each for each in self._pending if each[1].oldest > self._boundary]
        surplus = max(0, len(self._pending) - PENDING_MAX)
        del self._pending[1 : 1 + surplus]
