from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import pytest

from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.core.plan import OPEN_EVENTS_MAX
from cape_stream.errors import Fatal
from cape_stream.model.status import FailureClass
from cape_stream.model.topology import DomainSpec, LambdaSpec, RetrySpec, TopologySpec
from cape_stream.runtime.worker_handler import Executor, HandlerKey
from cape_stream.sdk import App, Batch, DeclarationError, EventResult
from tests.unit.sdk.apps import flights


def work(batch: Batch) -> None:
    """Do nothing, well."""


def test_app_compiles_the_first_example_to_specs() -> None:
    app = App("flight-ops")
    source = MemoryEventSource()
    domain = app.domain("flights", source=source, page_limit=10)
    delays = domain.topology("delays", ordering="ordered", start="earliest")

    @delays.handler(queue="quick", max_batch=20, timeout=timedelta(seconds=3))
    def parse(batch: Batch) -> Iterator[EventResult]:
        for event in batch:
            yield event.done(output=event.json())

    @delays.handler(inputs=parse)
    def store(batch: Batch) -> None: ...

    rotations = domain.topology("rotations", after=[delays], start=7, window=5)
    rotations.handler(work)

    assert app.domain_specs() == (
        DomainSpec(
            name="flights",
            page_limit=10,
            topologies=(
                TopologySpec(
                    name="delays",
                    ordering="ordered",
                    lambdas=(
                        LambdaSpec(
                            lambda_id="parse", queue="quick", max_batch=20, timeout_ms=3_000
                        ),
                        LambdaSpec(lambda_id="store", inputs=("parse",)),
                    ),
                ),
                TopologySpec(
                    name="rotations",
                    after=("delays",),
                    start=7,
                    window=5,
                    lambdas=(LambdaSpec(lambda_id="work"),),
                ),
            ),
        ),
    )
    assert app.queues == ("general", "quick")
    assert app.domains["flights"].source is source
    assert list(app.job_handlers()) == [
        HandlerKey("flights", "delays", "parse"),
        HandlerKey("flights", "delays", "store"),
        HandlerKey("flights", "rotations", "work"),
    ]


def test_handler_returns_the_function_unchanged_so_that_tests_can_call_it() -> None:
    topology = flights().topology("delays")

    assert topology.handler()(work) is work
    assert flights().topology("delays").handler(work) is work


def test_handler_knows_which_functions_need_an_event_loop() -> None:
    async def coroutine(batch: Batch) -> None: ...

    async def stream(batch: Batch) -> AsyncIterator[EventResult]:
        for event in batch:
            yield event.done()

    async def two(flag: int, batch: Batch) -> None: ...

    class Callback:
        async def __call__(self, batch: Batch) -> None: ...

    @wraps(coroutine)
    def wrapped(batch: Batch) -> Any:
        return coroutine(batch)

    app = App("flight-ops")
    topology = flights(app).topology("delays")
    topology.handler(work)
    topology.handler(name="a")(coroutine)
    topology.handler(name="b")(stream)
    topology.handler(name="c")(partial(two, 1))
    topology.handler(name="d")(Callback())
    topology.handler(name="e")(wrapped)

    kinds = [handler.is_async for handler in app.job_handlers().values()]

    assert kinds == [False, True, True, True, True, True]


def test_handler_takes_its_executor_from_the_declaration() -> None:
    app = App("flight-ops")
    topology = flights(app).topology("delays")
    topology.handler(name="a")(work)
    topology.handler(name="b", executor="process")(work)

    chosen = [handler.executor for handler in app.job_handlers().values()]

    assert chosen == [None, Executor.PROCESS]


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "é", "x" * 101, "a\n", None, 7])
def test_names_that_no_topic_could_have_are_refused(name: Any) -> None:
    with pytest.raises(DeclarationError, match="cannot be named"):
        App(name)
    with pytest.raises(DeclarationError, match="domain of App 'flight-ops' cannot be named"):
        App("flight-ops").domain(name, source=MemoryEventSource())
    with pytest.raises(DeclarationError, match="topology of domain 'flights' cannot be named"):
        flights().topology(name)
    if name is not None:
        with pytest.raises(DeclarationError, match=r"handler .* \(give name=\.\.\.\) cannot be"):
            flights().topology("delays").handler(name=name)(work)
    with pytest.raises(DeclarationError, match=r"queue of handler 'work' .* cannot be named"):
        flights().topology("delays").handler(queue=name)(work)


