"""A promise that was broken."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Violation:
    """A broken promise: which, when, and in words where."""

    rule: str
    """Its name in `cape_stream.testing.checks` or `cape_stream.testing.committed`."""
    ms: int
    """When, in virtual milliseconds since the world began."""
    text: str

    def __str__(self) -> str:
        return f"{self.ms:>7}  {self.rule:<10}  {self.text}"
