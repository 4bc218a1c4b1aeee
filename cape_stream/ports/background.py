"""Work that must not stand in the loop's way: commits, restores, source queries."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Pending(Protocol[T_co]):
    """A piece of work under way; `concurrent.futures.Future` is one."""

    def done(self) -> bool:
        """True once `result` returns (or raises) at once."""
        ...

    def result(self) -> T_co:
        """The work's result, or the exception it raised."""
        ...


class Background(Protocol):
    """Runs work beside the loop: threads in production, virtual time in the simulator."""

    def submit(self, work: Callable[[], T], /) -> Pending[T]:
        """Start ``work`` soon; the loop asks the answer whether it is done."""
        ...

    def close(self) -> None:
        """Take no more work and wait for what runs, within a bound of the implementation."""
        ...
