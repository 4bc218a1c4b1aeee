"""What a handler can see of the job it runs, and how it says that it was interrupted."""

import threading
from collections.abc import Awaitable, Callable
from enum import StrEnum

from cape_stream.ports.clock import Clock


class Loss(StrEnum):
    """Why a handler was told to end before it was done."""

    REFUSED = "refused"
    """The queue refused to extend the message: somebody else may have it."""
    UNRENEWED = "unrenewed"
    """Two extensions in a row failed, or none was in time."""
    CEILING = "ceiling"
    """The job has run as long as a job may."""
    DRAIN = "drain"
    """The process stops and its grace period is over; the message goes back."""


class HandedBackError(Exception):
    """Raised by a handler that was interrupted between two steps: give the message back at once,
    and do not count the attempt."""


class JobContext:
    """One job, as its handler sees it. Readable from any thread."""

    def __init__(
        self,
        *,
        queue: str,
        message_id: str,
        attempt: int,
        clock: Clock,
        deadline_ms: int,
        extend: Callable[[int], Awaitable[None]],
    ) -> None:
        """A context of one run.

        Args:
            queue: short name of the queue it came from.
            message_id: the queue's id of the message, the same at every attempt.
            attempt: 1 for the first run; runs that a stop interrupted are not counted.
            clock: the process's steady clock.
            deadline_ms: when the ceiling is reached, by ``clock``.
            extend: carries out `extend`.
        """
        self.queue = queue
        self.message_id = message_id
        self.attempt = attempt
        self.loss: Loss | None = None
        """Set before the handler is cancelled; a handler in a thread has to look."""
        self._clock = clock
        self._deadline_ms = deadline_ms
        self._extend = extend
        self._stopping = threading.Event()

    @property
    def remaining_ms(self) -> int:
        """Milliseconds until the ceiling; 0 when the job was lost."""
        return 0 if self.loss else max(0, self._deadline_ms - self._clock.now_ms())

    @property
    def stopping(self) -> bool:
        """True once the process stops: end at the next good point, or raise `HandedBackError`."""
        return self._stopping.is_set()

    def raise_if_lost(self) -> None:
        """For handlers in threads, which nobody can cancel.

        Raises:
            HandedBackError: the message is not ours any more; what is done now may be done twice.
        """
        if self.loss is not None:
            raise HandedBackError(f"the job was ended: {self.loss}")

    async def extend(self, seconds: int) -> None:
        """Keep the message invisible for at least so long; the heartbeat does not shorten it."""
        await self._extend(seconds)

    def stop_soon(self) -> None:
        """Tell the handler that the process stops; called by the processor."""
        self._stopping.set()
