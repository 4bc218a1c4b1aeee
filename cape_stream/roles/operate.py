"""The operators' commands: each asks or orders, and shows what came of it."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cape_stream.errors import Fatal, Reject
from cape_stream.model.operation import Operation, Outcome
from cape_stream.model.subject import BadSubjectError, check_subject
from cape_stream.ports.source import EventSource
from cape_stream.roles.asking import AdminClient, all_of, members, owner
from cape_stream.roles.backends import Backend
from cape_stream.roles.live_tail import open_tail
from cape_stream.roles.orders import carry_out, entry_as_fields, new_operation
from cape_stream.roles.settings import Settings
from cape_stream.roles.source_walk import subjects_of
from cape_stream.sdk.app import App

Answer = dict[str, Any]
DRAIN_LOOK_S = 0.5
AUDIT_AGAIN_S = 2.0
"""A finding counts when it is there twice: a change on its way is none."""


@dataclass(slots=True)
class Shown:
    """What a command has to say."""

    answers: list[Answer]
    """One object each; with ``--json`` one line each."""
    words: list[str] = field(default_factory=list)
    """For people."""
    is_good: bool = True
    """False: exit 1."""

    def as_json(self) -> str:
        """One JSON object a line."""
        return "\n".join(json.dumps(each, ensure_ascii=False) for each in self.answers)

    def in_words(self) -> str:
        """Lines for people."""
        return "\n".join(self.words)


class Operator:
    """Operators' commands against one App.

    Args:
        app: whose domains.
        settings: everything in effect.
        backend: the log; None when all goes through one admin API.
        admin: base URL of that; None finds the owners in the group.
    """

    def __init__(
        self, app: App, settings: Settings, backend: Backend | None, admin: str | None
    ) -> None:
        self._app = app
        self._settings = settings
        self._backend = backend
        self._admin = admin

    # --- orders --------------------------------------------------------------------------------

    def order(
        self,
        verb: str,
        domain: str,
        topology: str,
        *,
        who: str,
        why: str = "",
        subject: str | None = None,
        sequence: int | None = None,
    ) -> Shown:
        """Give one order and wait for what becomes of it."""
        operation = self._operation(verb, domain, topology, who, why, subject, sequence)
        return _shown(self._carry_out([operation]))

    def drain(self, domain: str, topology: str, *, who: str, why: str, wait_s: float) -> Shown:
        """Pause a topology and wait until none of its jobs is out; exit 1 if some still are."""
        shown = self.order("drain", domain, topology, who=who, why=why)
        if not shown.is_good:
            return shown
        deadline_s = time.monotonic() + wait_s
        out = self._jobs_out(domain, topology)
        while out and time.monotonic() < deadline_s:
            time.sleep(DRAIN_LOOK_S)
            out = self._jobs_out(domain, topology)
        shown.answers.append({"domain": domain, "topology": topology, "jobs_out": out})
        shown.words.append(f"{out} jobs of {topology} are out" if out else f"{topology} is drained")
        shown.is_good = not out
        return shown

    def backfill(
        self,
        domain: str,
        topology: str,
        first: int,
        subjects: Iterable[str] | None,
        *,
        who: str,
        why: str,
    ) -> Shown:
        """Deliver everything from a sequence id on once more, to all subjects of the source or to
        some. Each is an order of its own, so a backfill that was cut short is begun again."""
        if subjects is None:
            subjects = _all_subjects(self._domain_source(domain))
        operations = (
            self._operation("backfill", domain, topology, who, why, each, first)
            for each in subjects
        )
        counts = dict.fromkeys((outcome.value for outcome in Outcome), 0)
        refused: list[Answer] = []
        for entry in self._carry_out(operations):
            counts[entry["outcome"]] += 1
            if entry["outcome"] == Outcome.REFUSED:
                refused.append(entry)
        summary = {"domain": domain, "topology": topology, "from": first, **counts}
        total = (
            f"backfill of {topology} from {first}: {counts['applied']} subjects begun,"
            f" {counts['nothing']} had nothing to repeat, {counts['refused']} refused"
        )
        words = [total, *(f"{e['subject']}: {e['detail']}" for e in refused[:SHOWN_MAX])]
        return Shown([*refused, summary], words, is_good=not refused)

    # --- questions -----------------------------------------------------------------------------

    def explain(self, domain: str, subject: str) -> Shown:
        """Why a subject waits."""
        answer = self._about(domain, subject)
        words = [f"{subject} ({answer.get('where', answer['task'])}): {answer['because']}"]
        for topology in answer["topologies"]:
            paused = ", paused" if topology["paused"] else ""
            words.append(f"  {topology['topology']}: cursor {_spelled(topology['cursor'])}{paused}")
            words += [f"    {each['lambda']}: {each['because']}" for each in topology["lambdas"]]
        return Shown([answer], words)

    def cursors(self, domain: str, subject: str) -> Shown:
        """How far each topology has come; exit 1 for a subject that nobody knows."""
        answer = self._about(domain, subject)
        found = {each["topology"]: each["cursor"] for each in answer["topologies"]}
        shown = {"domain": domain, "subject": subject, "newest": answer.get("newest_seen")}
        if not found:
            return Shown([{**shown, "cursors": {}}], [answer["because"]], is_good=False)
        words = [f"{name}: {_spelled(cursor)}" for name, cursor in found.items()]
        words.append(f"newest event seen: {_spelled(answer['newest_seen'])}")
        return Shown([{**shown, "cursors": found}], words)

    def parked(self, domain: str, topology: str | None, limit: int) -> Shown:
        """What is put aside, on all dispatchers."""
        parameters = {"domain": domain, "limit": str(limit)}
        if topology is not None:
            parameters["topology"] = topology
        found = all_of(self._members(domain), "/v1/parked", **parameters)[:limit]
        words = [_parked_line(each) for each in found]
        return Shown(found, words or ["nothing is put aside"])

    def audit(self, domain: str) -> Shown:
        """Everything that is wrong, seen twice; exit 1 if anything is."""
        first = all_of(self._members(domain), "/v1/audit", domain=domain)
        found: list[Answer] = []
        if first:
            time.sleep(AUDIT_AGAIN_S)
            again = all_of(self._members(domain), "/v1/audit", domain=domain)
            found = [each for each in again if each in first]
        words = [f"{e['kind']}: {e['subject'] or '(all)'}: {e['detail']}" for e in found]
        return Shown(found, words or ["nothing is leaked, stuck or impossible"], is_good=not found)

    # --- parts ---------------------------------------------------------------------------------

    def _operation(
        self,
        verb: str,
        domain: str,
        topology: str,
        who: str,
        why: str,
        subject: str | None,
        sequence: int | None,
    ) -> Operation:
        try:
            if subject is not None:
                check_subject(subject)
        except BadSubjectError as error:
            raise Reject(str(error)) from error
        return new_operation(
            self._app,
            verb,
            domain,
            topology,
            who=who,
            why=why,
            subject=subject,
            sequence=sequence,
            now_ms=time.time_ns() // 1_000_000,
        )

    def _carry_out(self, operations: Iterable[Operation]) -> Iterator[Answer]:
        if self._admin is not None:
            client = AdminClient(self._admin, self._settings.admin)
            for each in operations:
                yield from client.post("/v1/operations", _order_fields(each))
            return
        if self._backend is None:
            raise Fatal("name a Kafka with --kafka, or a dispatcher with --admin http://HOST:PORT")
        timeout_ms = self._settings.admin.timeout_ms
        tail = open_tail(self._app.name)
        try:
            entries = carry_out(self._app, self._backend, operations, timeout_ms, tail)
        finally:
            tail.close()
        yield from map(entry_as_fields, entries)

    def _members(self, domain: str) -> list[AdminClient]:
        self._domain_source(domain)
        return members(self._app, self._backend, self._settings.admin, self._admin, domain)

    def _about(self, domain: str, subject: str) -> Answer:
        self._domain_source(domain)
        settings = self._settings.admin
        client = owner(self._app, self._backend, settings, self._admin, domain, subject)
        answer: Answer = client.get("/v1/explain", domain=domain, subject=subject)
        return answer

    def _jobs_out(self, domain: str, topology: str) -> int:
        found = all_of(self._members(domain), "/v1/topologies", domain=domain)
        return sum(each["jobs_out"] for each in found if each["topology"] == topology)

    def _domain_source(self, domain: str) -> EventSource:
        if domain not in self._app.domains:
            known = ", ".join(self._app.domains)
            raise Reject(f"there is no domain {domain!r}; known: {known}")
        return self._app.domains[domain].source


SHOWN_MAX = 10
"""How many refusals of a backfill are told in words."""


def _all_subjects(source: EventSource) -> Iterator[str]:
    """Every subject that the source tells of, each once."""
    seen: set[str] = set()
    for subject, _ in subjects_of(source):
        if subject not in seen:
            seen.add(subject)
            yield subject


def _order_fields(operation: Operation) -> Answer:
    fields: Answer = {
        "verb": operation.verb.value,
        "domain": operation.domain,
        "topology": operation.topology,
        "who": operation.who,
        "why": operation.why,
    }
    if operation.subject is not None:
        fields["subject"] = operation.subject
    if operation.sequence is not None:
        fields["sequence"] = operation.sequence
    return fields


def _shown(entries: Iterable[Answer]) -> Shown:
    answers = list(entries)
    words = [
        f"{each['outcome']}: {each['detail']}"
        + ("" if each["subject"] else f" (partition {each['partition']})")
        for each in answers
    ]
    return Shown(answers, words, is_good=all(e["outcome"] != Outcome.REFUSED for e in answers))


def _parked_line(each: Answer) -> str:
    when = "in quarantine" if each["quarantined"] else f"due in {each['due_in_ms'] / 1_000:.1f} s"
    failed = each["failure_class"] or "not failed"
    return (
        f"{each['subject']} {each['topology']}/{each['lambda']} event {each['event']}: {when},"
        f" {failed}, {each['attempts']} attempts: {each['last_error']}"
    )


def _spelled(cursor: int) -> str:
    return "none" if cursor < 0 else str(cursor)
