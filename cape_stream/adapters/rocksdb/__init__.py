"""The state table on RocksDB: one store and one memory budget per process."""

from cape_stream.adapters.rocksdb.table import RocksTable, wipe_table

__all__ = ["RocksTable", "wipe_table"]
