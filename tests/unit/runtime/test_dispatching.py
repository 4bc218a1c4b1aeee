"""The dispatcher as a processor: what comes in as bytes, and where what comes out is sent."""

from collections.abc import Sequence

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.core.plan import compile_plan
from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.errors import Corrupt
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.ping import Ping
from cape_stream.model.request import EventPage, QueryFault
from cape_stream.model.status import JobStatus
from cape_stream.model.subject import partition_of
from cape_stream.model.topology import DomainSpec, LambdaSpec, TopologySpec
from cape_stream.ports.log import FailedSend, Record
from cape_stream.runtime.dispatching import DispatchProcessor, Routing
from cape_stream.runtime.processor import Effects, TaskId
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, NAMES

CODEC = AvroCodec()
PINGS, STATUSES = NAMES.pings(DOMAIN), NAMES.statuses(DOMAIN)
NOW_MS = 1_000_000_000


class Desk:
    """One processor, its rows, and a counter for offsets."""

    def __init__(
        self,
        *topologies: TopologySpec,
        partition: int = 0,
        partitions: int = 1,
        settings: SchedulerSettings | None = None,
    ) -> None:
        topologies = topologies or (topology("T1"),)
        plan = compile_plan(DomainSpec(name=DOMAIN, topologies=topologies, page_limit=10))
        routing = Routing(names=NAMES, domain=DOMAIN, partitions=partitions)
        task = TaskId(DOMAIN, partition)
        self.processor = DispatchProcessor(plan, CODEC, routing, task, 3, settings)
        self.partition = partition
        self.rows: dict[bytes, bytes] = {}
        self.reads = 0
        self.offset = 0

    def read_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.reads += 1
        return [self.rows.get(key) for key in keys]

    def record(self, topic: str, key: bytes | None, value: bytes | None) -> Record:
        self.offset += 1
        return Record(topic, self.partition, self.offset, 0, key, value)

    def step(self, *records: Record) -> Effects:
        return self.processor.step(records, self.read_rows, NOW_MS)

    def ping(self, subject: str, latest: int | None = None) -> Record:
        return self.record(PINGS, subject.encode(), CODEC.encode_ping(Ping(subject, latest)))

    def status(self, status: JobStatus) -> Record:
        return self.record(STATUSES, status.subject.encode(), CODEC.encode_status(status))

    def jobs_for(self, subject: str, *sequences: int) -> list[Job]:
        """Ping, answer, and the jobs that come of it."""
        queries = self.step(self.ping(subject, sequences[-1])).queries
        events = [Event(sequence, b"x") for sequence in sequences]
        effects = self.processor.answer([EventPage(each, events) for each in queries], NOW_MS)
        return [CODEC.decode_job(write.value, "general") for write in effects.outputs]

    def store(self) -> None:
        """Take the rows over, as a commit does."""
        for key, value in self.processor.changes(NOW_MS).items():
            if value is None:
                del self.rows[key]
            else:
                self.rows[key] = value

    def letters(self, effects: Effects) -> list[tuple[str, int, int, str, bytes | None]]:
        found = []
        for write in effects.committed:
            assert (write.topic, write.partition) == (NAMES.dead_letters, 0)
            letter = CODEC.decode_dead_letter(write.value)
            found.append(
                (letter.topic, letter.partition, letter.offset, letter.reason, letter.value)
            )
        return found


def owned_by(partition: int, partitions: int) -> str:
    """A subject of that partition."""
    names = (f"S{number}" for number in range(100))
    return next(name for name in names if partition_of(name.encode(), partitions) == partition)


def done(job: Job) -> JobStatus:
    return JobStatus(
        job.job_id,
        job.domain,
        job.partition,
        job.subject,
        job.topology,
        job.lambda_id,
        job.epoch,
        job.attempt,
        done=[event.sequence for event in job.events],
    )


# --- records in ------------------------------------------------------------------------------


def test_step_turns_a_ping_into_queries_and_an_answer_into_jobs() -> None:
    desk = Desk()
    queries = desk.step(desk.ping("S", 2)).queries
    assert [(query.subject, query.start) for query in queries] == [("S", 0)]
    page = EventPage(queries[0], [Event(1, b"x"), Event(2, b"y")])
    (write,) = desk.processor.answer([page], NOW_MS).outputs

    assert (write.topic, write.partition, write.key) == (NAMES.jobs("general"), 0, b"S")
    assert [event.payload for event in CODEC.decode_job(write.value, "general").events] == [
        b"x",
        b"y",
    ]


