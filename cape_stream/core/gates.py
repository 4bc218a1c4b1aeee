"""What a lambda waits for: the topologies and lambdas that have to do an event before it."""

from cape_stream.core.inflight.subject import SubjectState
from cape_stream.core.plan import LambdaPlan


def gates_open(subject: SubjectState, plan: LambdaPlan, sequence: int) -> bool:
    """True if everything this lambda comes after has done the event."""
    return all(subject.lambdas[gate].has_done(sequence) for gate in plan.gates)


def gates_reach(subject: SubjectState, plan: LambdaPlan, position: int) -> bool:
    """True if some event from ``position`` on may have passed all gates."""
    for gate in plan.gates:
        state = subject.lambdas[gate]
        if state.cursor < position and max(state.done, default=-1) < position:
            return False
    return True
