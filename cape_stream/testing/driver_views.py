"""What a test may see of a driver's world: what is put aside, and what is left to do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from cape_stream.model.sequence import NO_CURSOR
from cape_stream.runtime.inspecting import Answer, about_parked, about_subject
from cape_stream.testing.driver_stage import DriverStage

PARKED_MAX = 100_000


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """An event that is put aside after a failure."""

    subject: str
    topology: str
    handler: str
    sequence: int
    failure_class: str | None
    """None if it was handed back or not reached."""
    failures: int
    """Attempts that counted."""
    due_in: timedelta | None
    """When it is tried again; None: in quarantine, where it waits for a person."""
    error: str
    """Text of the last failure."""


def parked_events(stage: DriverStage, topology: str | None) -> list[ParkedEvent]:
    """Everything that is put aside, of one topology or all."""
    answers = (
        answer
        for domain in stage.plans
        for answer in stage.ask(about_parked(domain, topology, PARKED_MAX))
    )
    return [_parked(answer) for answer in answers]


def _parked(told: Answer) -> ParkedEvent:
    due_in = None if told["quarantined"] else timedelta(milliseconds=told["due_in_ms"])
    return ParkedEvent(
        subject=told["subject"],
        topology=told["topology"],
        handler=told["lambda"],
        sequence=told["event"],
        failure_class=told["failure_class"],
        failures=told["failures"],
        due_in=due_in,
        error=told["last_error"],
    )


def explained(told: Answer) -> str:
    """A subject's state in words, one line a handler."""
    lines = [f"{told['subject']}: {told['because']}"]
    for topology in told["topologies"]:
        lines += [
            f"  {topology['topology']}.{each['lambda']}: cursor {each['cursor']}; {each['because']}"
            for each in topology["lambdas"]
        ]
    return "\n".join(lines)


def what_is_left(stage: DriverStage, newest_events: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """One line for each topology of a subject that has not done everything published."""
    for (domain, subject), newest in newest_events.items():
        told: Mapping[str, Answer] = {
            each["topology"]: each for each in tell(stage, domain, subject)["topologies"]
        }
        for topology in stage.plans[domain].topologies:
            state = told.get(topology.name)
            cursor = NO_CURSOR if state is None else state["cursor"]
            if cursor >= newest or newest < topology.start:
                continue
            open_ = [] if state is None else state["lambdas"]
            because = open_[0]["because"] if open_ else "no dispatcher has heard of it"
            yield f"{topology.name} of {subject!r} is at {cursor} of {newest}: {because}"


def tell(stage: DriverStage, domain: str, subject: str) -> Answer:
    """All that is known of a subject."""
    answers = stage.ask(about_subject(domain, stage.partitions, subject))
    return (
        answers[0]
        if answers
        else {"subject": subject, "because": "nobody owns it", "topologies": []}
    )
