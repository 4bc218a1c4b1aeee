"""Answers questions about the tasks of an engine, in the engine's own thread, a slice at a time.

Nobody else may look at a task: its state changes under whoever does. So questions are posted from
any thread and answered between two turns; one that goes through a whole table takes many turns.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from cape_stream.core.auditing import Finding, audit_cursors, audit_inflight, audit_sleeper
from cape_stream.core.beginnings import lags
from cape_stream.core.explaining import explain, parked_events
from cape_stream.core.inflight.subject import SubjectState
from cape_stream.errors import Retry
from cape_stream.model.active_row import NEVER_MS
from cape_stream.model.subject import partition_of
from cape_stream.runtime.active_rows import decode_active_row
from cape_stream.runtime.dispatching import (
    ACTIVE_PREFIX,
    ASLEEP_PREFIX,
    CURSOR_PREFIX,
    DUE_PREFIX,
    DispatchProcessor,
)
from cape_stream.runtime.due_index import due_key
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.loop import Engine
from cape_stream.runtime.processor import TaskId
from cape_stream.runtime.questions import SourceStanding
from cape_stream.runtime.source_pacing import SourceState
from cape_stream.runtime.task import Task

SLICE_ROWS = 500
"""Rows looked at between two turns of the engine."""

Answer = dict[str, Any]


class Here(NamedTuple):
    """What there is to look at."""

    tasks: Mapping[TaskId, Task]
    sources: Mapping[str, SourceStanding]
    """Domain → how it goes with its source."""


T = TypeVar("T")
Steps = Iterator[list[Answer] | None]
"""None while there is more to look at; the last one is the answer."""


class NotOursError(Exception):
    """The partition is another member's, or nobody's."""

    def __init__(self, task: TaskId) -> None:
        super().__init__(f"{task} is not with this member")
        self.task = task


class Question:
    """One question and, later, its answer."""

    def __init__(self, steps: Callable[[Here, int], Steps]) -> None:
        self.steps = steps
        self.running: Steps | None = None
        self.done = threading.Event()
        self.answer: list[Answer] = []
        self.error: BaseException | None = None


class Inspector:
    """Takes questions from any thread; `turn` answers them in the engine's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Question] = []

    def ask(self, steps: Callable[[Here, int], Steps], timeout_s: float) -> list[Answer]:
        """The answer, waited for.

        Raises:
            NotOursError: the partition is not with this member.
            Retry: no answer in time.
        """
        question = Question(steps)
        with self._lock:
            self._waiting.append(question)
        if not question.done.wait(timeout_s):
            with self._lock:
                if question in self._waiting:
                    self._waiting.remove(question)
            raise Retry(f"no answer from the dispatcher within {timeout_s:.0f} s")
        if question.error is not None:
            raise question.error
        return question.answer

    def turn(self, engine: Engine, now_ms: int) -> None:
        """Take every open question one step on."""
        if not self._waiting:
            return
        with self._lock:
            waiting = list(self._waiting)
        sources = {name: each.standing() for name, each in engine.sources.items()}
        here = Here(engine.assignment.tasks, sources)
        for question in waiting:
            self._step(question, here, now_ms)
            if question.done.is_set():
                with self._lock:
                    if question in self._waiting:
                        self._waiting.remove(question)

    def _step(self, question: Question, here: Here, now_ms: int) -> None:
        try:
            if question.running is None:
                question.running = question.steps(here, now_ms)
            answer = next(question.running)
        except Exception as error:  # noqa: BLE001  # goes to whoever asked, not into the loop
            question.error = error
            question.done.set()
            return
        if answer is not None:
            question.answer = answer
            question.done.set()


def about_subject(domain: str, partitions: int, subject: str) -> Callable[[Here, int], Steps]:
    """Everything about one subject: why it waits, and what is put aside."""

    def steps(here: Here, now_ms: int) -> Steps:
        task_id = TaskId(domain, partition_of(subject.encode(), partitions))
        task, processor = _owned(here.tasks, task_id)
        base = {"domain": domain, "partition": task_id.partition, "task": task.state.value}
        if processor is None or task.state is not TaskState.RUNNING:
            text = f"its partition is {task.state.value}; nothing is issued until that has ended"
            yield [{**base, "subject": subject, "because": text, "topologies": []}]
            return
        found = _look(task, processor, subject, now_ms)
        if found is None:
            text = "nothing is known of it: no ping has come, and no sweep has found it"
            unknown = {"subject": subject, "where": "unknown", "because": text, "topologies": []}
            yield [{**base, **unknown}]
            return
        where, state = found
        scheduler = processor.scheduler
        told = explain(scheduler.plan, state, where, scheduler.paused, now_ms, scheduler.valves)
        if domain in here.sources:
            _add_source(told, here.sources[domain], now_ms)
        yield [{**base, **told}]

    return steps


