"""How long a job has queued, told from two clocks that may disagree by days.

A job says when it was issued, by the clock of its dispatcher; the worker knows when it takes it, by
its own. They are taken to agree until a job proves that they do not: one that was issued again
because this worker had given its events back unrun cannot be older than that. Without such a
proof a worker whose clock is ahead would give every job back for ever.
"""

from cape_stream.model.job import Job

REMEMBERED_MAX = 1_000
"""Jobs given back, and dispatchers, that are kept in mind; then everything is learned anew."""

_Work = tuple[str, str, str, str, int]
"""Domain, subject, topology, lambda, first sequence id: the same for every attempt."""
_Owner = tuple[str, int, int]
"""Domain, partition, epoch: one dispatcher process, so one clock."""


class JobAges:
    """What a worker knows of its dispatchers' clocks.

    Its slots share it without a lock: each step is one operation on a dict, and a lesson that gets
    lost is learned again.
    """

    def __init__(self) -> None:
        self._given_back: dict[_Work, tuple[int, int]] = {}
        """Attempt and time (ours) of what was given back unrun."""
        self._ahead_ms: dict[_Owner, int] = {}
        """How far our clock is ahead of a dispatcher's, at least."""

    def queued_ms(self, job: Job, now_ms: int) -> int:
        """How long ``job``, taken at ``now_ms``, has queued: 0 or more, and never too much once a
        dispatcher's clock is known to be behind."""
        owner = (job.domain, job.partition, job.epoch)
        attempt, given_back_ms = self._given_back.get(_work(job), (job.attempt, 0))
        if job.attempt > attempt:
            self._given_back.pop(_work(job), None)
            known_ms = self._ahead_ms.get(owner, 0)
            self._ahead_ms[owner] = max(known_ms, given_back_ms - job.issued_ms)
        return max(0, now_ms - job.issued_ms - self._ahead_ms.get(owner, 0))

    def give_back(self, job: Job, now_ms: int) -> None:
        """``job`` goes back unrun for its age; whoever issues it again does so after this."""
        for memory in (self._given_back, self._ahead_ms):
            if len(memory) >= REMEMBERED_MAX:
                memory.clear()
        self._given_back[_work(job)] = job.attempt, now_ms


def _work(job: Job) -> _Work:
    return job.domain, job.subject, job.topology, job.lambda_id, job.events[0].sequence
