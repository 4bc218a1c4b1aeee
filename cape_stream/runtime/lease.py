"""When a task may publish: only while its newest proof of ownership is young.

A successful commit proves that the group still counts us as the owner, as of the moment it began. A
member that was stopped wakes up with an old proof, and holds its outputs until a new one, which
the log refuses if somebody else has taken over. Half the session timeout leaves the other half
for what is already in the producer's buffer (its message timeout is shorter than that).
"""

from cape_stream.runtime.task import Task


class Lease:
    """Judges proofs by the steady clock."""

    def __init__(self, session_timeout_ms: int) -> None:
        self.valid_ms = session_timeout_ms // 2
        """A proof older than this does not allow publishing."""
        self.renew_ms = self.valid_ms // 3
        """An idle task renews its proof when it is this old."""

    def holds(self, task: Task, now_ms: int) -> bool:
        """True if the task may publish now."""
        return task.proof_ms is not None and now_ms - task.proof_ms < self.valid_ms

    def wants_renewal(self, task: Task, now_ms: int) -> bool:
        """True if a commit should be made for the proof alone."""
        return task.proof_ms is None or now_ms - task.proof_ms >= self.renew_ms
