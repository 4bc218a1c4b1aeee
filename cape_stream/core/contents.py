"""What goes into a job beside its events' payloads, and how many bytes that makes."""

from collections.abc import Sequence
from dataclasses import replace

from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import DomainPlan, LambdaPlan
from cape_stream.model.event import Event

EVENT_OVERHEAD_BYTES = 64
"""What an event adds to a job beside its payload, headers and inputs."""


def event_bytes(event: Event) -> int:
    """What the event itself adds to a job; an upper bound."""
    size = len(event.payload) + EVENT_OVERHEAD_BYTES
    if event.headers:
        # UTF-8 takes at most 4 bytes a character.
        size += sum(4 * (len(name) + len(text)) + 10 for name, text in event.headers.items())
    return size


def bytes_in_job(subject: SubjectState, plan: LambdaPlan, event: Event) -> int:
    """The same with the inputs that this lambda gets for it."""
    size = event_bytes(event)
    for place in plan.inputs:
        output = subject.lambdas[place].outputs.get(event.sequence)
        if output is not None:
            size += len(output) + EVENT_OVERHEAD_BYTES
    return size


def with_inputs(
    subject: SubjectState, domain: DomainPlan, plan: LambdaPlan, events: Sequence[Event]
) -> list[Event]:
    """The events with the outputs of the lambdas this one takes input from."""
    result: list[Event] = []
    for event in events:
        inputs: dict[str, bytes] = {}
        for place in plan.inputs:
            output = subject.lambdas[place].outputs.get(event.sequence)
            if output is not None:
                inputs[domain.lambdas[place].lambda_id] = output
        result.append(replace(event, inputs=inputs))
    return result
