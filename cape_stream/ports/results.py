"""Answers that somebody waits for, by request id."""

from typing import Protocol


class Results(Protocol):
    """Carries one answer from whoever worked to whoever waits, perhaps in another process.

    Losing an answer costs the waiter its deadline, nothing else.
    """

    async def put(self, request_id: str, answer: bytes, keep_ms: int) -> None:
        """Leave an answer, kept for ``keep_ms``; the first one of a request stays.

        Raises:
            Retry: the carrier is away.
        """
        ...

    async def wait(self, request_id: str, timeout_ms: int) -> bytes | None:
        """The answer, waiting for it at most so long; None if none came."""
        ...
