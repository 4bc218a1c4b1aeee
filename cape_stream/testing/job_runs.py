"""One job in the hands of a simulated worker: its handler runs, and a report comes of it."""

from cape_stream.adapters.simulated import SimProcess
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.status import EventFailure, JobStatus, StatusKind
from cape_stream.testing.behaviour import Outcome, draw_failure
from cape_stream.testing.history import Execution
from cape_stream.testing.stage import Stage

POISON = "poison"
"""Subjects that begin with it fail until the cure."""
PEACE_MS = 2
"""The longest an event takes in peace, so that every job fits into its timeout."""


def make_output(topology: str, lambda_id: str, sequence: int, job_id: str) -> bytes:
    """What a lambda makes of an event: names both, so that a check can tell where it came from."""
    return f"{topology}.{lambda_id}:{sequence}@{job_id}".encode()


class JobRun:
    """Runs the handler of ``job`` event by event, in a fiber of its worker's process.

    Args:
        stage: the world's shared part.
        process: of the worker.
        job: what to run.
    """

    def __init__(self, stage: Stage, process: SimProcess, job: Job) -> None:
        self.job = job
        self.handing_back = False
        """Set from outside: end before the next event."""
        self.beats: list[JobStatus] = []
        """Heartbeats to be sent; the worker takes them away."""
        self._stage = stage
        self._process = process
        self._done: list[int] = []
        self._outputs: dict[int, bytes] = {}
        self._failures: list[EventFailure] = []
        plan = stage.plans[job.domain]
        self._ordered = plan.lambdas[plan.by_name[job.topology, job.lambda_id]].ordered

    def run(self) -> JobStatus:
        """Run to the end, the first failure of an ordered topology, or a hand-back."""
        kind = StatusKind.RESULTS
        for event in self.job.events:
            outcome = Outcome.HANDED_BACK if self.handing_back else self._execute(event)
            if outcome is Outcome.HANDED_BACK:
                kind = StatusKind.HANDED_BACK
                break
            if self._ordered and outcome is not Outcome.DONE:
                break
        return self._status(kind)

    def _execute(self, event: Event) -> Outcome:
        """The handler gets one event."""
        job, history = self.job, self._stage.history
        execution = history.begin(job, event, self._process.name)
        outcome = Outcome.HANDED_BACK
        output: bytes | None = None
        try:
            self._work()
            outcome = self._outcome()
            if outcome is Outcome.DONE:
                output = make_output(job.topology, job.lambda_id, event.sequence, job.job_id)
        finally:
            history.end(execution, output)
        if output is not None:
            self._done.append(event.sequence)
            self._outputs[event.sequence] = output
        elif outcome is Outcome.FAILED:
            self._failures.append(draw_failure(self._stage.dice.random, event.sequence))
        self._note(execution, outcome)
        return outcome

    def _work(self) -> None:
        """Let the time of one event pass, with heartbeats if the handler sends any."""
        stage, behaviour = self._stage, self._stage.scenario.behaviour
        random = stage.dice.random
        left_ms = behaviour.draw_duration_ms(random, self.job)
        if stage.safe:
            left_ms = min(left_ms, PEACE_MS)
        beating = random.random() < behaviour.beating
        while left_ms > 0:
            step_ms = min(left_ms, self.job.timeout_ms // 3)
            stage.timeline.sleep(step_ms)
            self._process.touch()
            left_ms -= step_ms
            if beating and left_ms > 0:
                self.beats.append(self._status(StatusKind.HEARTBEAT))

    def _outcome(self) -> Outcome:
        stage = self._stage
        if self.job.subject.startswith(POISON) and self.job.domain not in stage.cured:
            return Outcome.FAILED
        drawn = stage.scenario.behaviour.draw_outcome(stage.dice.random)
        return Outcome.DONE if stage.safe else drawn

    def _status(self, kind: StatusKind) -> JobStatus:
        job = self.job
        beat = kind is StatusKind.HEARTBEAT
        return JobStatus(
            job.job_id,
            job.domain,
            job.partition,
            job.subject,
            job.topology,
            job.lambda_id,
            job.epoch,
            job.attempt,
            kind,
            [] if beat else list(self._done),
            {} if beat else dict(self._outputs),
            [] if beat else list(self._failures),
        )

    def _note(self, execution: Execution, outcome: Outcome) -> None:
        self._stage.note(
            self._process.name,
            outcome.value,
            f"{execution.place.name} {execution.sequence} job {execution.job_id}"
            f" try {execution.attempt}",
        )
