"""A record that could not be used: kept unchanged, counted, and never in the way of the next."""

from dataclasses import dataclass


@dataclass(slots=True)
class DeadLetter:
    """Where the record stood, why it was refused, and its bytes as they were."""

    topic: str
    partition: int
    offset: int
    """-1 when the record never got into its topic, such as a job over the size limit."""
    reason: str
    """Short and stable, such as ``truncated`` or ``unknown schema id 2147483647``."""
    key: bytes | None
    value: bytes | None
