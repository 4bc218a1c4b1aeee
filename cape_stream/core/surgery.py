"""What an operator may do to one lambda of one subject, by hand.

Everything else moves a cursor forward because events were done. These do it because a person says
so, in both directions, and leave the state such that the rules of issuing and settling hold.
"""

from cape_stream.core.inflight.lambda_state import LambdaState
from cape_stream.core.inflight.state import InflightState
from cape_stream.core.inflight.subject import SubjectState


def rewind(
    inflight: InflightState,
    subject: SubjectState,
    state: LambdaState,
    cursor: int,
    fence: tuple[int, int],
) -> int:
    """Put the cursor back, below where it is. Jobs that are out are given up, what is done or put
    aside above it is forgotten.

    Args:
        inflight: of the task.
        subject: whose.
        state: of the lambda.
        cursor: the new one, below the present.
        fence: age of the newest job there is: what this one and older ones report from now on is
            about a delivery that no longer counts.

    Returns:
        How many jobs were given up.
    """
    given_up = list(state.jobs)
    for record in given_up:
        inflight.release(state, record)
        # A worker may be at it still: what is issued anew must have the greater fencing token.
        state.floor = max(state.floor, record.attempt)
    for sequence in list(state.parked):
        state.floor = max(state.floor, inflight.unpark(subject, state, sequence).attempts)
    state.forget_done()
    state.drop_outputs([sequence for sequence in state.outputs if sequence > cursor])
    state.cursor = state.high = cursor
    state.unsure_to = min(state.unsure_to, cursor)
    state.fence = fence
    inflight.dirty[subject] = None
    return len(given_up)


def finish_through(
    inflight: InflightState, subject: SubjectState, state: LambdaState, cursor: int
) -> None:
    """Take everything up to ``cursor`` as done; nothing changes if it is already."""
    if state.cursor >= cursor:
        return
    for record in list(state.jobs):
        left = [sequence for sequence in record.sequences if sequence > cursor]
        if not left:
            inflight.release(state, record)
        else:
            record.sequences = left
    for sequence in [each for each in state.parked if each <= cursor]:
        inflight.unpark(subject, state, sequence)
    kept = [sequence for sequence in state.done if sequence > cursor]
    state.forget_done()
    state.add_done(kept)
    state.cursor = cursor
    state.high = max(state.high, cursor)
    state.settle(())
    inflight.dirty[subject] = None


def finish_one(
    inflight: InflightState, subject: SubjectState, state: LambdaState, sequence: int
) -> bool:
    """Take one event as done, wherever it is; False if it was done."""
    if state.has_done(sequence):
        return False
    record = state.job_with(sequence)
    if record is not None and len(record.sequences) == 1:
        inflight.release(state, record)
    elif record is not None:
        state.shrink_job(record, sequence)
    elif sequence in state.parked:
        inflight.unpark(subject, state, sequence)
    if sequence > state.high:
        state.unsure_to = max(state.unsure_to, sequence)
    state.settle([sequence])
    inflight.dirty[subject] = None
    return True


def make_due(
    inflight: InflightState, subject: SubjectState, state: LambdaState, sequence: int, now_ms: int
) -> None:
    """An event that is put aside may go out now, and has all its attempts before it."""
    parked = state.parked[sequence]
    parked.due_ms = now_ms
    parked.charged = 0
    inflight.dirty[subject] = None
    inflight.wake_at(subject, now_ms)
