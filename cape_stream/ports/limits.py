"""How many calls to one counterparty may run at once, for a whole fleet.

The ceiling shrinks when the counterparty refuses and grows again with success.
"""

from enum import StrEnum
from typing import Protocol


class CallOutcome(StrEnum):
    """How a call that was permitted ended."""

    SUCCESS = "success"
    REFUSED = "refused"
    """The counterparty said that it is too much: the ceiling shrinks."""
    FAILED = "failed"
    """Something else: says nothing about the ceiling."""


class AdaptiveLimit(Protocol):
    """The ceiling of one counterparty. From one event loop."""

    async def acquire(self, wait_ms: int) -> str | None:
        """A permit, waiting for one at most so long; None: there was none, or all is paused."""
        ...

    async def release(
        self, permit: str, outcome: CallOutcome, retry_after_ms: int | None = None
    ) -> None:
        """Give a permit back. A ``retry_after_ms`` holds everybody off for so long."""
        ...

    async def shrink(self) -> None:
        """Lower the ceiling as one refusal would; for signals that come another way."""
        ...

    async def pause(self, reason: str) -> None:
        """Give out no more permits until `resume`, which may come from another process."""
        ...

    async def resume(self) -> None:
        """Give out permits again."""
        ...
