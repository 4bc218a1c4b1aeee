"""Whoever does harm to a simulated world, at random moments, until it is safe."""

from collections.abc import Callable, Sequence
from functools import partial

from cape_stream.adapters.simulated.table import StoredTask
from cape_stream.model.ping import Ping
from cape_stream.model.sequence import SEQUENCE_MAX
from cape_stream.model.status import JobStatus
from cape_stream.model.subject import partition_of
from cape_stream.ports.log import TopicPartition
from cape_stream.testing.dispatchers import DispatcherSeat
from cape_stream.testing.scenario import Harm
from cape_stream.testing.seat import Seat
from cape_stream.testing.stage import Stage

EFFECTS_MAX = 60
"""A fuse burns at most so many effects after it was lit."""
STRANGER = "stranger"
"""A subject without events, which junk speaks of."""
LIE = 1_000
"""How far beyond the truth a lying ping names the newest event."""


class Harmer:
    """Lets each kind of harm of the scenario happen again and again.

    Args:
        stage: the world's shared part.
        dispatchers: whom it kills, stops and robs.
        workers: likewise.
        refreshers: likewise.
    """

    def __init__(
        self,
        stage: Stage,
        dispatchers: Sequence[DispatcherSeat],
        workers: Sequence[Seat],
        refreshers: Sequence[Seat],
    ) -> None:
        self.counts = dict.fromkeys(Harm, 0)
        self._stage = stage
        self._dispatchers = dispatchers
        self._workers = workers
        self._copies: dict[DispatcherSeat, dict[str, StoredTask]] = {}
        self._ways: dict[Harm, Callable[[], None]] = {
            Harm.KILL: lambda: self._kill(dispatchers),
            Harm.KILL_BETWEEN: lambda: self._kill_between(dispatchers),
            Harm.STOP: lambda: self._stop(dispatchers),
            Harm.STOP_BETWEEN: lambda: self._stop_between(dispatchers),
            Harm.LEAVE: lambda: self._pick(dispatchers).leave(),
            Harm.TABLE_LOST: self._lose_table,
            Harm.TABLE_STALE: self._age_table,
            Harm.TABLE_DAMAGED: self._damage_table,
            Harm.OUTAGE: self._outage,
            Harm.COMPACT: self._compact,
            Harm.EXPIRE_PINGS: self._expire_pings,
            Harm.EXPIRE_JOBS: self._expire_jobs,
            Harm.SOURCE_DOWN: self._source_down,
            Harm.WORKER_KILL: lambda: self._kill(workers),
            Harm.WORKER_KILL_BETWEEN: lambda: self._kill_between(workers),
            Harm.WORKER_STOP: lambda: self._stop(workers),
            Harm.WORKER_LEAVE: lambda: self._pick(workers).leave(),
            Harm.REFRESHER_KILL_BETWEEN: lambda: self._kill_between(refreshers),
            Harm.REFRESHER_STOP_BETWEEN: lambda: self._stop_between(refreshers),
            Harm.REFRESHER_LEAVE: lambda: self._pick(refreshers).leave(),
            Harm.JUNK: self._junk,
            Harm.TRUNCATE: self._truncate,
            Harm.CHANGELOG_LOST: self._lose_changelog,
        }

    def start(self) -> None:
        """Plan the first harm of each kind."""
        for harm in self._stage.scenario.harm_gaps_ms:
            self._plan(harm)

    def _plan(self, harm: Harm) -> None:
        gap_ms = self._stage.scenario.harm_gaps_ms[harm]
        delay_ms = self._stage.dice.random.randint(1, 2 * gap_ms)
        self._stage.timeline.after(delay_ms, partial(self._happen, harm))

    def _happen(self, harm: Harm) -> None:
        if self._stage.safe:
            return
        self.counts[harm] += 1
        self._stage.note("world", "harm", harm)
        self._ways[harm]()
        self._plan(harm)

    def _pick(self, seats: Sequence[Seat]) -> Seat:
        return self._stage.dice.random.choice(seats)

    # --- processes -----------------------------------------------------------------------------

    def _kill(self, seats: Sequence[Seat]) -> None:
        process = self._pick(seats).process
        if process is not None:
            process.kill()

    def _kill_between(self, seats: Sequence[Seat]) -> None:
        process = self._pick(seats).process
        if process is not None:
            process.kill_after(self._stage.dice.random.randint(1, EFFECTS_MAX))

    def _stop(self, seats: Sequence[Seat]) -> None:
        process = self._pick(seats).process
        if process is not None and process.alive:
            process.stop(self._stage.dice.draw_ms(self._stage.scenario.stop_ms))

    def _stop_between(self, seats: Sequence[Seat]) -> None:
        process = self._pick(seats).process
        if process is not None:
            effects = self._stage.dice.random.randint(1, EFFECTS_MAX)
            process.stop_after(effects, self._stage.dice.draw_ms(self._stage.scenario.stop_ms))

    # --- tables --------------------------------------------------------------------------------

    def _rob(self) -> DispatcherSeat:
        """A dispatcher that has just died."""
        seat = self._stage.dice.random.choice(self._dispatchers)
        if seat.process is not None:
            seat.process.kill()
        return seat

    def _lose_table(self) -> None:
        self._rob().disk.lose()

    def _age_table(self) -> None:
        """Put the copy of last time back, and make one for the next time."""
        seat = self._rob()
        copy = seat.disk.copy()
        if seat in self._copies:
            seat.disk.put_back(self._copies[seat])
        self._copies[seat] = copy

    def _damage_table(self) -> None:
        seat = self._stage.dice.random.choice(self._dispatchers)
        if seat.process is not None and self._stage.dice.happens(0.5):
            seat.process.kill()
        disk = seat.disk
        if disk.tasks:
            disk.damage(self._stage.dice.random.choice(sorted(disk.tasks)))

    # --- log and sources -----------------------------------------------------------------------

    def _outage(self) -> None:
        self._stage.broker.go_down(self._stage.dice.draw_ms(self._stage.scenario.outage_ms))

    def _compact(self) -> None:
        self._stage.read_changelogs()
        for domain in self._stage.plans:
            self._stage.broker.compact(self._stage.names.changelog(domain))

    def _expire_pings(self) -> None:
        broker, random = self._stage.broker, self._stage.dice.random
        for domain in self._stage.plans:
            topic = self._stage.names.pings(domain)
            for partition in range(self._stage.scenario.partitions):
                kept = broker.watermarks(topic, partition)
                broker.delete_records(topic, partition, random.randint(*kept))

    def _expire_jobs(self) -> None:
        """Retention is longer than any worker and any dispatcher is behind."""
        stage = self._stage
        taken = stage.broker.committed(stage.names.worker_group)
        stage.read_changelogs()
        for topic in stage.names.job_topics(stage.queues):
            for partition in range(stage.scenario.partitions):
                bounds = [stage.bound(domain, topic, partition) for domain in stage.plans]
                offset = min(*bounds, taken.get(TopicPartition(topic, partition), 0))
                stage.broker.delete_records(topic, partition, offset)

    def _truncate(self) -> None:
        """The last few records of one partition that is no changelog."""
        stage, random = self._stage, self._stage.dice.random
        names = list(stage.names.job_topics(stage.queues))
        for domain in stage.plans:
            names += [stage.names.pings(domain), stage.names.statuses(domain)]
        topic, partition = random.choice(names), random.randrange(stage.scenario.partitions)
        kept = stage.broker.watermarks(topic, partition)
        stage.broker.truncate(topic, partition, max(kept.low, kept.high - random.randint(1, 5)))

    def _lose_changelog(self) -> None:
        for seat in self._dispatchers:
            if seat.process is not None:
                seat.process.kill()
        domain = self._stage.dice.random.choice(sorted(self._stage.plans))
        self._stage.forget_changelog(domain)

    def _source_down(self) -> None:
        domain = self._stage.dice.random.choice(sorted(self._stage.sources))
        duration_ms = self._stage.dice.draw_ms(self._stage.scenario.outage_ms)
        self._stage.sources[domain].go_down(duration_ms)

    def _junk(self) -> None:
        """One record of each kind that nobody should send."""
        stage, random = self._stage, self._stage.dice.random
        if not stage.broker.up:
            return
        domain = random.choice(sorted(stage.plans))
        names, count = stage.names, stage.scenario.partitions
        subject = random.choice(["s0", "s1", STRANGER])
        key = subject.encode()
        good = stage.codec.encode_ping(Ping(subject, 1))
        far = min(stage.scenario.load.first + LIE, SEQUENCE_MAX)
        lie = stage.codec.encode_ping(Ping(subject, far))
        status = JobStatus(
            "0-1-1", domain, random.randrange(count), subject, "first", "main", 1, 1, done=[]
        )
        home = partition_of(key, count)
        anywhere = random.randrange(count)
        jobs = random.choice(names.job_topics(stage.queues))
        for topic, partition, its_key, value in (
            (names.pings(domain), anywhere, key, good),
            (names.pings(domain), home, key, lie),
            (names.pings(domain), home, key, None),
            (names.pings(domain), home, None, None),
            (names.pings(domain), home, b"other", good),
            (names.pings(domain), home, key, good[:-1]),
            (names.statuses(domain), anywhere, key, stage.codec.encode_status(status)),
            (names.statuses(domain), anywhere, key, b"\x00\x00"),
            (names.statuses(domain), anywhere, key, None),
            (jobs, anywhere, key, b"junk"),
            (jobs, anywhere, key, None),
        ):
            if random.random() < 0.5:
                stage.broker.append(TopicPartition(topic, partition), its_key, value)
