"""The near cache: values in the memory of this process, bypassed when they may be stale."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from time import monotonic


class NearEntry:
    """One value."""

    __slots__ = ("members", "until_s", "used", "value")

    def __init__(self, value: object, until_s: float, members: tuple[str, ...]) -> None:
        self.value = value
        self.until_s = until_s
        self.members = members
        self.used = False


class NearCache:
    """At most ``entries_max`` values. Threads share it; a hit takes no lock.

    A value enters only if no invalidation that is newer than its reading was applied meanwhile, so
    an invalidation that overtakes the reply of a read does no harm.

    Args:
        entries_max: values held, > 0; the one unused for longest (about) gives way.
        proven_until_ms: monotonic; until then the view is known to be fresh.
    """

    def __init__(self, entries_max: int, proven_until_ms: Callable[[], float]) -> None:
        self._entries_max = entries_max
        self._proven_until_ms = proven_until_ms
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, NearEntry] = OrderedDict()
        self._index: dict[str, set[Hashable]] = {}
        self._applied = 0
        self._generation = 0

    @property
    def generation(self) -> int:
        """Moves on with every flush; a reading of an earlier one may not enter."""
        return self._generation

    def get(self, key: Hashable) -> NearEntry | None:
        """The value, unless it is too old, or nobody can tell whether it is stale."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        now_s = monotonic()
        if entry.until_s < now_s or self._proven_until_ms() < now_s * 1_000:
            return None
        entry.used = True
        return entry

    def put(self, key: Hashable, entry: NearEntry, as_of: int, generation: int) -> bool:
        """Take a value in that was read as of a sequence, begun in a generation."""
        with self._lock:
            if generation != self._generation or as_of < self._applied:
                return False
            self._drop(key)
            if len(self._entries) >= self._entries_max:
                self._make_room()
            self._entries[key] = entry
            for member in entry.members:
                self._index.setdefault(member, set()).add(key)
            return True

    def invalidate(self, sequence: int, members: Iterable[str]) -> None:
        """Drop what an invalidation concerns, and what was read before it."""
        with self._lock:
            self._applied = max(self._applied, sequence)
            for member in members:
                if member == "n":
                    self._clear()
                for key in list(self._index.get(member, ())):
                    self._drop(key)

    def flush(self) -> None:
        """Drop everything, also what is being read now."""
        with self._lock:
            self._generation += 1
            self._clear()

    def __len__(self) -> int:
        return len(self._entries)

    def _clear(self) -> None:
        self._entries.clear()
        self._index.clear()

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        for member in entry.members:
            keys = self._index.get(member)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._index[member]

    def _make_room(self) -> None:
        """Second chance: whoever was used since it was last looked at goes to the end."""
        for _ in range(len(self._entries)):
            key = next(iter(self._entries))
            entry = self._entries[key]
            if not entry.used:
                break
            entry.used = False
            self._entries.move_to_end(key)
        self._drop(next(iter(self._entries)))
