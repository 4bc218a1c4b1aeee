"""A domain's declaration, compiled: topologies and lambdas in the order they are visited.

The scheduler walks one flat tuple of lambdas. Topologies come in topological order of ``after``,
their lambdas in topological order of ``inputs``, so one pass downward is always enough.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cape_stream.model.status import FailureClass
from cape_stream.model.topology import DomainSpec, LambdaSpec, RetrySpec, TopologySpec

T = TypeVar("T")

OPEN_EVENTS_MAX = 60_000
"""Most events of a subject open beyond its cursors, over all lambdas, each of which has an equal
share: about 70 bytes each, they have to fit the subject's row beside outputs and error texts."""


class PlanError(ValueError):
    """The declaration cannot work; the message names the place and the way out. Fix the App."""


@dataclass(slots=True, frozen=True)
class LambdaPlan:
    """One lambda of the domain."""

    index: int
    """Place in `DomainPlan.lambdas`."""
    topology: str
    topology_index: int
    lambda_id: str
    queue: str
    ordered: bool
    start: int
    """First sequence id its topology wants."""
    from_latest: bool
    """True if it wants only what is newer than what is known when it begins."""
    formerly: tuple[str, ...]
    """Former names of its topology."""
    window: int
    """Most events between the cursor and the newest issued one; as declared, but never more than
    the lambda's share of `OPEN_EVENTS_MAX`."""
    max_batch: int
    """Most events in one job; never more than `window`."""
    timeout_ms: int
    retry: RetrySpec
    quarantine_after: Mapping[FailureClass, int]
    """Failure class → failed attempts an event may have before it waits for a person."""
    gates: tuple[int, ...]
    """Lambdas that must have done an event before this one may have it: its inputs, or the
    last lambdas of every topology that its own topology comes after."""
    inputs: tuple[int, ...]
    """Lambdas whose output it takes."""
    fed: tuple[int, ...]
    """Lambdas that take its output, which is kept until they are done with it."""
    affected: tuple[int, ...]
    """Lambdas that may have new work once this one has done an event: those it takes outputs of,
    which have room again, itself, and those it gates."""


@dataclass(slots=True, frozen=True)
class TopologyPlan:
    """One topology of the domain."""

    name: str
    start: int
    span: range
    """Its lambdas in `DomainPlan.lambdas`."""
    in_flight_max: int | None = None
    """Most jobs out at a time over all partitions; None: no limit of its own."""
    jobs_per_s_max: float | None = None
    """Most jobs a second over all partitions; None: no limit."""


@dataclass(slots=True, frozen=True)
class DomainPlan:
    """Everything the scheduler needs to know of a domain."""

    name: str
    page_limit: int
    topologies: tuple[TopologyPlan, ...]
    lambdas: tuple[LambdaPlan, ...]
    by_name: Mapping[tuple[str, str], int]
    """(topology, lambda id) → place in `lambdas`."""
    names: frozenset[str]
    """Of the topologies."""


def compile_plan(spec: DomainSpec) -> DomainPlan:
    """Compile ``spec``; raises `PlanError` for cycles, unknown and repeated names."""
    if not spec.topologies:
        raise PlanError(f"domain {spec.name!r} has no topology; declare one with domain.topology()")
    topologies = _sorted_by(
        spec.topologies, lambda t: t.name, lambda t: t.after, f"topology of domain {spec.name!r}"
    )
    places: dict[tuple[str, str], int] = {}
    members: list[tuple[TopologySpec, list[LambdaSpec]]] = []
    for topology in topologies:
        where = f"lambda of topology {topology.name!r}"
        if not topology.lambdas:
            raise PlanError(f"topology {topology.name!r} has no handler; add one")
        lambdas = _sorted_by(topology.lambdas, lambda x: x.lambda_id, lambda x: x.inputs, where)
        members.append((topology, lambdas))
        for entry in lambdas:
            places[topology.name, entry.lambda_id] = len(places)
    return DomainPlan(
        name=spec.name,
        page_limit=spec.page_limit,
        topologies=tuple(_topology_plans(members, places)),
        lambdas=tuple(_lambda_plans(members, places)),
        by_name=places,
        names=frozenset(topology.name for topology in topologies),
    )


