"""A durable log for one process: topics, groups and atomic commits on one RocksDB, no services."""

from cape_stream.adapters.embedded.log import EmbeddedLog
from cape_stream.adapters.embedded.settings import EmbeddedSettings

__all__ = ["EmbeddedLog", "EmbeddedSettings"]