def _add_source(told: Answer, source: SourceStanding, now_ms: int) -> None:
    """What goes for the source as a whole; it is the reason where an answer is waited for."""
    opens_in_ms = max(0, (source.opens_until_ms or now_ms) - now_ms)
    told["source"] |= {
        "state": str(source.state),
        "opens_in_ms": opens_in_ms,
        "calls_out": source.calls_out,
        "calls_max": source.calls_max,
        "calls_hanging": source.calls_hanging,
        "error": source.failing.get(told["subject"]),
    }
    if told["source"]["error"]:
        told["because"] += f" (the source says: {told['source']['error']})"
    if source.state is SourceState.CLOSED or not told["source"]["queries_out"]:
        return
    if source.state is SourceState.HANGING:
        text = f"all {source.calls_hanging} calls to the source hang; none is asked before one ends"
    elif source.state is SourceState.OPEN:
        text = f"the source is down; it is tried again in {opens_in_ms / 1_000:.1f} s"
    else:
        text = "the source was down; one call is out to see whether it is back"
    told["because"] = f"{text}; {told['because']}"


def about_parked(domain: str, topology: str | None, limit: int) -> Callable[[Here, int], Steps]:
    """What is put aside in all partitions that are here, at most ``limit``."""

    def steps(here: Here, now_ms: int) -> Steps:
        found: list[Answer] = []
        for task, processor in _running(here.tasks, domain):
            plan = processor.scheduler.plan
            inflight = processor.scheduler.inflight
            # Those asleep since the last commit are not in the table yet.
            for state in [*inflight.subjects.values(), *inflight.asleep.values()]:
                found += parked_events(plan, state, now_ms)
            yield None
            scan = task.table.scan(task.name, ASLEEP_PREFIX)
            while rows := list(islice(scan, SLICE_ROWS)):
                for _, value in rows:
                    row = decode_active_row(value)
                    if not processor.scheduler.holds(row.subject):
                        state = processor.scheduler.imagined(row, now_ms)
                        found += parked_events(plan, state, now_ms)
                if len(found) >= limit:
                    break
                yield None
        yield [each for each in found if topology in (None, each["topology"])][:limit]

    return steps


def about_topologies(domain: str) -> Callable[[Here, int], Steps]:
    """Per partition and topology: paused or not, and how many jobs are out."""

    def steps(here: Here, _: int) -> Steps:
        found: list[Answer] = []
        for task, processor in _running(here.tasks, domain):
            out = processor.scheduler.jobs_out()
            found += [
                {
                    "partition": task.id.partition,
                    "topology": topology.name,
                    "paused": topology.name in processor.scheduler.paused,
                    "jobs_out": out.get(topology.name, 0),
                }
                for topology in processor.scheduler.plan.topologies
            ]
        yield found

    return steps


def about_consistency(domain: str, partitions: int) -> Callable[[Here, int], Steps]:
    """Rows, index and in-flight table held against one another."""

    def steps(here: Here, _: int) -> Steps:
        found: list[Answer] = []
        for task, processor in _running(here.tasks, domain):
            for findings in _audit(task, processor, partitions):
                found += [
                    {"domain": domain, "partition": task.id.partition, **each._asdict()}
                    for each in findings
                ]
                yield None
        yield found

    return steps


def about_tables(domain: str) -> Callable[[Here, int], Steps]:
    """Where the rows of the tasks that are here can be read, from any thread."""

    def steps(here: Here, _: int) -> Steps:
        running = _running(here.tasks, domain)
        yield [{"partition": t.id.partition, "name": t.name, "table": t.table} for t, _ in running]

    return steps


def about_jobs(domain: str) -> Callable[[Here, int], Steps]:
    """The ids of all jobs that are out, by partition."""

    def steps(here: Here, _: int) -> Steps:
        running = _running(here.tasks, domain)
        yield [
            {"partition": t.id.partition, "jobs": set(p.scheduler.inflight.jobs)}
            for t, p in running
        ]

    return steps