def test_names_of_a_hundred_characters_are_accepted() -> None:
    name = "aZ0_-" * 20

    assert flights(App(name)).topology(name).name == name


def test_function_without_a_usable_name_is_refused_with_the_way_out() -> None:
    with pytest.raises(DeclarationError, match=r"'<lambda>': a name has"):
        flights().topology("delays").handler(lambda batch: None)


def test_domain_named_like_the_job_topics_is_refused() -> None:
    with pytest.raises(DeclarationError, match="cannot be named 'jobs': its topics would be"):
        App("flight-ops").domain("jobs", source=MemoryEventSource())


def test_duplicates_are_refused_by_name() -> None:
    app = App("flight-ops")
    domain = flights(app)
    topology = domain.topology("delays")
    topology.handler(work)

    with pytest.raises(DeclarationError, match="two domains named 'flights'"):
        flights(app)
    with pytest.raises(
        DeclarationError, match="domain 'flights' has two topologies named 'delays'"
    ):
        domain.topology("delays")
    with pytest.raises(DeclarationError, match="two handlers for 'work'"):
        topology.handler(work)


def test_declaration_errors_end_the_program() -> None:
    assert issubclass(DeclarationError, Fatal)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"timeout": timedelta(0)},
            "timeout of handler 'work' of topology 'delays'.* at least 1 ms",
        ),
        ({"timeout": timedelta(seconds=-1)}, "at least 1 ms"),
        ({"timeout": 30}, r"must be a timedelta, not 30: write timedelta\(seconds=30\)"),
        ({"max_batch": 0}, "max_batch of handler 'work'.* from 1 to 10000, not 0"),
        ({"max_batch": 10_001}, "not 10001"),
        ({"max_batch": True}, "not True"),
        ({"max_batch": 2.0}, "not 2.0"),
        ({"executor": "fiber"}, "executor of handler 'work'.*'thread' or 'process', not 'fiber'"),
        ({"inputs": "parse"}, "must be handler functions, not 'parse': write inputs=parse"),
        ({"inputs": 7}, "must be handler functions, not 7"),
        ({"inputs": work}, "names work, which is no handler of this topology declared above it"),
        ({"inputs": ["parse"]}, "names 'parse', which is no handler"),
    ],
)
def test_handler_refuses_a_bad_argument(arguments: dict[str, Any], message: str) -> None:
    topology = flights().topology("delays")

    with pytest.raises(DeclarationError, match=message):
        topology.handler(**arguments)(work)


def test_handler_accepts_the_bounds() -> None:
    app = App("flight-ops")
    topology = flights(app).topology("delays")
    topology.handler(name="a", max_batch=1, timeout=timedelta(milliseconds=1))(work)
    topology.handler(name="b", max_batch=10_000)(work)

    specs = app.domain_specs()[0].topologies[0].lambdas

    assert [(spec.max_batch, spec.timeout_ms) for spec in specs] == [(1, 1), (10_000, 30_000)]


@pytest.mark.parametrize("function", ["work", 7, None])
def test_handler_refuses_what_cannot_be_called(function: Any) -> None:
    with pytest.raises(DeclarationError, match="must be a function, not"):
        flights().topology("delays").handler(name="work")(function)


def test_handler_refuses_a_function_that_does_not_take_a_batch() -> None:
    def nothing() -> None: ...

    def two(batch: Batch, other: int) -> None: ...

    topology: Any = flights().topology("delays")

    with pytest.raises(DeclarationError, match=r"'nothing'.* with one argument, the batch"):
        topology.handler(nothing)
    with pytest.raises(DeclarationError, match="missing a required argument: 'other'"):
        topology.handler(two)


