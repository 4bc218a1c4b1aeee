"""The only clock the system reads."""

from typing import Protocol


class Clock(Protocol):
    """A steady clock: Unix milliseconds when the process began, monotonic from there on.

    A step of the machine's wall clock never reaches it, so no timeout fires early or late
    because of one.
    """

    def now_ms(self) -> int:
        """Milliseconds; never goes back within a process."""
        ...

    def sleep_ms(self, duration_ms: int) -> None:
        """Let ``duration_ms`` pass."""
        ...
