"""The judge of a world: reads what handlers did, and says which promise was broken where.

It knows the sources and the executions, and nothing of how dispatchers work.

| rule | promise |
|---|---|
| lost | every event is done by every lambda that wants it |
| order | an event of an ordered topology begins only after all earlier ones have succeeded |
| rival | no job of it begins while an earlier event runs, unless a success overtook that run |
| dependency | an event begins only after the topologies and lambdas before have done it |
| input | a lambda gets the output of a successful run of the lambda before, for this very event |
| payload | a handler gets the source's own bytes |
| twice | no event is issued twice as a first attempt |
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from cape_stream.adapters.simulated import SimSource
from cape_stream.model.event import Event
from cape_stream.model.topology import DomainSpec, LambdaSpec, TopologySpec
from cape_stream.testing.history import Execution, History, Place
from cape_stream.testing.stage import START_MS, Stage
from cape_stream.testing.violation import Violation


class Judge:
    """Checks one history.

    Args:
        stage: of a world that has come to its end; its changelogs have been read.
    """

    def __init__(self, stage: Stage) -> None:
        self._history: History = stage.history
        self._domains = stage.scenario.domains
        self._sources: Mapping[str, SimSource] = stage.sources
        self._by_place: dict[Place, list[Execution]] = defaultdict(list)
        for execution in self._history.executions:
            self._by_place[execution.place].append(execution)

    def violations(self) -> list[Violation]:
        """Everything that is wrong, in order of time."""
        found: list[Violation] = []
        for domain in self._domains:
            for subject, events in self._sources[domain.name].events.items():
                for topology in domain.topologies:
                    for entry in topology.lambdas:
                        found += self._judge_lambda(domain, topology, entry, subject, events)
        return sorted(found, key=lambda violation: violation.ms)

    # --- executions ----------------------------------------------------------------------------

    def _judge_lambda(
        self,
        domain: DomainSpec,
        topology: TopologySpec,
        entry: LambdaSpec,
        subject: str,
        events: list[Event],
    ) -> Iterator[Violation]:
        place = Place(domain.name, subject, topology.name, entry.lambda_id)
        executions = self._by_place.get(place, [])
        wanted = [event for event in events if event.sequence >= topology.start]
        yield from self._lost(place, wanted)
        yield from _issued_twice(executions)
        payloads = {event.sequence: event.payload for event in events}
        for execution in executions:
            if payloads.get(execution.sequence) != execution.payload:
                yield _violation("payload", execution, "is not what the source has")
        yield from self._before_its_time(domain, topology, entry, executions)
        if entry.inputs:
            yield from self._wrong_inputs(entry, executions)
        if topology.ordering == "ordered":
            yield from self._out_of_order(place, wanted, executions)
            yield from _rivals(executions)

    def _lost(self, place: Place, wanted: list[Event]) -> Iterator[Violation]:
        end_ms = self._history.timeline.now_ms - START_MS
        for event in wanted:
            if (place, event.sequence) not in self._history.delivered:
                yield Violation("lost", end_ms, f"{place.name} {event.sequence} was never done")

    def _done_before(self, place: Place, sequence: int, execution: Execution) -> bool:
        moment = self._history.delivered.get((place, sequence))
        return moment is not None and moment < execution.began

    def _before_its_time(
        self,
        domain: DomainSpec,
        topology: TopologySpec,
        entry: LambdaSpec,
        executions: list[Execution],
    ) -> Iterator[Violation]:
        by_name = {each.name: each for each in domain.topologies}
        before = [(topology, name) for name in entry.inputs]
        for name in topology.after:
            before += [(by_name[name], each.lambda_id) for each in by_name[name].lambdas]
        for execution in executions:
            for other, lambda_id in before:
                place = execution.place._replace(topology=other.name, lambda_id=lambda_id)
                if execution.sequence < other.start:
                    continue
                if not self._done_before(place, execution.sequence, execution):
                    yield _violation("dependency", execution, f"began before {place.name} was done")

    def _wrong_inputs(self, entry: LambdaSpec, executions: list[Execution]) -> Iterator[Violation]:
        for execution in executions:
            if set(execution.inputs) != set(entry.inputs):
                yield _violation("input", execution, f"has inputs {sorted(execution.inputs)}")
                continue
            for lambda_id, value in execution.inputs.items():
                place = execution.place._replace(lambda_id=lambda_id)
                if not any(
                    other.succeeded
                    and other.sequence == execution.sequence
                    and other.output == value
                    and other.ended is not None
                    and other.ended < execution.began
                    for other in self._by_place.get(place, [])
                ):
                    yield _violation("input", execution, f"got {value!r}, which is no output")

    def _out_of_order(
        self, place: Place, wanted: list[Event], executions: list[Execution]
    ) -> Iterator[Violation]:
        for execution in executions:
            for event in wanted:
                if event.sequence >= execution.sequence:
                    break
                if not self._done_before(place, event.sequence, execution):
                    yield _violation("order", execution, f"began before {event.sequence} was done")
                    break


def _issued_twice(executions: list[Execution]) -> Iterator[Violation]:
    first: dict[int, str] = {}
    for execution in executions:
        if execution.attempt == 1:
            job_id = first.setdefault(execution.sequence, execution.job_id)
            if job_id != execution.job_id:
                yield _violation("twice", execution, f"was a first attempt in {job_id} already")


def _rivals(executions: list[Execution]) -> Iterator[Violation]:
    """A job begins while an earlier event runs that no success has overtaken.

    Later events of a job are not judged: a job that waited until it was given up, and runs beside
    its own successor, holds an older token for all of them. Nor are reissues of an earlier owner:
    only first attempts lie where a new owner looks for jobs that are out, so it may not know of a
    reissue that was sent just before the change, and take the success of the attempt before.
    """
    begun: set[str] = set()
    for index, execution in enumerate(executions):
        if execution.job_id in begun:
            continue
        begun.add(execution.job_id)
        for other in executions[:index]:
            if (
                other.sequence < execution.sequence
                and (other.ended is None or other.ended > execution.began)
                and not (other.attempt > 1 and other.epoch < execution.epoch)
                and not _overtaken(other, execution, executions[:index])
            ):
                yield _violation(
                    "rival", execution, f"began while {other.sequence} of {other.job_id} ran"
                )


def _overtaken(runner: Execution, execution: Execution, executions: list[Execution]) -> bool:
    """True if the runner's event had succeeded with a token that is no older."""
    return any(
        each.sequence == runner.sequence
        and each.succeeded
        and each.ended is not None
        and each.ended < execution.began
        and each.token >= runner.token
        for each in executions
    )


def _violation(rule: str, execution: Execution, text: str) -> Violation:
    where = f"{execution.place.name} {execution.sequence} in job {execution.job_id}"
    return Violation(rule, execution.began.ms - START_MS, f"{where} try {execution.attempt} {text}")
