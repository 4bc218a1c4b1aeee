"""What the admin API may ask for, known to both sides of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Answer = Mapping[str, Any]


class MisdirectedError(Exception):
    """What was asked about is with another member."""

    def __init__(self, reason: str, owner: str | None) -> None:
        super().__init__(reason)
        self.owner = owner
        """Base URL of its admin API; None if nobody knows it."""


@dataclass(slots=True, frozen=True)
class AdminCalls:
    """What the API may ask for; called in threads, each may take a while.

    Every one raises Reject for what does not exist, Retry when it got no answer in time, and
    `MisdirectedError` when another member has it.
    """

    explain: Callable[[str, str], Answer]
    """(domain, subject)."""
    parked: Callable[[str, str | None, int], Iterable[Answer]]
    """(domain, topology, limit)."""
    topologies: Callable[[str], Iterable[Answer]]
    """(domain)."""
    audit: Callable[[str], Iterable[Answer]]
    """(domain)."""
    order: Callable[[Mapping[str, Any]], Iterable[Answer]]
    """(fields of the order)."""
