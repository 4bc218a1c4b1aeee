"""The language of the transcripts: a command a line, and what the scheduler says to it.

    topology T1 ordered after=T0 start=5 window=100 batch=2 timeout=30s   before all others
    topology T1 quarantine=permanent:2 in-flight=1 retry=1h               and with limits
    lambda T1 store inputs=parse batch=10                                 one more stage of T1
    page 10                                                               events an answer holds
    cursors S latest=99 T1=90 T2=99                                       what is stored
    ping S 100 | ping S                                                   with a number or without
    answer S 91,99,100 | answer S nothing | answer S from=11 11,12        the oldest query or that
    fault S                                                               the source is away
    request S 91..100 91,99,100                                           of a tracker elsewhere
    status J1 ok | status J1 99=ok 100=fail(invalid) | status J1 ok(text) text is an output
    status J1 handed-back 99=ok | status J1 heartbeat | status J1 subject=X ok
    undelivered J1                                                        the client gave it up
    order pause T1 | order rewind T1 S 90 | order release T1 S 99         an operator's verb
    tick 30s | tick 500ms                                                 time passes
    wake                                                                  the engine looks for it
    commit                                                                the state is stored
    crash                                                                 and what follows waits
    restore                                                               for the next owner

What it says, indented by two: what became of an order, queries asked, jobs issued, cursors moved,
events put aside, subjects that begin, sleep and end, and what was counted.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from cape_stream.model.active_row import NEVER_MS
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.operation import Verb
from cape_stream.model.request import SchedulingRequest
from cape_stream.model.status import FailureClass, JobStatus, StatusKind
from cape_stream.model.topology import LambdaSpec, RetrySpec, TopologySpec
from tests.desk import Desk, event
from tests.desk import topology as make_topology

TOLD = {
    "adopted",
    "bad_pages",
    "extra_events",
    "handed_back",
    "heartbeats",
    "ignored_successes",
    "late_successes",
    "missing_events",
    "query_faults",
    "repeated_events",
    "source_behind",
    "stale_pings",
    "quarantined_events",
    "timeouts",
    "undelivered",
    "unknown_statuses",
    "vanished_events",
    "wrong_subject",
}
"""Counters worth a line."""


class Dialogue:
    """Plays one transcript, a command at a time."""

    def __init__(self) -> None:
        self._topologies: dict[str, TopologySpec] = {}
        self._page_limit = 10
        self._desk: Desk | None = None
        self._waiting: list[JobStatus] | None = None
        """Statuses that came while nobody was there."""

    def play(self, line: str) -> list[str]:
        """Carry one command out; what is said to it."""
        word, *words = line.split()
        command = getattr(self, f"_do_{word}")
        if word in {"topology", "lambda", "page"}:
            command(*words)
            return []
        desk = self.desk
        before = _Picture(desk)
        said: list[str] = command(*words) or []
        return [*said, *_Picture(desk).since(before)]

    @property
    def desk(self) -> Desk:
        """Set up with the first command that is no declaration."""
        if self._desk is None:
            self._desk = Desk(*self._topologies.values(), page_limit=self._page_limit)
        return self._desk

    # --- declarations --------------------------------------------------------------------------

    def _do_page(self, limit: str) -> None:
        self._page_limit = int(limit)

    def _do_topology(self, name: str, *words: str) -> None:
        options = _options(words)
        only = LambdaSpec(
            lambda_id=options.get("lambda", "only"),
            max_batch=int(options.get("batch", "50")),
            timeout_ms=_milliseconds(options.get("timeout", "30s")),
        )
        self._topologies[name] = make_topology(
            name,
            only,
            ordering="ordered" if "ordered" in words else "parallel",
            after=tuple(_list(options.get("after", ""))),
            start=int(options.get("start", "0")),
            window=int(options.get("window", "1000")),
            retry=_retry(options.get("retry")),
            quarantine_after=dict(map(_limit, _list(options.get("quarantine", "")))),
            in_flight_max=int(options["in-flight"]) if "in-flight" in options else None,
        )

    def _do_lambda(self, name: str, lambda_id: str, *words: str) -> None:
        options = _options(words)
        stage = LambdaSpec(
            lambda_id=lambda_id,
            inputs=tuple(_list(options.get("inputs", ""))),
            max_batch=int(options.get("batch", "50")),
        )
        spec = self._topologies[name]
        self._topologies[name] = replace(spec, lambdas=(*spec.lambdas, stage))

    # --- what comes in -------------------------------------------------------------------------

    def _do_cursors(self, subject: str, *words: str) -> None:
        options = {name: int(value) for name, value in _options(words).items()}
        self.desk.infos[subject] = CursorInfo(subject, options.pop("latest"), options)

    def _do_ping(self, subject: str, latest: str | None = None) -> None:
        self.desk.ping(subject, None if latest is None else int(latest))

    def _do_answer(self, subject: str, *words: str) -> None:
        start = _options(words).get("from")
        ids = [] if words[-1] == "nothing" else [int(each) for each in _list(words[-1])]
        self.desk.answer(subject, ids, None if start is None else int(start))

    def _do_fault(self, subject: str) -> None:
        self.desk.fault(subject)

    def _do_request(self, subject: str, interval: str, ids: str) -> None:
        start, end = (int(each) for each in interval.split(".."))
        events = [event(int(each)) for each in _list(ids)]
        self.desk.request(SchedulingRequest(subject, end, start, end, events))

    def _do_status(self, name: str, *words: str) -> None:
        status = _status(self.desk, name, words)
        if self._waiting is None:
            self.desk.status(status)
        else:
            self._waiting.append(status)

    def _do_undelivered(self, name: str) -> None:
        self.desk.undelivered(name)

    def _do_order(
        self, verb: str, topology: str, subject: str | None = None, sequence: str | None = None
    ) -> list[str]:
        number = None if sequence is None else int(sequence)
        ruling = self.desk.order(Verb(verb), topology, subject, number)
        return [f"{ruling.outcome.value}: {ruling.detail}"]

    def _do_tick(self, passed: str) -> None:
        self.desk.tick(_milliseconds(passed))

    def _do_wake(self) -> None:
        self.desk.wake_due()

    def _do_commit(self) -> None:
        self.desk.commit()

    def _do_crash(self) -> None:
        self._waiting = []

    def _do_restore(self) -> None:
        statuses, self._waiting = self._waiting or [], None
        self.desk.crash(statuses=statuses)


class Place(NamedTuple):
    """One lambda of one subject."""

    subject: str
    topology: str
    lambda_id: str

    def __str__(self) -> str:
        if self.lambda_id == "only":
            return f"{self.subject} {self.topology}"
        return f"{self.subject} {self.topology}.{self.lambda_id}"


class _Picture:
    """What can be told of a desk at one moment."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.jobs = len(desk.jobs)
        self.asked = len(desk.asked)
        self.counters = asdict(desk.counters)
        self.scheduler = desk.scheduler
        states = list(desk.scheduler.subjects())
        self.active = {state.subject for state in states}
        seen = {*desk.asleep, *desk.infos, *(job.subject for job in desk.jobs.values())}
        self.asleep = {each for each in seen - self.active if desk.look(each) is not None}
        self.waiting = {
            (state.subject, desk.plan.lambdas[valve.place].topology)
            for valve in desk.scheduler.valves
            for state in valve.line
        }
        known = {*self.active, *desk.infos, *(job.subject for job in desk.jobs.values())}
        self.cursors = {
            Place(subject, plan.topology, plan.lambda_id): cursor
            for subject in sorted(known)
            for plan, cursor in zip(desk.plan.lambdas, desk.peek(subject), strict=True)
        }
        self.aside = {
            (Place(state.subject, plan.topology, plan.lambda_id), sequence): (
                put.failure_class or "not failed",
                put.due_ms,
                put.attempts,
            )
            for state in (*states, *filter(None, map(desk.look, sorted(self.asleep))))
            for plan, entry in zip(desk.plan.lambdas, state.lambdas, strict=True)
            for sequence, put in sorted(entry.parked.items())
        }

    def since(self, before: "_Picture") -> Iterator[str]:
        """The lines to say."""
        if self.scheduler is not before.scheduler:
            before.counters = dict.fromkeys(self.counters, 0)
            yield from self._taken_over(before)
        begun = self.active - before.active
        yield from (f"{subject} wakes" for subject in sorted(begun & before.asleep))
        yield from (f"{subject} begins" for subject in sorted(begun - before.asleep))
        yield from self._moved(before)
        yield from self._issued(before)
        for query in self.desk.asked[before.asked :]:
            yield f"ask {query.subject} from {query.start}, at most {query.limit}"
        for subject, topology in sorted(self.waiting - before.waiting):
            yield f"{subject} waits for {topology}"
        gone = before.active - self.active
        yield from (f"{subject} sleeps" for subject in sorted(gone & self.asleep))
        yield from (f"{subject} ends" for subject in sorted(gone - self.asleep))
        for name, count in self.counters.items():
            if name in TOLD and count != before.counters[name]:
                yield f"count {name.replace('_', ' ')} {count - before.counters[name]}"

    def _taken_over(self, before: "_Picture") -> Iterator[str]:
        """Jobs that the new owner knows of the old one."""
        old = list(self.desk.jobs)[: before.jobs]
        for name, sequences in zip(self.desk.names_out(), self.desk.out(), strict=True):
            if name in old:
                yield f"still out {name} {_ids(sequences)}"

    def _moved(self, before: "_Picture") -> Iterator[str]:
        """Cursors that moved, and events that were put aside."""
        for place, cursor in self.cursors.items():
            if before.cursors.get(place, cursor) != cursor:
                yield f"cursor {place} {before.cursors[place]} → {cursor}"
        for where, (why, due_ms, attempts) in self.aside.items():
            if before.aside.get(where) != (why, due_ms, attempts):
                wait_ms = max(due_ms - self.desk.now_ms, 0)
                due = "due never" if due_ms == NEVER_MS else f"due in {wait_ms} ms"
                yield f"aside {where[0]} {where[1]}: {why}, {due}"

    def _issued(self, before: "_Picture") -> Iterator[str]:
        """Jobs that went out."""
        for name, job in list(self.desk.jobs.items())[before.jobs :]:
            ids = _ids([each.sequence for each in job.events])
            line = f"issue {name} {Place(job.subject, job.topology, job.lambda_id)} {ids}"
            if job.attempt > 1:
                line += f", attempt {job.attempt}"
            for each in job.events:
                for lambda_id, output in each.inputs.items():
                    line += f", {lambda_id}={output.decode()}"
            yield line