def _audit(task: Task, processor: DispatchProcessor, partitions: int) -> Iterator[list[Finding]]:
    scheduler = processor.scheduler
    yield list(audit_inflight(scheduler.plan, scheduler.inflight))
    for prefix, look in (
        (ACTIVE_PREFIX, _audit_active),
        (ASLEEP_PREFIX, _audit_asleep),
        (DUE_PREFIX, _audit_index),
        (CURSOR_PREFIX, _audit_info),
    ):
        scan = task.table.scan(task.name, prefix)
        while rows := list(islice(scan, SLICE_ROWS)):
            findings: list[Finding] = []
            for key, value in rows:
                if key == ACTIVE_PREFIX:
                    continue
                findings += look(task, processor, key, value)
                name = key[1:] if prefix != DUE_PREFIX else b""
                if name and partition_of(name, partitions) != task.id.partition:
                    text = f"row {prefix.decode()} lies in a partition that does not own it"
                    findings.append(Finding("impossible", name.decode(), text))
            yield findings


def _audit_active(task: Task, processor: DispatchProcessor, key: bytes, _: bytes) -> list[Finding]:
    subject = key[1:].decode()
    if processor.scheduler.holds(subject) or task.read_rows([key])[0] is None:
        return []
    return [Finding("leaked", subject, "stored as active, and not in memory")]


def _audit_asleep(
    task: Task, processor: DispatchProcessor, key: bytes, value: bytes
) -> list[Finding]:
    name = key[1:]
    row = decode_active_row(value)
    if processor.scheduler.holds(row.subject):
        return []
    index = due_key(DUE_PREFIX, row.wake_ms, name) if row.wake_ms != NEVER_MS else None
    now, indexed, active = task.read_rows([key, index or key, ACTIVE_PREFIX + name])
    if now != value:
        return []
    return list(
        audit_sleeper(row, is_indexed=indexed is not None, has_active_row=active is not None)
    )


def _audit_index(task: Task, processor: DispatchProcessor, key: bytes, _: bytes) -> list[Finding]:
    name = key[9:]
    if processor.scheduler.holds(name.decode()):
        return []
    indexed, asleep = task.read_rows([key, ASLEEP_PREFIX + name])
    if indexed is None or asleep is not None:
        return []
    return [Finding("leaked", name.decode(), "indexed by a time to wake, and not asleep")]


def _audit_info(
    task: Task, processor: DispatchProcessor, key: bytes, value: bytes
) -> list[Finding]:
    info = processor.decode_cursor_row(value)
    scheduler = processor.scheduler
    if scheduler.holds(info.subject):
        return []
    now, asleep = task.read_rows([key, ASLEEP_PREFIX + key[1:]])
    if now != value:
        return []
    findings = list(audit_cursors(scheduler.plan, info))
    if asleep is None and lags(scheduler.plan, info, scheduler.takes):
        text = "a topology lags, and nothing is under way: the sweep has not come by, or is off"
        findings.append(Finding("stuck", info.subject, text))
    return findings


def _owned(tasks: Mapping[TaskId, Task], task_id: TaskId) -> tuple[Task, DispatchProcessor | None]:
    task = tasks.get(task_id)
    if task is None:
        raise NotOursError(task_id)
    processor = task.processor
    return task, processor if isinstance(processor, DispatchProcessor) else None


def _running(tasks: Mapping[TaskId, Task], domain: str) -> Iterator[tuple[Task, DispatchProcessor]]:
    for task_id, task in list(tasks.items()):
        processor = task.processor
        if task_id.group == domain and task.state is TaskState.RUNNING and task.open:
            assert isinstance(processor, DispatchProcessor), "a domain is run by a dispatcher"
            yield task, processor


def _look(
    task: Task, processor: DispatchProcessor, subject: str, now_ms: int
) -> tuple[str, SubjectState] | None:
    """Where a subject is, and its state, put together from its row where it is not in memory."""
    scheduler = processor.scheduler
    state = scheduler.subject(subject)
    if state is not None:
        return "active", state
    state = scheduler.sleeper(subject)
    if state is not None:
        return "asleep", state
    state = scheduler.finisher(subject)
    if state is not None:
        return "idle", state
    name = subject.encode()
    asleep, info = task.read_rows([ASLEEP_PREFIX + name, CURSOR_PREFIX + name])
    if asleep is not None:
        row = decode_active_row(asleep)
        return "asleep", scheduler.imagined(row, now_ms)
    if info is not None:
        found = processor.decode_cursor_row(info)
        cursors = scheduler.known_cursors(subject, found)
        return "idle", SubjectState(subject, cursors, found.latest)
    return None