def test_step_brings_stored_cursors_in_one_read_for_all_cold_subjects() -> None:
    desk = Desk()
    info = CODEC.encode_cursors(CursorInfo("A", 5, {"T1": 5}))
    desk.rows[b"cA"] = info
    effects = desk.step(desk.ping("A", 7), desk.ping("B", 0), desk.ping("A", 8))

    assert desk.reads == 1
    assert [(query.subject, query.start) for query in effects.queries] == [("A", 6), ("B", 0)]
    desk.step(desk.ping("A", 9), desk.ping("B", 1))
    assert desk.reads == 1


def test_step_settles_a_status_and_stores_the_cursor() -> None:
    desk = Desk()
    (job,) = desk.jobs_for("S", 1, 2)
    desk.step(desk.status(done(job)))
    desk.store()

    assert set(desk.rows) == {b"cS"}
    assert CODEC.decode_cursors(desk.rows[b"cS"]) == CursorInfo("S", 2, {"T1": 2})


def test_changes_hold_an_active_row_until_the_subject_ends() -> None:
    desk = Desk()
    (job,) = desk.jobs_for("S", 1)
    desk.store()
    assert set(desk.rows) == {b"aS"}
    desk.step(desk.status(done(job)))
    changes = desk.processor.changes(NOW_MS)

    assert changes[b"aS"] is None
    assert set(changes) == {b"aS", b"cS"}


def test_status_of_another_task_is_put_aside() -> None:
    desk = Desk(partitions=2)
    (job,) = desk.jobs_for(owned_by(0, 2), 1)
    foreign = done(job)
    foreign.partition = 1
    effects = desk.step(desk.status(foreign))
    other = done(job)
    other.domain = "parcels"
    effects.committed += desk.step(desk.status(other)).committed

    assert [letter[3] for letter in desk.letters(effects)] == [
        "status of task flights-1 on the partition of task flights-0",
        "status of task parcels-0 on the partition of task flights-0",
    ]
    assert desk.processor.scheduler.open_jobs == 1


# --- records that are not what they should be ------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"S", b""),
        (b"S", b"\x00"),
        (b"S", b"not avro at all"),
        (b"S", b"\x00\x7f\xff\xff\xff\x00"),
        (None, CODEC.encode_ping(Ping("S", 1))),
        (b"other", CODEC.encode_ping(Ping("S", 1))),
        (b"\xff\xfe", CODEC.encode_ping(Ping("S", 1))),
        (b"", CODEC.encode_ping(Ping("S", 1))),
        (None, None),
    ],
)
@pytest.mark.parametrize("topic", [PINGS, STATUSES])
def test_record_that_cannot_be_used_is_put_aside_and_the_next_is_served(
    topic: str, key: bytes | None, value: bytes | None
) -> None:
    """B25 and B30: topic, partition, offset, reason, and the bytes unchanged."""
    desk = Desk()
    effects = desk.step(desk.ping("A", 1), desk.record(topic, key, value), desk.ping("B", 1))

    assert [query.subject for query in effects.queries] == ["A", "B"]
    ((where, partition, offset, reason, kept),) = desk.letters(effects)
    assert (where, partition, offset, kept) == (topic, 0, 2, value)
    assert reason
    assert desk.processor.counters()["dead_letters"] == 1


@pytest.mark.parametrize("topic", [PINGS, STATUSES])
def test_null_value_is_counted_and_skipped(topic: str) -> None:
    """B30: it says nothing; a batch that holds one is not lost."""
    desk = Desk()
    effects = desk.step(desk.record(topic, b"S", None), desk.ping("S", 1))

    assert effects.committed == []
    assert [query.subject for query in effects.queries] == ["S"]
    assert desk.processor.counters()["null_values"] == 1


def test_ping_on_a_wrong_partition_is_sent_to_its_owner_unchanged() -> None:
    desk = Desk(partition=1, partitions=4)
    record = desk.ping(owned_by(2, 4), 7)
    effects = desk.step(record)

    assert effects.queries == []
    (write,) = effects.outputs
    assert (write.topic, write.partition, write.key, write.value) == (PINGS, 2, *record[4:])
    assert desk.processor.counters()["forwarded_pings"] == 1


def test_cursor_row_that_does_not_decode_is_corrupt() -> None:
    desk = Desk()
    desk.rows[b"cS"] = b"garbage"

    with pytest.raises(Corrupt, match="cursor row does not decode"):
        desk.step(desk.ping("S", 1))


def test_active_row_that_does_not_decode_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        Desk().processor.restore(iter([(b"aS", b"garbage")]), NOW_MS)


# --- jobs out --------------------------------------------------------------------------------


