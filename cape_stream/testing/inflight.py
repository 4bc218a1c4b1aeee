"""Whether the in-flight books of a scheduler add up: the only look inside a dispatcher."""

from collections.abc import Iterable, Iterator

from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.scheduler import Scheduler


def inflight_faults(scheduler: Scheduler, subjects: Iterable[str]) -> Iterator[str]:
    """What does not add up, in words: counts that differ from what they count, or are negative.

    Args:
        scheduler: whose books.
        subjects: all there may be.
    """
    jobs = 0
    for subject in subjects:
        state = scheduler.subject(subject)
        if state is not None:
            jobs += state.open_jobs
            yield from _faults_of(state)
    if jobs != scheduler.open_jobs:
        yield f"{scheduler.open_jobs} jobs are out, the subjects have {jobs}"


def _faults_of(state: SubjectState) -> Iterator[str]:
    name = state.subject
    jobs = sum(len(entry.jobs) for entry in state.lambdas)
    parked = sum(len(entry.parked) for entry in state.lambdas)
    if state.open_jobs != jobs:
        yield f"{name} counts {state.open_jobs} jobs and has {jobs}"
    if state.parked != parked:
        yield f"{name} counts {state.parked} parked events and has {parked}"
    for place, entry in enumerate(state.lambdas):
        held = [sequence for job in entry.jobs for sequence in job.sequences]
        held += [*entry.parked, *entry.done]
        if len(set(held)) != len(held):
            yield f"{name}, lambda {place}: an event stands in two places: {sorted(held)}"
        if held and min(held) <= entry.cursor:
            yield f"{name}, lambda {place}: {min(held)} is open below the cursor {entry.cursor}"
        if entry.high < entry.cursor:
            yield f"{name}, lambda {place}: high {entry.high} is below the cursor {entry.cursor}"
