"""Seeded worlds: whole dispatchers and workers on a log that fails, then heal and must deliver."""
