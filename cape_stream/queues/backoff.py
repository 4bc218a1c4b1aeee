"""How long a message that failed stays invisible before its next attempt."""

from dataclasses import dataclass

from cape_stream.ports.queue import VISIBILITY_S_MAX


@dataclass(slots=True, frozen=True, kw_only=True)
class Backoff:
    """Doubling waits. The wait is the message's visibility: nothing is sent again, so the queue
    goes on counting receives and its redrive policy works.

    Raises:
        ValueError: a value is out of its range; the message names it.
    """

    first_s: int = 2
    """Wait after the first failure, 0 to 43,200."""
    max_s: int = 900
    """Longest wait, at least ``first_s``."""

    def __post_init__(self) -> None:
        if not 0 <= self.first_s <= VISIBILITY_S_MAX:
            raise ValueError(f"first_s must be 0 to {VISIBILITY_S_MAX}, not {self.first_s}")
        if not self.first_s <= self.max_s <= VISIBILITY_S_MAX:
            raise ValueError(
                f"max_s must be {self.first_s} to {VISIBILITY_S_MAX}, not {self.max_s}"
            )

    def wait_s(self, attempt: int, chance: float) -> int:
        """The wait after a failed attempt.

        Args:
            attempt: 1 for the first.
            chance: 0.0 to 1.0; takes off up to half, so that what failed together spreads out.
        """
        full = min(self.max_s, self.first_s << min(max(attempt, 1) - 1, 16))
        return round(full * (1.0 - chance / 2))


def within_lease_s(wanted_s: int, held_ms: int) -> int:
    """``wanted_s``, cut so that the message is not held longer than the queue allows in all.

    Args:
        wanted_s: seconds from now.
        held_ms: how long ago the message was received.
    """
    left_s = VISIBILITY_S_MAX - held_ms // 1_000 - 1
    return max(0, min(wanted_s, left_s))
