"""Cursors of one subject: how far each topology has processed it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class CursorInfo:
    """All cursors of one subject in one record."""

    subject: str
    latest: int
    """Newest sequence id seen; `NO_CURSOR` before the first."""
    cursors: Mapping[str, int]
    """Topology name → last sequence id up to which it has processed the subject."""
