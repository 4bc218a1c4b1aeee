"""Names of all topics of an App; the one place where they are spelled.

Every topic of an App has the same number of partitions, so partition p of any of them belongs to
the same member. The files in ``topics/`` carry these names as templates.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cape_stream.model.job import BACKLOG, LIVE

_LANE_SUFFIXES = {LIVE: "", BACKLOG: ".backlog"}


@dataclass(slots=True, frozen=True)
class TopicNames:
    """Topic names under one App name."""

    app: str

    def pings(self, domain: str) -> str:
        """Pings of a domain, keyed by subject."""
        return f"{self.app}.{domain}.pings"

    def statuses(self, domain: str) -> str:
        """Job statuses of a domain, keyed by subject, in the partition of the task."""
        return f"{self.app}.{domain}.statuses"

    def changelog(self, domain: str) -> str:
        """State rows of the domain's tasks; compacted."""
        return f"{self.app}.{domain}.changelog"

    def jobs(self, queue: str, lane: str = LIVE) -> str:
        """Jobs of a worker queue in one lane, `LIVE` or `BACKLOG`."""
        return f"{self.app}.jobs.{queue}{_LANE_SUFFIXES[lane]}"

    def job_topics(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Every topic with jobs of these queues: the live ones, then those of the backlog."""
        names = tuple(queues)
        return tuple(self.jobs(queue, lane) for lane in _LANE_SUFFIXES for queue in names)

    def queue_of(self, topic: str) -> str:
        """The queue whose jobs `topic` carries, in whatever lane."""
        return topic.removeprefix(f"{self.app}.jobs.").removesuffix(_LANE_SUFFIXES[BACKLOG])

    def lane_of(self, topic: str) -> str:
        """The lane of a topic with jobs. No queue's name has a dot, so nothing else ends so."""
        return BACKLOG if topic.endswith(_LANE_SUFFIXES[BACKLOG]) else LIVE

    def operations(self, domain: str) -> str:
        """Operators' orders about a domain, keyed by subject, or by topology to every partition."""
        return f"{self.app}.{domain}.operations"

    def audit(self, domain: str) -> str:
        """What became of them, in the partition that decided."""
        return f"{self.app}.{domain}.audit"

    @property
    def dead_letters(self) -> str:
        """Records that could not be used, unchanged, with where they stood and why."""
        return f"{self.app}.dead-letters"

    @property
    def refresh(self) -> str:
        """One partition; whoever owns it sweeps the sources. Also holds their watermarks."""
        return f"{self.app}.refresh"

    @property
    def dispatcher_group(self) -> str:
        """Consumer group of the dispatchers."""
        return f"{self.app}.dispatchers"

    @property
    def worker_group(self) -> str:
        """Consumer group of the workers."""
        return f"{self.app}.workers"

    @property
    def publisher_group(self) -> str:
        """Consumer group of the publishers, which carry jobs to other queues."""
        return f"{self.app}.publishers"

    @property
    def refresh_group(self) -> str:
        """Consumer group that elects the refresh leader."""
        return f"{self.app}.refreshers"
