"""A ping: "this subject has news". May be lost, repeated or reordered without harm."""

from dataclasses import dataclass


@dataclass(slots=True)
class Ping:
    """One notification. Never changed after it was built."""

    subject: str
    """Whose news it is."""
    latest: int | None = None
    """Newest sequence id the source knows of, or None when it did not say."""
    sent_ms: int = 0
    """When the source sent it, Unix milliseconds; 0 when unknown. For latency figures only."""
    lane: str = "live"
    """``live`` for fresh news, ``backlog`` for refresh and backfill."""
