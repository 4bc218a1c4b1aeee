"""The table of a simulated process, and the disk under it that outlives the process."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock

from cape_stream.adapters.simulated.process import SimProcess
from cape_stream.adapters.simulated.timeline import Timeline
from cape_stream.errors import Corrupt, Fatal


@dataclass(slots=True)
class StoredTask:
    """The rows of one task."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    position: int | None = None
    """Next changelog offset not covered; None before the first write."""
    damaged: bool = False


class Disk:
    """A state folder. A process that dies leaves every finished write behind.

    Args:
        folder: its name in messages.
    """

    def __init__(self, folder: str = "state") -> None:
        self.folder = folder
        self.tasks: dict[str, StoredTask] = {}
        self.holder: MemoryTable | None = None
        """Who has it open."""
        self.lock = RLock()

    def lose(self) -> None:
        """The machine is gone: an empty disk takes its place."""
        self.tasks.clear()

    def copy(self) -> dict[str, StoredTask]:
        """What is on it now, for `put_back`."""
        return copy.deepcopy(self.tasks)

    def put_back(self, tasks: Mapping[str, StoredTask]) -> None:
        """An old copy takes its place, as after a restore of a backup."""
        self.tasks = copy.deepcopy(dict(tasks))

    def damage(self, task: str) -> None:
        """The rows of ``task`` are unreadable until they are cleared."""
        self.tasks.setdefault(task, StoredTask()).damaged = True


class MemoryTable:
    """Implements `Table` in memory.

    Args:
        disk: what it keeps its rows on; None for a disk of its own.
        process: whose table it is; None for one that never dies.

    Raises:
        Fatal: another table has the disk open.
    """

    def __init__(self, disk: Disk | None = None, process: SimProcess | None = None) -> None:
        self.disk = disk or Disk()
        self._process = process or SimProcess(Timeline(), "plain")
        self._process.touch()
        if self.disk.holder is not None:
            raise Fatal(f"the state folder {self.disk.folder} is in use by another process")
        self.disk.holder = self
        self._process.at_death(self._release)

    def get_many(self, task: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `Table.get_many`."""
        rows = self._readable(task).rows
        return [rows.get(key) for key in keys]

    def write(self, task: str, rows: Mapping[bytes, bytes | None], position: int) -> None:
        """See `Table.write`."""
        with self.disk.lock:
            stored = self._writable(task)
            self._put(stored, rows)
            stored.position = position

    def load(self, task: str, batches: Iterable[Mapping[bytes, bytes | None]]) -> None:
        """See `Table.load`."""
        for rows in batches:
            with self.disk.lock:
                self._put(self._writable(task), rows)

    def scan(self, task: str, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See `Table.scan`; shows the rows as they were when the first one was asked for."""
        with self.disk.lock:
            rows = self._readable(task).rows.items()
            found = sorted(row for row in rows if row[0].startswith(prefix) and row[0] >= start)
        yield from found

    def position(self, task: str) -> int | None:
        """See `Table.position`."""
        return self._readable(task).position

    def clear(self, task: str) -> None:
        """See `Table.clear`; also repairs damage."""
        self._process.touch()
        with self.disk.lock:
            self.disk.tasks.pop(task, None)

    def close(self) -> None:
        """See `Table.close`."""
        self._release()

    def _release(self) -> None:
        if self.disk.holder is self:
            self.disk.holder = None

    def _readable(self, task: str) -> StoredTask:
        self._process.touch()
        stored = self.disk.tasks.get(task)
        if stored is None:
            return StoredTask()
        if stored.damaged:
            raise Corrupt(f"the rows of {task} in {self.disk.folder} are damaged")
        return stored

    def _writable(self, task: str) -> StoredTask:
        self._readable(task)
        return self.disk.tasks.setdefault(task, StoredTask())

    @staticmethod
    def _put(stored: StoredTask, rows: Mapping[bytes, bytes | None]) -> None:
        for key, value in rows.items():
            if value is None:
                stored.rows.pop(key, None)
            else:
                stored.rows[key] = value
