"""The one RocksDB of an embedded log: opened with bounds, read in steps, errors re-typed.

A damaged log cannot be rebuilt from anything, so damage is Fatal here (a damaged table is not).
"""

from collections.abc import Iterable
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from cape_stream.adapters.embedded.settings import EmbeddedSettings
from cape_stream.errors import CapeError, Fatal


class Store:
    """Raw rows. Safe to share by threads; no iterator outlives a call, so `close` always frees.

    Raises (all methods): Fatal naming the folder, for whatever RocksDB reports.
    """

    def __init__(self, path: Path, settings: EmbeddedSettings) -> None:
        self._failure: CapeError | None = None
        self._path = path
        self._write_options = WriteOptions()
        self._write_options.sync = settings.sync
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._rows = Rdict(str(path), _options(settings))
        except Exception as error:
            raise retyped(error, path) from error

    def write(self, batch: WriteBatch) -> None:
        """Apply all of ``batch`` or nothing; safe from a kill when this returns."""
        self.check()
        try:
            self._rows.write(batch, self._write_options)
        except Exception as error:
            failure = retyped(error, self._path)
            self.fail(failure)
            raise failure from error

    def fail(self, failure: CapeError) -> None:
        """Take no more writes; the first reason counts."""
        self._failure = self._failure or failure

    def check(self) -> None:
        """Raise Fatal when the store takes no more writes.

        After a failed write nobody knows what is on the disk, so nothing may follow it.
        """
        if self._failure is not None:
            raise Fatal(self._failure.reason) from self._failure

    def get_many(self, row_keys: Iterable[bytes]) -> list[bytes | None]:
        """Rows in the order of ``row_keys``."""
        try:
            return list(self._rows.get([*row_keys]) or ())
        except Exception as error:
            raise retyped(error, self._path) from error

    def scan(self, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` rows with lower <= key < upper, ascending."""
        options = ReadOptions()  # must outlive the iterator, which only borrows the bound
        options.set_iterate_upper_bound(upper)
        found: list[tuple[bytes, bytes]] = []
        try:
            cursor = self._rows.iter(options)
            cursor.seek(lower)
            while len(found) < limit and cursor.valid():
                found.append((cursor.key(), cursor.value()))
                cursor.next()
            cursor.status()  # an iterator ends at a damaged block as if at the end of the rows
        except Exception as error:
            raise retyped(error, self._path) from error
        return found

    def last_key(self, lower: bytes, upper: bytes) -> bytes | None:
        """Greatest key with lower <= key <= upper; None if there is none."""
        try:
            cursor: RdictIter = self._rows.iter()
            cursor.seek_for_prev(upper)
            key: bytes | None = cursor.key() if cursor.valid() else None
            cursor.status()
        except Exception as error:
            raise retyped(error, self._path) from error
        return key if key is not None and key >= lower else None

    def close(self) -> None:
        """Flush and free the folder; may be called twice."""
        try:
            self._rows.close()
        except DbClosedError:
            return
        except Exception as error:
            raise retyped(error, self._path) from error


def _options(settings: EmbeddedSettings) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(settings.cache_bytes))
    blocks.set_bloom_filter(10, False)  # for the newest-record rows of keys never seen before
    blocks.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(32 << 20)
    options.set_max_write_buffer_number(6)
    # rocksdict holds the interpreter lock during a write: a stall would stop every thread.
    options.set_level_zero_slowdown_writes_trigger(60)
    options.set_level_zero_stop_writes_trigger(120)
    options.set_compression_type(DBCompressionType.lz4())
    # Superseded and truncated records leave deletions behind; compact where they crowd.
    options.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5)
    options.set_max_background_jobs(2)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    return options


def retyped(error: Exception, path: Path) -> CapeError:
    """``error`` as a member of our tree, naming the folder."""
    if isinstance(error, CapeError):
        return error
    text = str(error).strip()
    if "lock hold by current process" in text or "While lock file" in text:
        return Fatal(f"log folder {path} is in use by another process or log: {text}")
    if text.startswith("Corruption") or ("No such file" in text and "MANIFEST" in text):
        return Fatal(
            f"log folder {path} is damaged: {text}; put back a copy of it, or remove it to begin"
            " anew from the event sources"
        )
    return Fatal(f"log folder {path}: {text or type(error).__name__}")