def _topology_plans(
    members: Sequence[tuple[TopologySpec, list[LambdaSpec]]], places: Mapping[tuple[str, str], int]
) -> Iterable[TopologyPlan]:
    for topology, lambdas in members:
        first = places[topology.name, lambdas[0].lambda_id]
        yield TopologyPlan(
            topology.name,
            topology.start,
            range(first, first + len(lambdas)),
            topology.in_flight_max,
            topology.jobs_per_s_max,
        )


def _lambda_plans(
    members: Sequence[tuple[TopologySpec, list[LambdaSpec]]], places: Mapping[tuple[str, str], int]
) -> Iterable[LambdaPlan]:
    last = {topology.name: _last_lambdas(topology, places) for topology, _ in members}
    gates: dict[int, tuple[int, ...]] = {}
    for topology, lambdas in members:
        before = tuple(place for name in topology.after for place in last[name])
        for entry in lambdas:
            inputs = tuple(places[topology.name, name] for name in entry.inputs)
            gates[places[topology.name, entry.lambda_id]] = inputs or before
    share = max(1, OPEN_EVENTS_MAX // len(places))
    for topology_index, (topology, lambdas) in enumerate(members):
        for entry in lambdas:
            place = places[topology.name, entry.lambda_id]
            inputs = tuple(places[topology.name, name] for name in entry.inputs)
            yield LambdaPlan(
                index=place,
                topology=topology.name,
                topology_index=topology_index,
                lambda_id=entry.lambda_id,
                queue=entry.queue,
                ordered=topology.ordering == "ordered",
                start=topology.start,
                from_latest=topology.from_latest,
                formerly=topology.formerly,
                window=min(topology.window, share),
                max_batch=min(entry.max_batch, topology.window, share),
                timeout_ms=entry.timeout_ms,
                retry=topology.retry,
                quarantine_after=topology.quarantine_after,
                gates=gates[place],
                inputs=inputs,
                fed=tuple(
                    places[topology.name, other.lambda_id]
                    for other in lambdas
                    if entry.lambda_id in other.inputs
                ),
                affected=(*inputs, place, *(later for later in gates if place in gates[later])),
            )


def _last_lambdas(topology: TopologySpec, places: Mapping[tuple[str, str], int]) -> tuple[int, ...]:
    """Lambdas nobody in the topology waits for: when they are done, all of it is."""
    awaited = {name for entry in topology.lambdas for name in entry.inputs}
    return tuple(
        places[topology.name, entry.lambda_id]
        for entry in topology.lambdas
        if entry.lambda_id not in awaited
    )


def _sorted_by(
    items: Sequence[T],
    name_of: Callable[[T], str],
    before: Callable[[T], Iterable[str]],
    where: str,
) -> list[T]:
    """Items with everything ``before`` them in front, otherwise in the order declared."""
    by_name: dict[str, T] = {}
    for item in items:
        if name_of(item) in by_name:
            raise PlanError(f"{where} declared twice: {name_of(item)!r}; rename one of them")
        by_name[name_of(item)] = item
    result: list[T] = []
    state: dict[str, str] = {}

    def visit(name: str, path: list[str]) -> None:
        if state.get(name) == "done":
            return
        if state.get(name) == "open":
            cycle = " → ".join([*path[path.index(name) :], name])
            raise PlanError(f"{where}: dependencies form a cycle: {cycle}; remove one of them")
        state[name] = "open"
        for other in before(by_name[name]):
            if other not in by_name:
                raise PlanError(
                    f"{where} {name!r} depends on unknown {other!r}; known: {', '.join(by_name)}"
                )
            visit(other, [*path, name])
        state[name] = "done"
        result.append(by_name[name])

    for name in by_name:
        visit(name, [])
    return result
