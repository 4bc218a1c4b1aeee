"""What a worker counts. Each part of it counts alone and without locks; `total` adds them up."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from cape_stream.model.status import FailureClass


@dataclass(slots=True)
class WorkerCounters:
    """What happened, for metrics; each grows only, but for `running` and `waiting`."""

    taken: int = 0
    """Jobs a slot has begun with."""
    done: int = 0
    """Jobs of which every event succeeded."""
    events_done: int = 0
    events_failed: Counter[FailureClass] = field(default_factory=Counter)
    """Failed events by class."""
    events_unreached: int = 0
    """Events behind the failing one of an ordered topology, which were not tried."""
    results_ignored: int = 0
    """Results for events the job does not have, or second ones: a handler's mistake."""
    unknown_handlers: int = 0
    """Jobs for a lambda this worker has no code for; reported as transient failures."""
    claims_made: int = 0
    """Outputs that went to the claim store."""
    claims_redeemed: int = 0
    """Inputs that came from there."""
    claims_missed: int = 0
    """Events that could not run because a claim could not be had; reported as transient."""
    running: int = 0
    """Jobs in a slot now."""
    waiting: int = 0
    """Records ready for a slot now."""
    queued_ms: int = 0
    """Sum over jobs of how long each waited between issue and start."""
    heartbeats: int = 0
    stale: int = 0
    """Jobs that had waited past their timeout; handed back without being run."""
    handed_back: int = 0
    """Jobs that were running when the worker stopped and did not finish in time."""
    null_records: int = 0
    """Records without a value on a job topic; skipped."""
    dead_letters: int = 0
    """Records on a job topic that are no jobs; kept in the dead letter topic."""
    statuses_sent: int = 0
    """Reports of every kind given to the log, without those sent again."""
    statuses_resent: int = 0
    statuses_lost: int = 0
    """Reports the log did not take; the dispatcher's timeout covers them."""
    polls_failed: int = 0
    """Times the log was away when jobs were asked for."""


def total(parts: Iterable[WorkerCounters]) -> WorkerCounters:
    """The sum of ``parts``."""
    into = WorkerCounters()
    for part in parts:
        for each in fields(WorkerCounters):
            setattr(into, each.name, getattr(into, each.name) + getattr(part, each.name))
    return into
