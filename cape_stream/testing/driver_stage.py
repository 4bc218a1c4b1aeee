"""The world under a driver: one simulated log, real dispatchers on it, and a clock moved by hand.

Everything runs in the caller's thread. A dispatcher tells, by how long it would wait for records,
when it has something to do next; so time jumps from one such moment to the next.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.simulated import (
    Broker,
    BrokerSettings,
    Dice,
    ProcessKilled,
    SimSource,
    SourceDownError,
    Timeline,
)
from cape_stream.core.plan import compile_plan
from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.job import Job
from cape_stream.model.ping import Ping
from cape_stream.model.status import JobStatus
from cape_stream.model.subject import partition_of
from cape_stream.model.topic_names import TopicNames
from cape_stream.model.topology import DomainSpec
from cape_stream.ports.log import TopicPartition, TopicSpec
from cape_stream.runtime.dispatching import DispatchProcessor, Routing, dispatcher_factory
from cape_stream.runtime.inspecting import Answer, Here, Steps
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.processor import TaskGroup
from cape_stream.runtime.task import Task
from cape_stream.testing.driver_dispatchers import IDLE_MS, Dispatcher

FOREVER_MS = 2**45
"""No session ends and no subject sleeps by itself: time jumps here, and nobody is silent."""
TRANSACTION_MS = 50
"""How long a transaction whose dispatcher was killed holds the others up."""
REFRESH_MS = 60_000
"""How often the sources are asked what has changed."""
BUSY_MS_MAX = 500
"""How long `DriverStage.settle` follows what is under way."""
START_MS_MAX = 60_000
"""How long dispatchers may take to get their tasks running; far more than they need."""
REFRESH_LIMIT = 1_000


class DriverStage:
    """Log, sources, dispatchers and time.

    Args:
        names: of the App's topics.
        domains: what it declares.
        partitions: of each topic.
        start_ms: where virtual time begins, Unix milliseconds.
        dice: decides whether a call to a source fails.
    """

    def __init__(
        self,
        names: TopicNames,
        domains: Sequence[DomainSpec],
        partitions: int,
        start_ms: int,
        dice: Dice,
    ) -> None:
        self.names = names
        self.partitions = partitions
        self.codec = AvroCodec()
        self.plans = {domain.name: compile_plan(domain) for domain in domains}
        self.timeline = Timeline(start_ms)
        self.dice = dice
        limits = BrokerSettings(
            session_timeout_ms=FOREVER_MS, transaction_timeout_ms=TRANSACTION_MS
        )
        self.broker = Broker(self.timeline, self.dice, limits)
        self.sources = {name: SimSource(self.timeline, self.dice) for name in self.plans}
        self.dispatchers = [Dispatcher("dispatcher-1", self.timeline)]
        self._scheduler = SchedulerSettings(sleep_after_ms=FOREVER_MS)
        self._queues = sorted({each.queue for p in self.plans.values() for each in p.lambdas})
        self._read: dict[TopicPartition, int] = {
            TopicPartition(topic, number): 0
            for topic in names.job_topics(self._queues)
            for number in range(partitions)
        }
        self._late: list[tuple[int, int, JobStatus]] = []
        self._late_count = 0
        self._report_came = False
        self._marks: dict[str, str | None] = dict.fromkeys(self.plans)
        self._refresh_due_ms = start_ms + REFRESH_MS
        self._create_topics()
        self._start(self.dispatchers[0])
        self.wait_until_running()

    @property
    def now_ms(self) -> int:
        """Virtual time."""
        return self.timeline.now_ms

    def group(self, domain: str) -> TaskGroup:
        """The tasks of a domain."""
        names = self.names
        routing = Routing(names=names, domain=domain, partitions=self.partitions)
        plan = self.plans[domain]
        queues = sorted({entry.queue for entry in plan.lambdas})
        return TaskGroup(
            name=domain,
            inputs=(names.statuses(domain), names.pings(domain), names.operations(domain)),
            changelog=names.changelog(domain),
            make_processor=dispatcher_factory(plan, self.codec, routing, self._scheduler),
            replayed_first=(names.statuses(domain),),
            always_open=(names.operations(domain),),
            outputs=names.job_topics(queues),
            source=self.sources[domain],
        )

    # --- what comes in and goes out ------------------------------------------------------------

    def ping(self, domain: str, subject: str, latest: int | None) -> None:
        """A source says that there is news."""
        key = subject.encode()
        to = TopicPartition(self.names.pings(domain), partition_of(key, self.partitions))
        self.broker.append(to, key, self.codec.encode_ping(Ping(subject, latest)))

    def report(self, status: JobStatus, after_ms: int = 0) -> None:
        """A worker's report arrives, now or ``after_ms`` from now."""
        if after_ms:
            self._late_count += 1
            heapq.heappush(self._late, (self.now_ms + after_ms, self._late_count, status))
            return
        to = TopicPartition(self.names.statuses(status.domain), status.partition)
        self.broker.append(to, status.subject.encode(), self.codec.encode_status(status))

    def take_jobs(self) -> Iterator[Job]:
        """Jobs issued since the last call."""
        for place, start in self._read.items():
            stored = self.broker.partition(place)
            if stored.stable <= start:
                continue
            records, self._read[place] = stored.read(start, stored.stable, 2**31)
            queue = self.names.queue_of(place.topic)
            for record in records:
                yield self.codec.decode_job(record.value, queue)

    @property
    def has_jobs(self) -> bool:
        """True if `take_jobs` has some."""
        return any(self.broker.partition(p).stable > at for p, at in self._read.items())

    def take_news(self) -> bool:
        """True if there are jobs, or if a late report has come since the last call."""
        came, self._report_came = self._report_came, False
        return came or self.has_jobs

    def refresh(self) -> None:
        """Ping what the sources say has changed since the last time."""
        self._refresh_due_ms = self.now_ms + REFRESH_MS
        for domain, source in self.sources.items():
            more = True
            while more:
                try:
                    changes = source.changed_since(self._marks[domain], REFRESH_LIMIT)
                except SourceDownError:
                    break  # a source that fails is asked again the next time
                self._marks[domain], more = changes.watermark, changes.more
                for subject, latest in changes.subjects:
                    self.ping(domain, subject, latest)

    # --- time ----------------------------------------------------------------------------------

    def turn(self) -> int:
        """Every dispatcher turns once; milliseconds until one has something to do."""
        wait_ms = IDLE_MS
        for dispatcher in self.dispatchers:
            try:
                wait_ms = min(wait_ms, dispatcher.turn())
            except ProcessKilled:
                self._replace(dispatcher)
                wait_ms = 0
            self.timeline.run_until(self.now_ms)
        return wait_ms

    def settle(self) -> None:
        """Let everything happen that takes no time to speak of."""
        end_ms = self.now_ms + BUSY_MS_MAX
        while self.now_ms < end_ms:
            wait_ms = self.turn()
            if wait_ms > 1:
                return
            self._pass(wait_ms)

    def pass_until(self, until_ms: int, stop: Callable[[], bool]) -> None:
        """Let time pass, no further than to a moment at which ``stop`` is true."""
        turns = 0
        while self.now_ms < until_ms:
            wait_ms = self.turn()
            turns = 0 if wait_ms else turns + 1
            if turns > self.partitions * 100:
                wait_ms = 1
            if stop():
                return
            self._pass(min(wait_ms, until_ms - self.now_ms))
        self.settle()

    def _pass(self, passed_ms: int) -> None:
        """Time jumps, at most to the next thing that comes from outside the dispatchers."""
        due_ms = min(self._refresh_due_ms, self._late[0][0] if self._late else FOREVER_MS)
        self.timeline.run_until(max(self.now_ms, min(self.now_ms + passed_ms, due_ms)))
        while self._late and self._late[0][0] <= self.now_ms:
            self.report(heapq.heappop(self._late)[2])
            self._report_came = True
        if self._refresh_due_ms <= self.now_ms:
            self.refresh()

    @property
    def is_waiting_for_reports(self) -> bool:
        """True while a late report is under way."""
        return bool(self._late)

    def wait_until_running(self) -> None:
        """Let the dispatchers share the tasks and restore them."""
        end_ms = self.now_ms + START_MS_MAX
        while self.now_ms < end_ms:
            self._pass(min(1, self.turn()))
            if self._is_running():
                return
        states = [f"{t.name} is {t.state.value}" for t in self._tasks()]
        raise AssertionError(f"the dispatchers did not get going: {', '.join(states)}")

    def _is_running(self) -> bool:
        if not all(dispatcher.has_its_share for dispatcher in self.dispatchers):
            return False
        return all(task.state is TaskState.RUNNING for task in self._tasks())

    # --- looking -------------------------------------------------------------------------------

    def ask(self, steps: Callable[[Here, int], Steps]) -> list[Answer]:
        """Put a question to all dispatchers; the answers of those that have one."""
        while True:
            try:
                return [answer for each in self.dispatchers for answer in each.ask(steps)]
            except ProcessKilled:
                for dispatcher in self.dispatchers:
                    if not dispatcher.alive:
                        self._replace(dispatcher)
                self.wait_until_running()

    def is_out(self, job_id: str) -> bool:
        """True while a dispatcher waits for a report on the job."""
        return any(job_id in each.scheduler.inflight.jobs for each in self._processors())

    def load(self) -> int:
        """Subjects in memory and jobs out."""
        return sum(each.load() for each in self._processors())

    def _tasks(self) -> Iterator[Task]:
        for dispatcher in self.dispatchers:
            if dispatcher.engine is not None:
                yield from dispatcher.engine.assignment.tasks.values()

    def _processors(self) -> Iterator[DispatchProcessor]:
        for task in self._tasks():
            if isinstance(task.processor, DispatchProcessor):
                yield task.processor

    # --- harm ----------------------------------------------------------------------------------

    def crash(self, dispatcher: Dispatcher, *, disk_lost: bool) -> None:
        """A dispatcher dies and a new process takes its place."""
        if disk_lost:
            dispatcher.disk.lose()
        self._replace(dispatcher)
        self.wait_until_running()

    def rebalance(self) -> None:
        """A second dispatcher joins, or leaves if there is one."""
        if len(self.dispatchers) == 1:
            joining = Dispatcher("dispatcher-2", self.timeline)
            self.dispatchers.append(joining)
            self._start(joining)
        else:
            self.dispatchers.pop().leave()
        self.wait_until_running()

    def _replace(self, dispatcher: Dispatcher) -> None:
        """A dispatcher has died, or dies now; a new process takes its place."""
        dispatcher.kill()
        self._start(dispatcher)

    def _start(self, dispatcher: Dispatcher) -> None:
        groups = [self.group(domain) for domain in self.plans]
        dispatcher.start(self.broker, self.names.dispatcher_group, groups)

    def _create_topics(self) -> None:
        names = list(self.names.job_topics(self._queues))
        for domain in self.plans:
            names += [self.names.pings(domain), self.names.statuses(domain)]
            names += [self.names.operations(domain), self.names.audit(domain)]
            names.append(self.names.changelog(domain))
        self.broker.create_topics(
            [
                TopicSpec(name=name, partitions=self.partitions, config={})
                for name in [*names, self.names.dead_letters]
            ]
        )
