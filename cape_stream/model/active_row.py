"""The state of one active subject as it is stored: plain data, no references.

Events are not in it: they live at the source and are asked for again.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class JobRow:
    """A job that is out."""

    job_id: str
    sequences: list[int]
    attempt: int
    charged: int
    timeout_ms: int
    """A restart gives the job this long again: bounded, whatever the clock did meanwhile."""


@dataclass(slots=True)
class ParkedRow:
    """An event that is put aside."""

    sequence: int
    attempts: int
    charged: int
    due_ms: int
    """Unix milliseconds by the steady clock of the process that wrote it."""
    failure_class: str
    """Empty when it did not fail."""
    first_error: str
    last_error: str
    first_ms: int
    last_ms: int


@dataclass(slots=True)
class LambdaRow:
    """One lambda of the subject."""

    topology: str
    lambda_id: str
    cursor: int
    done: list[int] = field(default_factory=list)
    """Done events beyond the cursor, ascending."""
    jobs: list[JobRow] = field(default_factory=list)
    parked: list[ParkedRow] = field(default_factory=list)
    outputs: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class ActiveRow:
    """One subject that is pinged, in flight or parked."""

    subject: str
    head: int
    """Newest sequence id that exists or may exist."""
    saved_ms: int
    """When the row was made, by the same clock as the due times in it."""
    lambdas: list[LambdaRow]
