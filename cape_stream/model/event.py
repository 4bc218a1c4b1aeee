"""An event of a subject, as the source stores it and as a job carries it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

NO_HEADERS: Mapping[str, str] = {}
NO_INPUTS: Mapping[str, bytes] = {}


@dataclass(slots=True)
class Event:
    """One persisted fact of a subject. Never changed after it was built."""

    sequence: int
    """Position within the subject: int64 >= 0, strictly increasing, gaps allowed."""
    payload: bytes
    """The source's own bytes; cape_stream never looks inside."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    """Small text attributes, such as a content type or a trace id."""
    inputs: Mapping[str, bytes] = field(default_factory=lambda: NO_INPUTS)
    """Lambda id → output for this event, for lambdas that take inputs; empty at the source."""