def _status(desk: Desk, name: str, words: tuple[str, ...]) -> JobStatus:
    """The report that a line spells."""
    kinds = {"heartbeat": StatusKind.HEARTBEAT, "handed-back": StatusKind.HANDED_BACK}
    kind = next((kinds[word] for word in words if word in kinds), StatusKind.RESULTS)
    ids = [each.sequence for each in desk.jobs[name].events]
    done: dict[int, bytes] = {}
    failed: dict[int, FailureClass] = {}
    wrong: dict[str, Any] = {}
    for word in words:
        if match := re.fullmatch(r"(?:(\d+)=)?ok(?:\((.*)\))?", word):
            for each in [int(match[1])] if match[1] else ids:
                done[each] = (match[2] or "").encode()
        elif match := re.fullmatch(r"(?:(\d+)=)?fail\((\w+)\)", word):
            for each in [int(match[1])] if match[1] else ids:
                failed[each] = FailureClass(match[2])
        elif match := re.fullmatch(r"(subject|topology|job_id)=(\S+)", word):
            wrong[match[1]] = match[2]
        elif word not in kinds:
            raise ValueError(f"what does {word!r} mean?")
    outputs = {each: output for each, output in done.items() if output}
    status = desk.make_status(name, list(done), failed, kind, outputs)
    return replace(status, **wrong)


def _ids(ids: list[int]) -> str:
    return ",".join(str(each) for each in ids)


def _list(text: str) -> list[str]:
    return [each for each in text.split(",") if each]


def _options(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _retry(wait: str | None) -> RetrySpec:
    """The usual one, or always this wait."""
    if wait is None:
        return RetrySpec()
    ms = _milliseconds(wait)
    return RetrySpec(first_ms=ms, max_ms=ms, floor_ms=ms)


def _limit(text: str) -> tuple[FailureClass, int]:
    name, attempts = text.split(":")
    return FailureClass(name), int(attempts)


def _milliseconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)(ms|s|min|h)", text)
    assert match is not None, text
    return int(match[1]) * {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000}[match[2]]
