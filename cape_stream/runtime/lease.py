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

    def ends_ms(self, task: Task) -> int:
        """When the task's present proof stops allowing it to publish; 0 while there is none."""
        return 0 if task.proof_ms is None else task.proof_ms + self.valid_ms

    def holds(self, task: Task, now_ms: int) -> bool:
        """True if the task may publish now."""
        return now_ms < self.ends_ms(task)

    def wants_renewal(self, task: Task, now_ms: int) -> bool:
        """True if a commit should be made for the proof alone."""
        return task.proof_ms is None or now_ms - task.proof_ms >= self.renew_ms
