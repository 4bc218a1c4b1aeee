"""Ports carried out on this machine alone: in memory, or in one SQLite file.

For one process, for tests and for a first run; a fleet puts Valkey or a database in their place.
"""

from cape_stream.adapters.local.limit import LocalLimit
from cape_stream.adapters.local.memory import MemoryProgress, MemoryResults
from cape_stream.adapters.local.sqlite import SqliteProgress

__all__ = ["LocalLimit", "MemoryProgress", "MemoryResults", "SqliteProgress"]
