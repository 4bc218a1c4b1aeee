"""The queues of the fleet, why each is separate, and which pool of workers drains which.

Each queue exists because sharing it with other work would let one kind sit in front of the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cape_stream.queues.contract import Contract
from cape_stream.queues.messages import (
    bulk_ingest,
    email_send,
    file_scan,
    ingest,
    jobs,
    ses_events,
    ses_reputation,
    steps,
    training,
)
from cape_stream.queues.settings import LaneSettings

DEAD_SUFFIX = "-dead"
INTERRUPTIONS_MAX = 10
"""Drains a message may meet beyond its attempts before the queue parks it."""


class Pool(StrEnum):
    """Which queues a process drains. All pools run the same image."""

    GENERAL = "general"
    """All but bulk and training."""
    BULK = "bulk"
    """Only bulk, on nodes of its own: a backfill must not sit in front of an interactive add."""
    TRAINING = "training"
    """Only training, under the trainer's own identity."""
    DEV = "dev"
    """Everything, for one developer's machine."""


@dataclass(slots=True, frozen=True, kw_only=True)
class QueueSpec:
    """One queue of the fleet."""

    contract: Contract
    why: str
    """Why it is separate."""
    settings: LaneSettings
    pool: Pool = Pool.GENERAL
    """The pool that drains it, beside dev."""
    has_dead_letters: bool = True

    @property
    def name(self) -> str:
        """Short name; the queue in AWS is called so behind the prefix."""
        return self.contract.queue

    @property
    def dead_letter_name(self) -> str:
        """Short name of its dead-letter queue."""
        return f"{self.name}{DEAD_SUFFIX}"

    @property
    def receives_max(self) -> int:
        """What the redrive policy of the queue should say: attempts and interruptions together, for
        SQS counts both."""
        return (self.settings.attempts_max or 5) + INTERRUPTIONS_MAX


FLEET: tuple[QueueSpec, ...] = (
    QueueSpec(
        contract=steps.CONTRACT,
        why="a caller waits: nothing slower may stand in front",
        settings=LaneSettings(concurrency=20, prefetch=0),
        has_dead_letters=False,
    ),
    QueueSpec(
        contract=ingest.CONTRACT,
        why="minutes a document: a corpus upload must not sit in front of a step",
        settings=LaneSettings(concurrency=8, prefetch=0, visibility_s=60, attempts_max=3),
    ),
    QueueSpec(
        contract=bulk_ingest.CONTRACT,
        why="a backfill must not sit in front of an interactive add",
        settings=LaneSettings(concurrency=4, prefetch=0, visibility_s=60, attempts_max=3),
        pool=Pool.BULK,
    ),
    QueueSpec(
        contract=file_scan.CONTRACT,
        why="nobody waits for it",
        settings=LaneSettings(concurrency=10, visibility_s=60, attempts_max=5),
    ),
    QueueSpec(
        contract=email_send.CONTRACT,
        why="fan-out off the request path, as fast as the provider lets us",
        settings=LaneSettings(concurrency=10, prefetch=0, visibility_s=60),
        has_dead_letters=False,  # a provider that refuses for hours must not park the mail
    ),
    QueueSpec(
        contract=ses_events.CONTRACT,
        why="delivery tracking comes in bursts behind every send",
        settings=LaneSettings(concurrency=20, attempts_max=5),
    ),
    QueueSpec(
        contract=ses_reputation.CONTRACT,
        why="the account may be in danger: not behind a burst of deliveries",
        settings=LaneSettings(concurrency=2, prefetch=0, attempts_max=5),
    ),
    QueueSpec(
        contract=training.CONTRACT,
        why="only the trainer may read it",
        settings=LaneSettings(concurrency=1, prefetch=0, visibility_s=60, attempts_max=3),
        pool=Pool.TRAINING,
    ),
    QueueSpec(
        contract=jobs.CONTRACT,
        why="Cape jobs for workers without Kafka",
        settings=LaneSettings(concurrency=20, visibility_s=60),
    ),
)

BY_NAME: Mapping[str, QueueSpec] = {spec.name: spec for spec in FLEET}


def queues_of(pool: Pool) -> tuple[QueueSpec, ...]:
    """The queues a pool drains."""
    if pool is Pool.DEV:
        return FLEET
    return tuple(spec for spec in FLEET if spec.pool is pool)