def test_inputs_refuse_a_function_that_stands_for_two_lambdas() -> None:
    topology = flights().topology("delays")
    topology.handler(name="a")(work)
    topology.handler(name="b")(work)

    with pytest.raises(DeclarationError, match="names work, which stands for several handlers"):
        topology.handler(name="c", inputs=work)(lambda batch: None)


def test_inputs_take_several_handlers_and_each_once() -> None:
    app = App("flight-ops")
    topology = flights(app).topology("delays")
    first = topology.handler(name="a")(work)

    @topology.handler
    def second(batch: Batch) -> None: ...

    topology.handler(name="c", inputs=[first, second, first])(lambda batch: None)

    assert app.domain_specs()[0].topologies[0].lambdas[2].inputs == ("a", "second")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ordering": "sorted"}, "ordering .*'parallel' or 'ordered', not 'sorted'"),
        ({"formerly": "a b"}, "former name of topology"),
        ({"start": "newest"}, 'must be an integer, not \'newest\'; give "earliest", "latest" or'),
        ({"start": -1}, "negative: -1"),
        ({"start": 2**63}, "beyond int64"),
        ({"start": True}, "must be an integer, not True"),
        ({"window": 0}, "window of topology 'delays'"),
        ({"window": OPEN_EVENTS_MAX + 1}, "window of topology 'delays'"),
        ({"retry": 3}, "retry of topology 'delays' .* must be a RetrySpec, not 3"),
        ({"retry": RetrySpec(first_ms=0)}, "first_ms in retry of topology 'delays'"),
        ({"retry": RetrySpec(first_ms=9, max_ms=8)}, "max_ms in retry .* from 9"),
        ({"retry": RetrySpec(floor_ms=-1)}, "floor_ms in retry"),
        ({"after": [7]}, "after cannot be named 7"),
    ],
)
def test_topology_refuses_a_bad_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        flights().topology("delays", **arguments)


def test_topology_starts_where_it_says() -> None:
    app = App("flight-ops")
    domain = flights(app)
    for start in (0, 2**63 - 1):
        domain.topology(f"at-{start}", start=start).handler(work)

    assert [topology.start for topology in app.domain_specs()[0].topologies] == [0, 2**63 - 1]


def test_after_may_name_a_topology_declared_below() -> None:
    app = App("flight-ops")
    domain = flights(app)
    domain.topology("late", after="early").handler(work)
    domain.topology("early").handler(work)

    assert app.domain_specs()[0].topologies[0].after == ("early",)


def test_after_refuses_an_unknown_name_and_lists_the_known_ones() -> None:
    app = App("flight-ops")
    domain = flights(app)
    domain.topology("delays").handler(work)
    domain.topology("rotations", after=["delay"]).handler(work)

    with pytest.raises(
        DeclarationError,
        match=r"'rotations' .* comes after 'delay', which .* has delays, rotations",
    ):
        app.domain_specs()


def test_after_refuses_a_topology_of_another_domain() -> None:
    elsewhere = flights().topology("delays")

    with pytest.raises(DeclarationError, match="only topologies of one domain"):
        flights().topology("rotations", after=[elsewhere])


@pytest.mark.parametrize(
    ("links", "circle"),
    [
        ({"a": ["a"]}, "a after a"),
        ({"a": ["b"], "b": ["a"]}, "a after b after a"),
        ({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}, "a after b after c after a"),
    ],
)
def test_topologies_that_wait_for_each_other_are_refused_naming_the_circle(
    links: dict[str, list[str]], circle: str
) -> None:
    app = App("flight-ops")
    domain = flights(app)
    for name, after in links.items():
        domain.topology(name, after=after).handler(work)

    with pytest.raises(DeclarationError, match=f"domain 'flights' wait for each other: {circle};"):
        app.domain_specs()


def test_diamond_of_topologies_is_no_circle() -> None:
    app = App("flight-ops")
    domain = flights(app)
    for name, after in {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}.items():
        domain.topology(name, after=after).handler(work)

    assert len(app.domain_specs()[0].topologies) == 4