def test_first_attempt_goes_to_the_tasks_own_partition_and_queue() -> None:
    spec = topology("T1", LambdaSpec(lambda_id="x", queue="bulk"))
    desk = Desk(spec, partition=2, partitions=4)
    queries = desk.step(desk.ping(owned_by(2, 4), 1)).queries
    (write,) = desk.processor.answer([EventPage(queries[0], [Event(1, b"")])], NOW_MS).outputs

    assert (write.topic, write.partition) == (NAMES.jobs("bulk"), 2)


def test_reissue_goes_to_another_partition() -> None:
    desk = Desk(partition=0, partitions=4)
    seen: set[int] = set()
    for number in range(60):
        subject = f"S{number}"
        if partition_of(subject.encode(), 4):
            continue
        (job,) = desk.jobs_for(subject, 1)
        status = done(job)
        status.done = []
        effects = desk.step(desk.status(status))
        effects = desk.processor.tick(NOW_MS + 10_000)
        seen |= {write.partition for write in effects.outputs}

    assert seen == {1, 2, 3}


def test_reissue_has_nowhere_else_to_go_with_one_partition() -> None:
    desk = Desk()
    (job,) = desk.jobs_for("S", 1)
    status = done(job)
    status.done = []
    desk.step(desk.status(status))

    (write,) = desk.processor.tick(NOW_MS + 10_000).outputs
    assert write.partition == 0


def test_event_that_fits_no_job_is_told_with_where_and_why() -> None:
    """B16: its bytes stay at the source."""
    desk = Desk(topology("T1"), settings=SchedulerSettings(job_bytes_max=1_000))
    queries = desk.step(desk.ping("S", 1)).queries
    page = EventPage(queries[0], [Event(1, b"x" * 2_000)])
    effects = desk.processor.answer([page], NOW_MS)

    ((topic, partition, offset, reason, value),) = desk.letters(effects)
    assert (topic, partition, offset, value) == (NAMES.jobs("general"), 0, -1, None)
    assert reason == "event 1 has 2064 bytes for T1/only, more than a job may have"
    assert effects.outputs == []


def test_job_that_the_client_gave_up_goes_out_again() -> None:
    desk = Desk()
    queries = desk.step(desk.ping("S", 1)).queries
    (write,) = desk.processor.answer([EventPage(queries[0], [Event(1, b"")])], NOW_MS).outputs
    failed = FailedSend(*write, "message timeout")
    desk.processor.undelivered([failed], NOW_MS)
    (again,) = desk.processor.tick(NOW_MS).outputs

    assert CODEC.decode_job(again.value, "general").attempt == 2
    assert desk.processor.counters()["undelivered"] == 1


def test_what_else_the_client_gave_up_needs_no_mending() -> None:
    desk = Desk(partition=0, partitions=2)
    (job,) = desk.jobs_for(owned_by(0, 2), 1)
    foreign = Desk(partition=1, partitions=2).jobs_for(owned_by(1, 2), 1)
    sends = [
        FailedSend(PINGS, 1, b"S", b"ping", "x"),
        FailedSend(NAMES.jobs("general"), 0, b"S", None, "x"),
        *(
            FailedSend(NAMES.jobs("general"), 1, b"S", CODEC.encode_job(each), "x")
            for each in foreign
        ),
    ]
    desk.processor.undelivered(sends, NOW_MS)

    assert desk.processor.counters()["undelivered"] == 0
    assert desk.processor.scheduler.open_jobs == 1
    assert job.partition == 0


def test_fault_of_the_source_is_asked_again_later() -> None:
    desk = Desk()
    queries = desk.step(desk.ping("S", 1)).queries
    desk.processor.answer([QueryFault(queries[0], "away")], NOW_MS)
    due_ms = desk.processor.next_ms()

    assert due_ms is not None
    assert due_ms > NOW_MS
    assert desk.processor.tick(due_ms).queries == queries


def test_load_counts_jobs_out_and_subjects_in_memory() -> None:
    desk = Desk(topology("T1"), topology("T2"))
    assert desk.processor.load() == 0
    desk.jobs_for("S", 1)

    assert desk.processor.load() == 3


# --- restart ---------------------------------------------------------------------------------


def successor(desk: Desk, outputs: Sequence[Record] = ()) -> Desk:
    """The next owner, restored from the rows, with these jobs found in the log."""
    new = Desk(partition=desk.partition)
    new.rows = desk.rows
    active = [(key, value) for key, value in desk.rows.items() if key.startswith(b"a")]
    new.processor.restore(iter(active), NOW_MS)
    new.processor.adopt(outputs, new.read_rows, NOW_MS)
    return new


def job_record(job: Job, queue: str = "general") -> Record:
    return Record(NAMES.jobs(queue), 0, 0, 0, job.subject.encode(), CODEC.encode_job(job))


