"""Bulk loading by sorted files that RocksDB takes over as they are.

Measured with 1,000,000 rows of 115 bytes: sorted files 2.0 us CPU a row, write batches 3.1 us,
whether or not they go through the write-ahead log.
"""

from collections.abc import Mapping
from itertools import count
from pathlib import Path

from rocksdict import IngestExternalFileOptions, Rdict, SstFileWriter, WriteBatch

from cape_stream.adapters.rocksdb.store import file_options

FILE_ROWS = 100_000
FILE_BYTES = 32 << 20
"""A file is finished at either bound; together they bound the memory of a restore."""
SMALL_ROWS = 5_000
"""Up to this many rows a write batch is cheaper than a file of their own."""

_file_numbers = count()


class BulkLoad:
    """Gathers rows, newest value per key, and hands them to the store in sorted files.

    Each file is taken over atomically, and later ones win over earlier ones, so a crash leaves a
    prefix of the load: replaying the changelog from the old position repairs it.
    """

    def __init__(self, store: Rdict, folder: Path, prefix: bytes) -> None:
        self._store = store
        self._folder = folder
        self._prefix = prefix
        self._rows: dict[bytes, bytes | None] = {}
        self._gathered_bytes = 0

    def add(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Take rows; writes a file when enough have come together."""
        self._rows.update(rows)
        self._gathered_bytes += sum(
            len(key) + (len(value) if value is not None else 0) for key, value in rows.items()
        )
        if len(self._rows) >= FILE_ROWS or self._gathered_bytes >= FILE_BYTES:
            self._hand_over()

    def finish(self) -> None:
        """Hand over what is left; afterwards every row is in the store, safe from a kill."""
        if len(self._rows) > SMALL_ROWS:
            self._hand_over()
        elif self._rows:
            self._write_small()

    def _write_small(self) -> None:
        batch = WriteBatch(raw_mode=True)
        prefix = self._prefix
        for key, value in self._rows.items():
            if value is None:
                batch.delete(prefix + key)
            else:
                batch.put(prefix + key, value)
        self._store.write(batch)

    def _hand_over(self) -> None:
        path = str(self._folder / f"{next(_file_numbers)}.sst")
        writer = SstFileWriter(file_options())
        writer.open(path)
        prefix, rows = self._prefix, self._rows
        for key in sorted(rows):
            value = rows[key]
            if value is None:
                del writer[prefix + key]
            else:
                writer[prefix + key] = value
        writer.finish()
        move = IngestExternalFileOptions()
        move.set_move_files(True)
        self._store.ingest_external_file([path], move)
        self._rows = {}
        self._gathered_bytes = 0
