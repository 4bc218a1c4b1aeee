"""What a step of the scheduler asks for, in the order in which it must be carried out."""

from dataclasses import dataclass, field

from cape_stream.model.job import Job
from cape_stream.model.request import EventQuery


@dataclass(slots=True)
class OversizedEvent:
    """An event that fits no job."""

    subject: str
    lambda_index: int
    """Place of the lambda in the plan."""
    sequence: int
    size: int
    """Bytes it would add to a job."""


@dataclass(slots=True)
class SchedulerEffects:
    """Consequences of the inputs since the last `Scheduler.take_effects`."""

    jobs: list[Job] = field(default_factory=list)
    """First: publish at once. A commit that records a job waits until the log has it."""
    oversized: list[OversizedEvent] = field(default_factory=list)
    """Then: tell people. Not issued; parked like a failure."""
    sweep: bool = False
    """There is room again for subjects that had to leave: look through the table soon."""
    queries: list[EventQuery] = field(default_factory=list)
    """Last: ask the source; each answer is a later input. Lost questions are asked again after
    a restart, because the subject's row says that it was pinged."""


@dataclass(slots=True)
class SchedulerCounters:
    """What happened, for metrics; each grows only."""

    pings: int = 0
    stale_pings: int = 0
    """Pings that told nothing new."""
    jobs_issued: int = 0
    jobs_retried: int = 0
    """Of those issued, attempts after the first."""
    jobs_done: int = 0
    events_done: int = 0
    events_failed: int = 0
    timeouts: int = 0
    handed_back: int = 0
    heartbeats: int = 0
    undelivered: int = 0
    """Jobs the client gave up; issued again as a new attempt, not charged."""
    adopted: int = 0
    """Jobs found in the job topics after a restart that the table did not know."""
    quarantined_events: int = 0
    """Events that were put where only a person takes them out."""
    deferred: int = 0
    """Subjects that left memory because a line was full; found again by the sweep."""
    put_to_sleep: int = 0
    """Subjects that left memory with parked work."""
    woken: int = 0
    """Subjects that came back from sleep."""
    unknown_statuses: int = 0
    """Statuses of jobs that are not out (repeated, given up, or never ours)."""
    late_successes: int = 0
    """Events that such a status had done and that counted."""
    repeated_events: int = 0
    """Events that such a status had done and that were done already."""
    ignored_successes: int = 0
    """Successes of a given-up attempt of an ordered topology, or beyond the window."""
    wrong_subject: int = 0
    """Statuses whose subject, topology or lambda is not that of their job; refused."""
    extra_events: int = 0
    """Per-event results for events the job did not have; ignored."""
    missing_events: int = 0
    """Events of a job without a result in its status; tried again."""
    bad_pages: int = 0
    """Answers of the source that break its contract; refused."""
    query_faults: int = 0
    queries: int = 0
    source_behind: int = 0
    """Answers that had less than was promised or seen before; asked again a few times."""
    oversized_events: int = 0
    crowded_outputs: int = 0
    """Events done whose output had no room in the subject's row; done anew once there is."""
    vanished_events: int = 0
    """Answers without an event that had been delivered before and has to be tried again."""