def test_successor_knows_jobs_that_are_only_in_the_log() -> None:
    desk = Desk()
    (job,) = desk.jobs_for("S", 1)
    new = successor(desk, [job_record(job)])
    new.processor.catch_up([new.status(done(job))], new.read_rows, NOW_MS)
    effects = new.processor.resume(NOW_MS)
    page = EventPage(effects.queries[0], [Event(1, b"x")])

    assert new.processor.answer([page], NOW_MS).outputs == []
    new.store()
    assert CODEC.decode_cursors(new.rows[b"cS"]).cursors == {"T1": 1}


def test_successor_adopts_with_the_stored_cursors_of_subjects_that_had_ended() -> None:
    desk = Desk()
    desk.rows[b"cS"] = CODEC.encode_cursors(CursorInfo("S", 5, {"T1": 5}))
    (job,) = desk.jobs_for("S", 6)
    (old,) = Desk().jobs_for("S", 5)
    new = successor(Desk(), [])
    new.rows = {b"cS": desk.rows[b"cS"]}
    newest = new.processor.adopt([job_record(job), job_record(old)], new.read_rows, NOW_MS)

    assert newest == job.epoch
    assert new.processor.counters()["adopted"] == 1
    assert new.processor.scheduler.open_jobs == 1


def test_successor_leaves_jobs_alone_that_are_not_its_own() -> None:
    foreign_task = Desk(partition=1, partitions=2).jobs_for(owned_by(1, 2), 1)[0]
    foreign_domain = Desk().jobs_for("S", 1)[0]
    foreign_domain.domain = "parcels"
    records = [
        job_record(foreign_task),
        job_record(foreign_domain),
        Record(NAMES.jobs("general"), 0, 0, 0, b"S", None),
        Record(NAMES.jobs("general"), 0, 0, 0, b"S", b"garbage"),
    ]

    assert successor(Desk(), records).processor.scheduler.open_jobs == 0


def test_successor_issues_nothing_before_it_resumes() -> None:
    desk = Desk()
    (job,) = desk.jobs_for("S", 1)
    desk.store()
    new = successor(desk)
    status = done(job)
    status.done = []
    effects = new.processor.catch_up([new.status(status)], new.read_rows, NOW_MS)

    assert (effects.outputs, effects.queries) == ([], [])
    assert new.processor.resume(NOW_MS).queries != []


def test_catch_up_puts_unusable_statuses_aside() -> None:
    desk = Desk()
    record = desk.record(STATUSES, b"S", b"garbage")
    effects = desk.processor.catch_up([record], desk.read_rows, NOW_MS)

    assert len(desk.letters(effects)) == 1


# --- sweep -----------------------------------------------------------------------------------


def swept(desk: Desk, shown: CursorInfo, stored: CursorInfo | None = None) -> Effects:
    """A sweep is shown one row while another is stored."""
    desk.rows[b"c" + shown.subject.encode()] = CODEC.encode_cursors(stored or shown)
    rows = [(b"c" + shown.subject.encode(), CODEC.encode_cursors(shown))]
    return desk.processor.sweep(rows, desk.read_rows, NOW_MS)


def test_sweep_finds_a_lagging_subject_that_nothing_is_done_for() -> None:
    desk = Desk(topology("T1"), topology("T2"))
    effects = swept(desk, CursorInfo("S", 5, {"T1": 5, "T2": 3}))

    assert [(query.subject, query.start) for query in effects.queries] == [("S", 4)]
    assert desk.processor.counters()["swept_subjects"] == 1


def test_sweep_finds_a_topology_that_is_new() -> None:
    desk = Desk(topology("T1"), topology("new"), topology("later", start=100))
    effects = swept(desk, CursorInfo("S", 5, {"T1": 5}))

    assert [query.start for query in effects.queries] == [0]


def test_sweep_leaves_subjects_alone_that_are_where_they_should_be() -> None:
    desk = Desk(topology("T1"), topology("later", start=100))
    effects = swept(desk, CursorInfo("S", 5, {"T1": 5, "later": 99}))

    # 99 is below 100, but above the newest event: nothing lags.
    assert effects.queries == []
    assert desk.processor.scheduler.active_subjects == 0


def test_sweep_leaves_active_subjects_alone() -> None:
    desk = Desk()
    desk.jobs_for("S", 1)
    effects = swept(desk, CursorInfo("S", 5, {"T1": 3}))

    assert effects.queries == []
    assert desk.processor.counters()["swept_subjects"] == 0


def test_sweep_believes_what_is_stored_now_and_not_what_it_was_shown() -> None:
    desk = Desk()
    effects = swept(desk, CursorInfo("S", 5, {"T1": 3}), CursorInfo("S", 5, {"T1": 5}))

    assert effects.queries == []
    assert desk.processor.scheduler.active_subjects == 0