def test_deep_lattice_of_topologies_is_checked_without_walking_every_path() -> None:
    app = App("flight-ops")
    domain = flights(app)
    for layer in range(60):
        below = [f"a{layer - 1}", f"b{layer - 1}"] if layer else []
        domain.topology(f"a{layer}", after=below).handler(work)
        domain.topology(f"b{layer}", after=below).handler(work)

    assert len(app.domain_specs()[0].topologies) == 120


def test_app_refuses_to_run_without_anything_to_do() -> None:
    app = App("flight-ops")
    with pytest.raises(DeclarationError, match=r"no domain: call app\.domain"):
        app.domain_specs()

    domain = flights(app)
    with pytest.raises(
        DeclarationError, match=r"'flights' has no topology: call flights\.topology"
    ):
        app.domain_specs()

    domain.topology("delays")
    with pytest.raises(DeclarationError, match=r"no handler: decorate .* @delays\.handler\(\)"):
        app.domain_specs()


@pytest.mark.parametrize("source", [None, object(), "sqlite://"])
def test_domain_refuses_a_source_that_cannot_answer(source: Any) -> None:
    with pytest.raises(DeclarationError, match="which has no fetch_many"):
        App("flight-ops").domain("flights", source=source)


@pytest.mark.parametrize("limit", [0, -1, 10_001, None])
def test_domain_refuses_a_page_limit_out_of_range(limit: Any) -> None:
    with pytest.raises(DeclarationError, match="page_limit of domain 'flights'"):
        App("flight-ops").domain("flights", source=MemoryEventSource(), page_limit=limit)


@pytest.mark.parametrize("partitions", [0, -1, 10_001, 2.0, None])
def test_app_refuses_partitions_out_of_range(partitions: Any) -> None:
    with pytest.raises(DeclarationError, match="partitions of App 'flight-ops'"):
        App("flight-ops", partitions=partitions)


def test_declared_things_show_what_they_are() -> None:
    app = App("flight-ops")
    domain = flights(app)
    topology = domain.topology("delays")
    empty = (repr(domain), repr(topology))
    topology.handler(work)

    assert empty == ("Domain('flights': delays)", "Topology(flights.delays: no handler)")
    assert repr(app) == "App('flight-ops': flights)"
    assert repr(topology) == "Topology(flights.delays: work)"


def test_quarantine_is_declared_by_failure_class() -> None:
    app = App("shop")
    domain = app.domain("orders", source=MemoryEventSource())
    topology = domain.topology("bill", quarantine_after={"invalid": 1, "permanent": 3})
    topology.handler(work)

    (spec,) = app.domain_specs()[0].topologies
    assert spec.quarantine_after == {FailureClass.INVALID: 1, FailureClass.PERMANENT: 3}


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"fatal": 1}, "fatal"),
        ({"invalid": 0}, "invalid"),
        ({"invalid": "3"}, "invalid"),
        (3, "must map failure classes"),
    ],
)
def test_quarantine_that_cannot_be_is_refused_naming_it(limits: object, told: str) -> None:
    domain = App("shop").domain("orders", source=MemoryEventSource())

    with pytest.raises(DeclarationError, match=told):
        domain.topology("bill", quarantine_after=limits)  # type: ignore[arg-type]  # on purpose


def test_limits_are_declared_on_the_topology() -> None:
    app = App("shop")
    domain = app.domain("orders", source=MemoryEventSource())
    domain.topology("bill", in_flight_max=40, jobs_per_s_max=2.5).handler(work)

    (spec,) = app.domain_specs()[0].topologies
    assert (spec.in_flight_max, spec.jobs_per_s_max) == (40, 2.5)


@pytest.mark.parametrize(
    "limits",
    [
        {"in_flight_max": 0},
        {"in_flight_max": "many"},
        {"jobs_per_s_max": 0},
        {"jobs_per_s_max": -1.0},
        {"jobs_per_s_max": True},
        {"jobs_per_s_max": float("nan")},
    ],
)
def test_limits_that_cannot_be_are_refused_naming_them(limits: dict[str, Any]) -> None:
    domain = App("shop").domain("orders", source=MemoryEventSource())

    with pytest.raises(DeclarationError, match=next(iter(limits))):
        domain.topology("bill", **limits)
