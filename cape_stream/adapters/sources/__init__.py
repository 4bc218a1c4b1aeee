"""Event sources: in memory, and any table of SQLite or PostgreSQL that grows by appending."""
