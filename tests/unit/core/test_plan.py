import pytest

from cape_stream.core.plan import OPEN_EVENTS_MAX, DomainPlan, PlanError, compile_plan
from cape_stream.model.topology import DomainSpec, LambdaSpec, TopologySpec
from tests.desk import topology


def plan(*topologies: TopologySpec) -> DomainPlan:
    return compile_plan(DomainSpec(name="flights", topologies=topologies))


def error(*topologies: TopologySpec) -> str:
    with pytest.raises(PlanError) as caught:
        plan(*topologies)
    return str(caught.value)


def stage(lambda_id: str, *inputs: str) -> LambdaSpec:
    return LambdaSpec(lambda_id=lambda_id, inputs=inputs)


def test_compile_puts_topologies_behind_those_they_come_after() -> None:
    compiled = plan(
        topology("C", after=("B", "A")), topology("B", after=("A",)), topology("A"), topology("D")
    )

    assert [each.name for each in compiled.topologies] == ["A", "B", "C", "D"]
    assert [each.span for each in compiled.topologies] == [range(n, n + 1) for n in range(4)]


def test_compile_puts_lambdas_behind_their_inputs() -> None:
    compiled = plan(topology("T", stage("c", "a", "b"), stage("b", "a"), stage("a")))

    assert [each.lambda_id for each in compiled.lambdas] == ["a", "b", "c"]
    assert [each.inputs for each in compiled.lambdas] == [(), (0,), (0, 1)]
    assert [each.fed for each in compiled.lambdas] == [(1, 2), (2,), ()]
    assert compiled.topologies[0].span == range(3)
    assert compiled.by_name == {("T", "a"): 0, ("T", "b"): 1, ("T", "c"): 2}


def test_compile_gates_a_topology_by_the_last_lambdas_of_those_before_it() -> None:
    compiled = plan(
        topology("A", stage("in"), stage("left", "in"), stage("right", "in")),
        topology("B", stage("first"), stage("second", "first"), after=("A",)),
    )
    places = compiled.by_name

    first = compiled.lambdas[places["B", "first"]]
    second = compiled.lambdas[places["B", "second"]]
    assert first.gates == (places["A", "left"], places["A", "right"])
    assert second.gates == (places["B", "first"],)


def test_compile_names_who_may_have_work_once_a_lambda_is_done() -> None:
    compiled = plan(
        topology("A", stage("in"), stage("out", "in")),
        topology("B", after=("A",)),
        topology("C"),
    )

    affected = {each.lambda_id: each.affected for each in compiled.lambdas[:3]}
    assert affected == {"in": (0, 1), "out": (0, 1, 2), "only": (2,)}


def test_compile_carries_the_declaration_over() -> None:
    entry = LambdaSpec(lambda_id="x", queue="bulk", max_batch=500, timeout_ms=7)
    compiled = plan(topology("T", entry, ordering="ordered", start=5, window=100))

    only = compiled.lambdas[0]
    assert (only.topology, only.lambda_id, only.queue) == ("T", "x", "bulk")
    assert (only.ordered, only.start, only.timeout_ms) == (True, 5, 7)
    assert (only.window, only.max_batch) == (100, 100)


def test_compile_shares_what_may_be_open_of_a_subject_between_many_lambdas() -> None:
    compiled = plan(*(topology(f"T{number}", window=1_000) for number in range(100)))
    alone = plan(topology("T", window=OPEN_EVENTS_MAX))

    assert {each.window for each in compiled.lambdas} == {OPEN_EVENTS_MAX // 100}
    assert alone.lambdas[0].window == OPEN_EVENTS_MAX


def test_compile_refuses_a_cycle_of_topologies_naming_its_path() -> None:
    message = error(
        topology("A"),
        topology("B", after=("D", "A")),
        topology("C", after=("B",)),
        topology("D", after=("C",)),
    )

    assert "topology of domain 'flights': dependencies form a cycle: B → D → C → B" in message


def test_compile_refuses_a_cycle_of_lambdas_naming_its_path() -> None:
    message = error(topology("T", stage("a", "b"), stage("b", "a")))

    assert "lambda of topology 'T': dependencies form a cycle: a → b → a" in message


def test_compile_refuses_a_lambda_that_feeds_itself() -> None:
    assert "cycle: a → a" in error(topology("T", stage("a", "a")))


def test_compile_refuses_an_unknown_name_and_tells_the_known_ones() -> None:
    assert "'B' depends on unknown 'X'; known: A, B" in error(
        topology("A"), topology("B", after=("X",))
    )
    assert "'b' depends on unknown 'x'; known: a, b" in error(
        topology("T", stage("a"), stage("b", "x"))
    )


def test_compile_refuses_a_name_declared_twice() -> None:
    assert "declared twice: 'A'" in error(topology("A"), topology("A"))
    assert "declared twice: 'a'" in error(topology("T", stage("a"), stage("a")))


def test_compile_takes_equal_lambda_ids_in_different_topologies() -> None:
    assert len(plan(topology("A"), topology("B")).lambdas) == 2


def test_compile_refuses_a_topology_without_a_handler() -> None:
    assert "topology 'A' has no handler" in error(TopologySpec(name="A", lambdas=()))


def test_compile_refuses_a_domain_without_topologies() -> None:
    assert "domain 'flights' has no topology" in error()
