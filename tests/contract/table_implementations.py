"""Every implementation of `cape_stream.ports.table.Table`, as the contract suite sees it.

To add one: write a class with the methods of `TableUnderTest` and append a `TableImplementation` to
`TABLES`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from cape_stream.adapters.rocksdb import RocksTable
from cape_stream.adapters.simulated import Disk, MemoryTable
from cape_stream.ports.table import Table


class TableUnderTest(Protocol):
    """A table, and what a test does to it behind the back of those who use it."""

    table: Table
    folder: str
    """What messages call the place where the rows are."""

    def opened_again(self) -> Table:
        """A second table on the same rows, beside the first one."""
        ...

    def reopen(self) -> None:
        """Close `table` and put another on the same rows in its place."""
        ...

    def damage(self, task: str) -> None:
        """Spoil stored rows of ``task`` behind a closed table, then open it again if it opens."""
        ...

    def open_command(self) -> str:
        """Python that makes ``table`` in another process. Needs "processes"."""
        ...


@dataclass(frozen=True, kw_only=True)
class TableImplementation:
    """One implementation and what it declares."""

    open: Callable[[Path], AbstractContextManager[TableUnderTest]]
    cannot: Mapping[str, str] = field(default_factory=dict)


class RocksUnderTest:
    """A table on RocksDB in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.folder = str(path)
        self.table: Table = RocksTable(path)

    def opened_again(self) -> Table:
        return RocksTable(self._path)

    def reopen(self) -> None:
        self.table.close()
        self.table = RocksTable(self._path)

    def damage(self, task: str) -> None:
        self.table.close()
        files = list(self._path.glob("*.sst"))
        assert files, "a closed table has its rows in files"
        for file in files:
            content = bytearray(file.read_bytes())
            content[: len(content) // 2] = b"\xa5" * (len(content) // 2)
            file.write_bytes(content)
        self.table = RocksTable(self._path)

    def open_command(self) -> str:
        return (
            "from cape_stream.adapters.rocksdb import RocksTable\n"
            f"table = RocksTable({self.folder!r})\n"
        )


@contextmanager
def _rocksdb(path: Path) -> Iterator[TableUnderTest]:
    under_test = RocksUnderTest(path / "state")
    yield under_test
    under_test.table.close()


class MemoryUnderTest:
    """The twin, on a disk in memory."""

    def __init__(self) -> None:
        self._disk = Disk("memory")
        self.folder = self._disk.folder
        self.table: Table = MemoryTable(self._disk)

    def opened_again(self) -> Table:
        return MemoryTable(self._disk)

    def reopen(self) -> None:
        self.table.close()
        self.table = MemoryTable(self._disk)

    def damage(self, task: str) -> None:
        self._disk.damage(task)

    def open_command(self) -> str:
        raise NotImplementedError


@contextmanager
def _memory(path: Path) -> Iterator[TableUnderTest]:
    under_test = MemoryUnderTest()
    yield under_test
    under_test.table.close()


TABLES = [
    pytest.param(TableImplementation(open=_rocksdb), id="rocksdb"),
    pytest.param(
        TableImplementation(open=_memory, cannot={"processes": "lives within one process"}),
        id="memory",
    ),
]
